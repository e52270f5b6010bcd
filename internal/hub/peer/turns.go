package peer

import (
	"context"
	"slices"
	"sync"
)

// Turns limits concurrent work, in total and per peer. A free turn goes to the waiting peer with
// the fewest turns, first come first served among equals. It is safe for concurrent use.
type Turns struct {
	each int

	mu      sync.Mutex
	free    int
	held    map[string]int
	waiting []*waiter // oldest first
}

type waiter struct {
	peer string
	turn chan struct{} // closed when the waiter gets its turn
}

type key struct{}

// With returns a context for work on behalf of a peer.
func With(ctx context.Context, peer string) context.Context {
	return context.WithValue(ctx, key{}, peer)
}

// From returns the peer of a context, "" for work on nobody's behalf.
func From(ctx context.Context) string {
	peer, _ := ctx.Value(key{}).(string)
	return peer
}

// NewTurns returns n turns, of which one peer may hold each at a time.
func NewTurns(n, each int) *Turns {
	return &Turns{free: n, each: max(1, min(n, each)), held: map[string]int{}}
}

// Take waits for a turn of a peer. done ends the turn; further calls have no effect.
func (t *Turns) Take(ctx context.Context, peer string) (done func(), err error) {
	w := &waiter{peer: peer, turn: make(chan struct{})}
	t.mu.Lock()
	t.waiting = append(t.waiting, w)
	t.next()
	t.mu.Unlock()
	select {
	case <-w.turn:
		return sync.OnceFunc(func() { t.end(peer) }), nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.waiting, w); i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
		return nil, ctx.Err()
	}
	// The turn came at the same moment.
	return sync.OnceFunc(func() { t.end(peer) }), nil
}

func (t *Turns) end(peer string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free++
	if t.held[peer]--; t.held[peer] == 0 {
		delete(t.held, peer)
	}
	t.next()
}

// next gives free turns to waiting peers.
func (t *Turns) next() {
	for t.free > 0 {
		best := -1
		for i, w := range t.waiting {
			if n := t.held[w.peer]; n < t.each && (best < 0 || n < t.held[t.waiting[best].peer]) {
				best = i
			}
		}
		if best < 0 {
			return
		}
		w := t.waiting[best]
		t.waiting = slices.Delete(t.waiting, best, best+1)
		t.free--
		t.held[w.peer]++
		close(w.turn)
	}
}
