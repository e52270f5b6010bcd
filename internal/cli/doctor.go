//go:build linux

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/local"
)

func newDoctor() *cobra.Command {
	var h hardware
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what was found, what is missing and what would mend it",
		Long: `Say what was found, what is missing and what would mend it. Run it as the user and
in the container of the agent: permissions and mounts are what it looks at. The exit
code is 1 if something is broken.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if h.simulate != "" {
				return errors.New("--simulate has no effect here: doctor looks at this machine")
			}
			checks := local.Diagnose(cmd.Context(), h.config())
			if asJSON {
				e := json.NewEncoder(os.Stdout)
				e.SetIndent("", "  ")
				if err := e.Encode(checks); err != nil {
					return err
				}
			} else {
				printChecks(os.Stdout, checks)
			}
			for _, c := range checks {
				if c.State == device.CheckFailed {
					return errors.New("something is broken, see above")
				}
			}
			return nil
		},
	}
	h.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

func printChecks(w io.Writer, checks []device.Check) {
	width := 0
	for _, c := range checks {
		width = max(width, len(c.Subject))
	}
	for _, c := range checks {
		fmt.Fprintf(w, "%-8s %-*s  %s\n", c.State, width, c.Subject, c.Detail)
		if c.Fix != "" {
			fmt.Fprintf(w, "%s  -> %s\n", strings.Repeat(" ", 9+width), c.Fix)
		}
	}
}
