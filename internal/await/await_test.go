package await_test

import (
	"errors"
	"testing"

	"github.com/gpumeter/gpumeter/internal/await"
)

// Whoever waits sees each state, and goes on at the first that is right.
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
		t.Errorf("looked %d times, want 6", n)
	}
}
