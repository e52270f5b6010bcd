// Package await makes tests wait for events instead of fixed times.
//
// A timeout per wait would make a test depend on the speed of the machine. The only deadline is
// that of the test binary (go test -timeout); shortly before it, a test that still waits fails
// and names the event.
package await

import (
	"fmt"
	"testing"
	"time"
)

// reserve is how long before the deadline a test gives up, so that its reason and its cleanup
// output still appear.
const reserve = 5 * time.Second

// True polls until f returns true. what names the event.
func True(t *testing.T, what string, f func() bool) {
	t.Helper()
	NoError(t, func() error {
		if f() {
			return nil
		}
		return fmt.Errorf("still waiting for %s", what)
	})
}

// NoError polls until f returns nil. If f never does, the test fails with its last error.
func NoError(t *testing.T, f func() error) {
	t.Helper()
	deadline, limited := t.Deadline()
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if limited && time.Until(deadline) < reserve {
			t.Fatalf("the test binary is about to time out: %v", err)
		}
		time.Sleep(pause)
	}
}
