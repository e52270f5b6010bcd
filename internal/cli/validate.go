//go:build linux

package cli

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/receiver/selfreceiver"
)

func newValidate(version string) *cobra.Command {
	var config string
	cmd := &cobra.Command{
		Use:   "validate",
		Short: "Check a configuration file without running it",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := validate(cmd.Context(), version, config); err != nil {
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

// validate resolves and checks the file and builds its pipelines, without starting them.
func validate(ctx context.Context, version, config string) error {
	text, err := readConfig(config)
	if err != nil {
		return err
	}
	return validateText(ctx, version, text)
}

func readConfig(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the configuration: %w", err)
	}
	return text, nil
}

func validateText(ctx context.Context, version string, text []byte) error {
	col, err := newCollector(version, fromText(text), nil, nil, &selfreceiver.Meter{}, zap.NewNop())
	if err != nil {
		return err
	}
	return col.DryRun(ctx)
}
