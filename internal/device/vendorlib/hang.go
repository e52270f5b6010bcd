//go:build linux

package vendorlib

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrBusy is returned by Lock while a driver call is in progress.
var ErrBusy = errors.New("a driver call is still in progress")

// Lock takes mu for writing without queueing: a queued writer blocks new readers, and one
// reader that hangs in the driver would then block all others. After patience, Lock returns
// ErrBusy.
func Lock(ctx context.Context, mu *sync.RWMutex, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	retry := time.NewTicker(2 * time.Millisecond)
	defer retry.Stop()
	for !mu.TryLock() {
		select {
		case <-ctx.Done():
			return ErrBusy
		case <-retry.C:
		}
	}
	return nil
}

// InTime runs f in a goroutine and returns its result. If the driver hangs, ok is false and
// the goroutine is abandoned.
func InTime[T any](patience time.Duration, f func() T) (result T, ok bool) {
	done := make(chan T, 1)
	go func() { done <- f() }()
	select {
	case result = <-done:
		return result, true
	case <-time.After(patience):
		return result, false
	}
}
