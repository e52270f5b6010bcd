//go:build e2e

package e2e

import "testing"

// A hundred reloads under load cost no tick, no goroutine and no file.
func TestReload(t *testing.T) { longer(t, "TestReload", "-reloads=100") }
