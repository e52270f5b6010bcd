//go:build linux

package live

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/ncclinfo"
)

// askEvery is the minimum time between two RAS queries, which involve all processes of a job.
const askEvery = time.Minute

// asker queries NCCL's RAS service about a job with a waiting rank: RAS knows the ranks on
// other machines.
type asker struct {
	ask func(context.Context) (ncclinfo.Status, error) // nil if RAS is disabled

	mu     sync.Mutex
	busy   bool
	asked  time.Time
	at     time.Time // when the status was requested
	status ncclinfo.Status
}

// consider adds RAS information to groups in which a rank waits since the given times. If RAS
// was not queried since then, a query is started, and its answer is used the next time.
func (a *asker) consider(ctx context.Context, groups []tracer.CommGroup, since []time.Time, now time.Time) {
	if a.ask == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	wanted := false
	for i := range groups {
		if since[i].IsZero() {
			continue
		}
		wanted = true
		if a.at.After(since[i]) {
			groups[i].Missing = missing(a.status, groups[i])
		}
	}
	if !wanted || a.busy || now.Sub(a.asked) < askEvery {
		return
	}
	a.busy, a.asked = true, now
	go func() {
		s, err := a.ask(ctx)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.busy = false
		if err != nil { // usually there is no RAS service
			s, now = ncclinfo.Status{}, time.Time{}
		}
		a.status, a.at = s, now
	}()
}

// missing returns the ranks of a group that do not answer or started fewer collectives.
func missing(s ncclinfo.Status, g tracer.CommGroup) []int {
	for i := range s.Comms {
		c := &s.Comms[i]
		if !sameHash(c.Hash, g.ID) && !sameRanks(c, g) {
			continue
		}
		ranks := c.Lagging()
		for _, m := range c.Missing {
			ranks = append(ranks, m.Rank)
		}
		slices.Sort(ranks)
		return slices.Compact(ranks)
	}
	return nil
}

func sameHash(a, b string) bool {
	x, err := strconv.ParseUint(strings.TrimPrefix(a, "0x"), 16, 64)
	y, err2 := strconv.ParseUint(strings.TrimPrefix(b, "0x"), 16, 64)
	return err == nil && err2 == nil && x == y
}

// sameRanks reports whether the local ranks of g are the same processes as in c. It is used
// for split communicators, which have no unique id to compare.
func sameRanks(c *ncclinfo.Comm, g tracer.CommGroup) bool {
	if c.Size != g.Size || len(g.Ranks) == 0 {
		return false
	}
	pids := map[int]int{}
	for _, r := range c.Ranks {
		pids[r.Rank] = r.PID
	}
	for _, m := range c.Missing {
		pids[m.Rank] = m.PID
	}
	for _, r := range g.Ranks {
		if pids[r.Rank] != int(r.PID) {
			return false
		}
	}
	return true
}
