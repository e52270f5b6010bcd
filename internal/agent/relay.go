//go:build linux

package agent

import (
	"sync"

	"github.com/gpumeter/gpumeter/internal/node"
)

// maxHeld is how many ticks are held for the next pipelines before the oldest is lost.
const maxHeld = 256

// relayBacklog is how far a subscriber may fall behind beside what was held for it.
const relayBacklog = 16

// relay passes ticks on to whoever subscribed. While pipelines are replaced it holds
// them back, and hands them to the new pipelines: a reload costs no tick and repeats none.
type relay struct {
	node.Fanout

	lock    sync.Mutex
	holding bool
	held    []node.Tick
	lost    uint64
}

func newRelay() relay { return relay{Fanout: node.Fanout{Backlog: relayBacklog + maxHeld}} }

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

func (r *relay) send(t node.Tick) {
	t.LostTicks += r.lost
	r.Publish(t)
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
