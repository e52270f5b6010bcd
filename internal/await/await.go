// Package await makes tests wait for an event instead of a time.
//
// A limit of its own would make a test depend on how fast the machine is. The only deadline is
// that of the whole test binary (go test -timeout), and shortly before it a test that still waits
// says what for.
package await

import (
	"fmt"
	"testing"
	"time"
)

// reserve is how long before the deadline a test gives up, so that its reason and its cleanup
// are still seen.
const reserve = 5 * time.Second

// True polls until f returns true. what names the event.
func True(t *testing.T, what string, f func() bool) {
	t.Helper()
	NoError(t, func() error {
		if f() {
			return nil
		}
		return fmt.Errorf("waited in vain for %s", what)
	})
}

// NoError polls until f returns nil. The last error of f is the reason if it never does.
func NoError(t *testing.T, f func() error) {
	t.Helper()
	deadline, limited := t.Deadline()
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if limited && time.Until(deadline) < reserve {
			t.Fatalf("the time of the test is over: %v", err)
		}
		time.Sleep(pause)
	}
}
