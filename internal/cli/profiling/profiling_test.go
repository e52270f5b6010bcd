//go:build linux

package profiling

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/tracer/inspect"
)

// A flag that is accepted and ignored makes somebody wait for a profile that is another one.
func TestRefused(t *testing.T) {
	t.Parallel()
	f := func(args, want string) {
		t.Helper()
		var p Flags
		cmd := &cobra.Command{SilenceErrors: true, SilenceUsage: true}
		p.Register(cmd)
		cmd.Flags().Bool("json", false, "")
		cmd.RunE = func(cmd *cobra.Command, _ []string) error {
			_, err := p.Run(cmd, nil, &inspect.Choice{}, "", "", nil)
			return err
		}
		cmd.SetArgs(strings.Fields(args))
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
	f("-o x.json", "--output has no effect without --profile")
	f("--rate 5", "--rate has no effect without --profile")
	f("--profile 5s --json -o x.json", "--json has no effect with --profile")
	f("--profile 5s", "--profile needs --output FILE")
	f("--profile 0s -o x.json", "--profile must be above 0 and at most 10m0s, is 0s")
	f("--profile 11m -o x.json", "--profile must be above 0 and at most 10m0s, is 11m0s")
	f("--profile 5s -o x.svg", "the name of the file says no format")
	f("--profile 5s -o x.json --rate 1001", "--rate must be 1 to 1000, is 1001")
}
