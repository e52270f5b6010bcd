//go:build linux

package cli

import (
	"sync"

	"github.com/gpumeter/gpumeter/internal/node"
)

// A subscriber of a relay may fall behind by relayBacklog ticks, and by those that were
// held, before it loses the oldest.
const (
	relayBacklog = 16
	maxHeld      = 256
)

// relay passes ticks on to whoever subscribed. While pipelines are replaced it holds
// them back, and hands them to the new pipelines: a reload costs no tick and repeats none.
type relay struct {
	lock    sync.Mutex
	list    map[chan node.Tick]struct{}
	holding bool
	held    []node.Tick
	lost    uint64
}

// Subscribe implements gpuextension.Feed.
func (r *relay) Subscribe() (ticks <-chan node.Tick, cancel func()) {
	c := make(chan node.Tick, relayBacklog+maxHeld)
	r.lock.Lock()
	defer r.lock.Unlock()
	if r.list == nil {
		r.list = map[chan node.Tick]struct{}{}
	}
	r.list[c] = struct{}{}
	return c, sync.OnceFunc(func() {
		r.lock.Lock()
		defer r.lock.Unlock()
		delete(r.list, c)
		close(c)
	})
}

func (r *relay) publish(t node.Tick) {
	r.lock.Lock()
	defer r.lock.Unlock()
	if !r.holding {
		r.send(t)
		return
	}
	if len(r.held) == maxHeld {
		r.held = r.held[1:]
		r.lost++
	}
	r.held = append(r.held, t)
}

// send sends t to all. A subscriber that does not keep up never slows the others.
func (r *relay) send(t node.Tick) {
	t.LostTicks += r.lost
	for c := range r.list {
		select {
		case c <- t:
			continue
		default:
		}
		select {
		case <-c: // the oldest makes room
			r.lost++
		default:
		}
		c <- t // only send sends, under lock: there is room now
	}
}

// hold keeps ticks back from now on.
func (r *relay) hold() {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.holding = true
}

// release sends what was held, and from now on at once.
func (r *relay) release() {
	r.lock.Lock()
	defer r.lock.Unlock()
	for _, t := range r.held {
		r.send(t)
	}
	r.holding, r.held = false, nil
}
