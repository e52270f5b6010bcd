//go:build linux

package vendorlib

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A driver that hangs must not hang its caller.
func TestInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		block := make(chan bool)
		if _, ok := InTime(time.Second, func() bool { return <-block }); ok {
			t.Error("InTime waited for a call that hangs")
		}
		close(block)
		if n, ok := InTime(time.Second, func() int { return 7 }); n != 7 || !ok {
			t.Errorf("%d %v", n, ok)
		}
	})
}

// A queued writer would block all later readers, so Lock must not queue.
func TestLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.RWMutex
		mu.RLock()
		failed := make(chan error)
		go func() { failed <- Lock(t.Context(), &mu, time.Second) }()
		synctest.Wait()
		if !mu.TryRLock() {
			t.Fatal("Lock blocks a reader")
		}
		mu.RUnlock()
		if err := <-failed; !errors.Is(err, ErrBusy) {
			t.Errorf("got %v while a call is in progress", err)
		}
		mu.RUnlock()
		if err := Lock(t.Context(), &mu, time.Second); err != nil {
			t.Error(err)
		}
		mu.Unlock()
	})
}
