package hub

import (
	"context"
	"sync"

	"github.com/gpumeter/gpumeter/internal/hub/peer"
)

// turns limits concurrent queries, whichever API they come from. The client is in the context;
// the hub itself is a client too.
type turns struct {
	n  int
	of *peer.Turns

	mu   sync.Mutex
	last int
	ends map[int]func()
}

func newTurns(n int) *turns {
	return &turns{n: n, of: peer.NewTurns(n, ofPeer(n)), ends: map[int]func(){}}
}

// ofPeer returns how many of n turns one client may have.
func ofPeer(n int) int { return n - n/4 }

// GetMaxConcurrent implements promql.QueryTracker.
func (t *turns) GetMaxConcurrent() int { return t.n }

// Insert implements promql.QueryTracker.
func (t *turns) Insert(ctx context.Context, _ string) (int, error) {
	done, err := t.of.Take(ctx, peer.From(ctx))
	if err != nil {
		return 0, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	t.ends[t.last] = done
	return t.last, nil
}

// Delete implements promql.QueryTracker.
func (t *turns) Delete(i int) {
	t.mu.Lock()
	done := t.ends[i]
	delete(t.ends, i)
	t.mu.Unlock()
	done()
}

// Close implements promql.QueryTracker.
func (*turns) Close() error { return nil }
