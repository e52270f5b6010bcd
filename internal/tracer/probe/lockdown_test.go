package probe

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// Catches a refusal that blames the wrong thing.
func TestRefusal(t *testing.T) {
	f := func(v version, lockdown, want string) {
		t.Helper()
		cause := errors.New("permission denied")
		err := refusal(v, parseLockdown([]byte(lockdown)), cause)
		if !strings.Contains(err.Error(), want) || !errors.Is(err, cause) {
			t.Errorf("Linux %v, lockdown %q: %v, want %s", v, lockdown, err, want)
		}
	}
	const locked = "none integrity [confidentiality]\n"
	f(version{5, 10, 0}, locked, "this is Linux 5.10, and 5.15 or later is required")
	f(version{6, 8, 12}, locked, "lockdown=confidentiality")
	f(version{6, 8, 0}, "none [integrity] confidentiality\n", "the kernel refuses the programs: permission denied")
	f(version{}, "", "the kernel refuses the programs")
	f(version{}, "[confidentiality", "the kernel refuses the programs")
}

// Catches a kernel that is locked down and refuses the programs, and a message that blames them.
func TestLockedDown(t *testing.T) {
	text, err := os.ReadFile(lockdownFile)
	if err != nil || parseLockdown(text) != "confidentiality" {
		t.Skip("the kernel is not locked down: make e2e-kernels")
	}
	p, err := Open(Options{})
	if err == nil {
		t.Fatalf("it traces in mode %s", p.Mode())
	}
	if !strings.Contains(err.Error(), "lockdown=confidentiality") {
		t.Error(err)
	}
}
