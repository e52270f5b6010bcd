package await_test

import (
	"errors"
	"testing"

	"github.com/gpumeter/gpumeter/internal/await"
)

// Catches a wait that skips a state or does not stop at the first matching one.
func TestAwait(t *testing.T) {
	n := 0
	await.True(t, "the third look", func() bool { n++; return n == 3 })
	await.NoError(t, func() error {
		if n++; n == 6 {
			return nil
		}
		return errors.New("not yet")
	})
	if n != 6 {
		t.Errorf("polled %d times, want 6", n)
	}
}
