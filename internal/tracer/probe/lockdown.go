package probe

import (
	"bytes"
	"fmt"
)

// lockdownFile has the modes of lockdown(7), the current one in brackets.
const lockdownFile = "/sys/kernel/security/lockdown"

// parseLockdown returns the current mode, empty if it is unknown.
func parseLockdown(text []byte) string {
	_, text, _ = bytes.Cut(text, []byte("["))
	mode, _, ok := bytes.Cut(text, []byte("]"))
	if !ok {
		return ""
	}
	return string(mode)
}

// refusal returns why a kernel refused the programs, as far as can be told.
func refusal(v version, lockdown string, err error) error {
	switch {
	case v.before(oldest):
		return fmt.Errorf("cannot trace: this is Linux %s, and %s or later is required: %w", v, oldest, err)
	case lockdown == "confidentiality":
		return fmt.Errorf("cannot trace: the kernel is locked down (lockdown=confidentiality), so programs may not read its memory: %w", err)
	}
	return fmt.Errorf("cannot trace: the kernel refuses the programs: %w", err)
}
