package probe

import (
	"errors"
	"fmt"
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

// Catches a kernel that is too old or locked down and refuses the programs, and a message that blames them.
func TestRefusedHere(t *testing.T) {
	var want string
	text, _ := os.ReadFile(lockdownFile) // absent without securityfs
	switch v := kernelVersion(); {
	case v.before(oldest):
		want = fmt.Sprintf("cannot trace: this is Linux %v, and 5.15 or later is required", v)
	case parseLockdown(text) == "confidentiality":
		want = "cannot trace: the kernel is locked down (lockdown=confidentiality)"
	default:
		skip(t, "refusal", errors.New("this kernel does not refuse the programs: make e2e-kernels"))
	}
	for _, mode := range []string{"", ModeSession, ModeMulti, ModePerf} {
		p, err := Open(Options{Mode: mode})
		if err == nil {
			t.Fatalf("it traces in mode %s", p.Mode())
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("mode %q: %v, want %q", mode, err, want)
		}
	}
}
