//go:build linux

package cli_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/await"
)

var (
	away = flag.Duration("away", 6*time.Second, "how long the agents of TestLedger live in all, in ticks")
	seed = flag.Uint64("seed", 0, "of the moments at which TestLedger kills; 0: another each time")
)

// ledger are the ticks that a pipeline accepted: their times in ns since 1970, and how
// many points each had.
type ledger map[int64]int

// ledger returns what the agent has written down so far. It needs --log-level debug.
// A line survives the agent: it was in the pipe when write(2) returned.
func (a *agent) ledger() ledger {
	a.t.Helper()
	l := ledger{}
	for line := range strings.Lines(a.log.String()) {
		var e struct {
			Message string `json:"msg"`
			Signal  string `json:"otelcol.signal"`
			Time    int64  `json:"time_unix_nano"` // as a float64 it would not be exact
			Items   int    `json:"items"`
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			a.t.Fatalf("the log has a line that is not JSON: %q", line)
		}
		if e.Message != "accepted a tick" || e.Signal != "metrics" {
			continue
		}
		if _, ok := l[e.Time]; ok {
			a.t.Errorf("the pipeline accepted the tick of %d twice", e.Time)
		}
		l[e.Time] = e.Items
	}
	return l
}

// arrivals returns how often each tick arrived, of any run.
func (b *backend) arrivals() (times map[int64]int, whole map[int64]tick) {
	b.mu.Lock()
	defer b.mu.Unlock()
	times, whole = map[int64]int{}, map[int64]tick{}
	for _, list := range b.got {
		for _, tick := range list {
			times[tick.time.UnixNano()]++
			whole[tick.time.UnixNano()] = tick
		}
	}
	return times, whole
}

// owes returns an error unless every tick of l arrived, whole.
func (b *backend) owes(l ledger) error {
	_, whole := b.arrivals()
	var missing []string
	for at, points := range l {
		tick, ok := whole[at]
		switch {
		case !ok:
			missing = append(missing, fmt.Sprint(at))
		case tick.total != points:
			b.t.Errorf("the tick of %d arrived with %d points, has %d", at, tick.total, points)
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return fmt.Errorf("%d of %d ticks are missing, the first of %s", len(missing), len(l), missing[0])
	}
	return nil
}

// kills starts and kills agents that have as many ticks as the given time has, and returns what they
// all wrote down. At random moments: a start, a write to the queue and a request on its way are hit, too.
func kills(t *testing.T, b *backend, state string, n int, within time.Duration) ledger {
	t.Helper()
	s := *seed
	if s == 0 {
		s = rand.Uint64()
	}
	t.Logf("-seed %d", s)
	random := rand.New(rand.NewPCG(s, 0))
	all := ledger{}
	for i := range n {
		a := push(t, b, state, nil, "--log-level", "debug")
		mean := int(within / pushInterval / time.Duration(n))
		if i%4 != 0 { // else it is hit while it starts
			ticks := 1 + random.IntN(2*mean)
			await.NoError(t, func() error {
				if got := len(a.ledger()); got < ticks {
					return fmt.Errorf("%d ticks, want %d", got, ticks)
				}
				return nil
			})
		}
		time.Sleep(time.Duration(random.Int64N(int64(2 * pushInterval)))) // which moment it is matters, not how long it takes
		if err := a.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-a.ended
		maps.Copy(all, a.ledger())
	}
	if len(all) < n/2 {
		t.Errorf("only %d ticks of %d agents", len(all), n)
	}
	return all
}

// settle checks that b gets all that was accepted, and what the last agent accepts, and
// no tick more often than an agent was killed.
func settle(t *testing.T, b *backend, last *agent, all ledger, killed int) {
	t.Helper()
	await.NoError(t, func() error { return b.owes(all) })
	maps.Copy(all, last.ledger())
	await.NoError(t, func() error { return b.owes(all) })
	last.stop()
	again := 0
	times, _ := b.arrivals()
	for _, n := range times {
		again += n - 1
	}
	t.Logf("%d ticks, all of them arrived, %d of them again", len(all), again)
	if again > killed {
		t.Errorf("%d requests came again, %d agents were killed", again, killed)
	}
}

// A tick that the pipeline has accepted is delivered, though the backend is away and
// ten agents are killed meanwhile.
func TestLedgerAway(t *testing.T) {
	t.Parallel()
	b, state := newBackend(t), t.TempDir()
	all := kills(t, b, state, 10, *away)
	last := push(t, b, state, nil, "--log-level", "debug")
	last.waitLog("Exporting failed. Will retry the request after interval.")
	b.up(false)
	settle(t, b, last, all, 10)
}

// The same of a backend that is there, and so slow that requests are always on their way.
func TestLedgerSlow(t *testing.T) {
	t.Parallel()
	b, state := newBackend(t), t.TempDir()
	b.slow.Store(int64(150 * time.Millisecond))
	b.up(false)
	all := kills(t, b, state, 10, *away)
	b.slow.Store(0)
	settle(t, b, push(t, b, state, nil, "--log-level", "debug"), all, 10)
}
