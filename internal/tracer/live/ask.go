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

// askEvery is how long NCCL is left alone after a question, which goes through all
// processes of a job.
const askEvery = time.Minute

// asker asks NCCL about a job in which a rank waits: it knows the ranks on other machines.
type asker struct {
	ask func(context.Context) (ncclinfo.Status, error) // nil: nobody is asked

	mu     sync.Mutex
	busy   bool
	asked  time.Time
	at     time.Time // when the status was asked for
	status ncclinfo.Status
}

// consider adds to groups in which a rank waits, since the times given, what NCCL says of
// them. If it has not been asked since they wait, it is, and the answer is for the next time.
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
		if err != nil { // most often there is no such service: nothing is known then
			s, now = ncclinfo.Status{}, time.Time{}
		}
		a.status, a.at = s, now
	}()
}

// missing returns which ranks of a group NCCL gets no answer from, or has seen begin less.
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

// sameRanks: the ranks we see are the same processes there. A communicator that was split
// off has no unique id to compare.
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
