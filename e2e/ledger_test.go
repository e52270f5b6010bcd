//go:build e2e

package e2e

import (
	"strings"
	"testing"
)

// longer runs a test of the agent with a setting that takes too long for daily use, and shows its output.
func longer(t *testing.T, test, setting string) {
	t.Helper()
	out := command(t, "..", "go", "test", "-count=1", "-v", "-run", "^"+test+"$", "./internal/cli", "-args", setting)
	if strings.Contains(out, "--- SKIP: "+test) {
		skip(t, "gcc", out)
	}
	if !strings.Contains(out, "--- PASS: "+test) {
		t.Errorf("%s has not run", test)
	}
	t.Log(out)
}

// Catches an accepted tick lost while the backend is unavailable for a minute and ten agents are killed.
func TestLedgerAway(t *testing.T) {
	t.Parallel() // it sleeps
	longer(t, "TestLedgerAway", "-away=1m")
}

// The same with a slow backend.
func TestLedgerSlow(t *testing.T) {
	t.Parallel()
	longer(t, "TestLedgerSlow", "-away=1m")
}
