//go:build linux

package agent

import (
	"sync"

	"github.com/gpumeter/gpumeter/internal/node"
)

// maxHeld is the maximum number of held ticks. Beyond it the oldest is dropped.
const maxHeld = 256

// relayBacklog is the number of ticks a subscriber may fall behind, not counting held ticks.
const relayBacklog = 16

// relay forwards ticks to its subscribers. While the pipelines are replaced it holds ticks for
// the new ones, so that a reload neither loses nor repeats a tick.
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

// hold starts to hold ticks.
func (r *relay) hold() {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.holding = true
}

// release sends the held ticks and stops holding.
func (r *relay) release() {
	r.lock.Lock()
	defer r.lock.Unlock()
	for _, t := range r.held {
		r.send(t)
	}
	r.holding, r.held = false, nil
}
