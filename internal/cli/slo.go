//go:build linux

package cli

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/slo"
)

func newSLO() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "slo",
		Short: "Work with service level objectives for inference",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSLORules())
	return cmd
}

func newSLORules() *cobra.Command {
	file := ""
	cmd := &cobra.Command{
		Use:   "rules --file FILE",
		Short: "Print the burn rates of objectives as recording rules for Prometheus",
		Long: `Print the burn rates of objectives as recording rules for Prometheus 3.4 or later.

A hub judges the objectives itself, with --objectives FILE, and needs no rules. Availability is
not in the rules.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return errors.New("--file is required")
			}
			text, err := os.ReadFile(file)
			if err != nil {
				return fmt.Errorf("cannot read --file: %w", err)
			}
			f, err := slo.Parse(text)
			if err != nil {
				return fmt.Errorf("--file %s: %w", file, err)
			}
			rules, err := f.RecordingRules()
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(rules)
			return err
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "`FILE` with service level objectives for inference, as for --objectives of gpumeter hub")
	return cmd
}
