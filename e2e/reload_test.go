//go:build e2e

package e2e

import "testing"

// Catches a tick, goroutine or file lost over a hundred reloads under load.
func TestReload(t *testing.T) { longer(t, "TestReload", "-reloads=100") }
