package node

import (
	"slices"
	"sync"

	"github.com/gpumeter/gpumeter/internal/workload"
)

// defaultBacklog is how many ticks a subscriber may lag behind.
const defaultBacklog = 16

// Fanout distributes ticks to its subscribers. The zero Fanout is ready for use.
type Fanout struct {
	// Backlog is how many ticks a subscriber may lag behind before its oldest ones are
	// dropped; 0 means a small default.
	Backlog int

	mu   sync.Mutex
	list map[chan Tick]struct{}
	lost uint64
}

// Subscribe returns a channel of all ticks from now on. A subscriber that cannot keep up
// loses its oldest ticks, except for their events and changes, which are carried over to
// the newest one. A subscriber never blocks Publish. cancel closes the channel.
func (f *Fanout) Subscribe() (ticks <-chan Tick, cancel func()) {
	size := f.Backlog
	if size == 0 {
		size = defaultBacklog
	}
	c := make(chan Tick, size)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.list == nil {
		f.list = map[chan Tick]struct{}{}
	}
	f.list[c] = struct{}{}
	return c, sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.list, c)
		close(c)
	})
}

// Publish sends t to every subscriber, after adding the number of ticks dropped so far to
// LostTicks.
func (f *Fanout) Publish(t Tick) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t.LostTicks += f.lost
	for c := range f.list {
		select {
		case c <- t:
			continue
		default:
		}
		mine := t
		select {
		case old := <-c: // drop the oldest
			f.lost++
			mine.carry(old)
		default:
		}
		c <- mine // only Publish sends, under mu, so there is room now
	}
}

// carry adds the events and changes of a dropped tick: values will be measured again, but
// an event is reported only once. For each kind at most as many as a tick may have are
// kept, newest first.
func (t *Tick) carry(lost Tick) {
	none := make([][]workload.Workload, len(lost.Events)-len(lost.Hit)) // events without a known workload
	t.Hit = slices.Concat(lost.Hit, none, t.Hit)
	t.Events = slices.Concat(lost.Events, t.Events)
	if over := len(t.Events) - maxEvents; over > 0 {
		t.Events, t.Hit = t.Events[over:], t.Hit[min(over, len(t.Hit)):]
	}
	t.Changes = newest(lost.Changes, t.Changes)
	t.Episodes = newest(lost.Episodes, t.Episodes)
	t.Tenures = newest(lost.Tenures, t.Tenures)
}

func newest[T any](old, now []T) []T {
	all := slices.Concat(old, now)
	return all[max(0, len(all)-maxEvents):]
}
