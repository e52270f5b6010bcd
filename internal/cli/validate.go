//go:build linux

package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/agent"
)

func newValidate(version string) *cobra.Command {
	var config string
	cmd := &cobra.Command{
		Use:   "validate",
		Short: "Check a configuration file without running it",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := agent.Validate(cmd.Context(), version, config); err != nil {
				return err
			}
			fmt.Println(config + " is valid.")
			return nil
		},
	}
	cmd.Flags().StringVarP(&config, "config", "c", "", "Collector configuration `FILE`")
	_ = cmd.MarkFlagRequired("config")
	return cmd
}
