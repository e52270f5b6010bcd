//go:build linux

package cli

import (
	"github.com/spf13/cobra"
)

func newDevices() *cobra.Command {
	var h hardware
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "devices",
		Short: "List the accelerators of this machine and what they do now",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			output := "table"
			if asJSON {
				output = "json"
			}
			return once(cmd.Context(), h.config(), output)
		},
	}
	h.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print everything that was read, as JSON")
	return cmd
}
