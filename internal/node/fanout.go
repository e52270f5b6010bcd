package node

import "sync"

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
// up loses its oldest ones; it never slows the clock. cancel closes the channel.
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
		select {
		case <-c: // the oldest makes room
			f.lost++
		default:
		}
		c <- t // only Publish sends, under mu: there is room now
	}
}
