//go:build linux

package vendorlib

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrBusy is the error of Lock.
var ErrBusy = errors.New("a driver call is still in progress")

// Lock takes mu for writing without ever queueing for it: a reader that hangs in the driver
// would then stop all others. It gives up with ErrBusy.
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

// InTime returns what f does, unless the driver hangs in it: then f is left to itself.
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
