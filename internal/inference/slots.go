package inference

import "context"

// Slots bound how many pages are parsed at a time: one that is hostile takes fifty times its size meanwhile.
type Slots chan struct{}

// NewSlots returns the slots of an agent. Whoever parses pages shares them.
func NewSlots() Slots { return make(Slots, 2) }

// Use calls f when it is its turn. It returns the error of a context that ends before.
func (s Slots) Use(ctx context.Context, f func()) error {
	select {
	case s <- struct{}{}:
		defer func() { <-s }()
	case <-ctx.Done():
		return ctx.Err()
	}
	f()
	return nil
}
