package node

import (
	"slices"
	"sync"

	"github.com/gpumeter/gpumeter/internal/workload"
)

// defaultBacklog is how many ticks a subscriber may fall behind.
const defaultBacklog = 16

// Fanout passes ticks on to whoever subscribed. The zero Fanout is ready for use.
type Fanout struct {
	// Backlog is how many ticks a subscriber may fall behind before it loses the oldest;
	// 0 is a few.
	Backlog int

	mu   sync.Mutex
	list map[chan Tick]struct{}
	lost uint64
}

// Subscribe returns a channel of the ticks from now on. A subscriber that does not keep
// up loses its oldest ones, but for what happened, which the newest has; it never slows the
// clock. cancel closes the channel.
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

// Publish sends t to every subscriber, with what was lost so far added to its count.
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
		case old := <-c: // the oldest makes room
			f.lost++
			mine.carry(old)
		default:
		}
		c <- mine // only Publish sends, under mu: there is room now
	}
}

// carry adds what happened at a tick that is lost: values are measured anew, what began and
// ended is told once. Of each kind at most as much as a tick may have is kept, the newest.
func (t *Tick) carry(lost Tick) {
	none := make([][]workload.Workload, len(lost.Events)-len(lost.Hit)) // those of which nobody is known
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
