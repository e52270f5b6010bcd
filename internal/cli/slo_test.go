//go:build linux

package cli_test

import (
	"strings"
	"testing"
)

// Catches a command that prints no rules, or does not say what is wrong with a file.
func TestSLORules(t *testing.T) {
	t.Parallel()
	f := func(code int, want string, args ...string) {
		t.Helper()
		r := run(t, append([]string{"slo", "rules"}, args...)...)
		if r.code != code || !strings.Contains(r.stdout+r.stderr, want) {
			t.Errorf("%v: %d %s%s, want %q", args, r.code, r.stdout, r.stderr, want)
		}
	}
	f(0, "record: gpumeter_slo_burn_rate", "-f", write(t, "good.yaml", "objectives: [{model: m, errors: 1%}]"))
	f(1, "bad.yaml: line 1: objectives[0].errors: ", "-f", write(t, "bad.yaml", "objectives: [{model: m, errors: 1}]"))
	f(1, "cannot read --file: ", "-f", "/nowhere")
	f(1, "--file is required")
}
