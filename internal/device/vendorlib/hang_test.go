//go:build linux

package vendorlib

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A driver that hangs must not hang who asks.
func TestInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		block := make(chan bool)
		if _, ok := InTime(time.Second, func() bool { return <-block }); ok {
			t.Error("it waited for what hangs")
		}
		close(block)
		if n, ok := InTime(time.Second, func() int { return 7 }); n != 7 || !ok {
			t.Errorf("%d %v", n, ok)
		}
	})
}

// A writer that queues stops all readers that come after it: Lock must not.
func TestLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.RWMutex
		mu.RLock()
		failed := make(chan error)
		go func() { failed <- Lock(t.Context(), &mu, time.Second) }()
		synctest.Wait()
		if !mu.TryRLock() {
			t.Fatal("a reader waits for a writer")
		}
		mu.RUnlock()
		if err := <-failed; !errors.Is(err, ErrBusy) {
			t.Errorf("%v while a call is in progress", err)
		}
		mu.RUnlock()
		if err := Lock(t.Context(), &mu, time.Second); err != nil {
			t.Error(err)
		}
		mu.Unlock()
	})
}
