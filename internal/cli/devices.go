//go:build linux

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/agent"
	"github.com/gpumeter/gpumeter/internal/cli/render"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/node"
)

func newDevices() *cobra.Command {
	var h hardware
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "devices",
		Short: "List the accelerators of this machine and their current state",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			output := "table"
			if asJSON {
				output = "json"
			}
			return printOnce(cmd.Context(), h.config(), output)
		},
	}
	h.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the whole reading as JSON")
	return cmd
}

// outputs are the output formats of a single reading.
var outputs = []string{"table", "json", "prometheus"}

func checkOutput(output string) error {
	if !slices.Contains(outputs, output) {
		return fmt.Errorf("unknown --output %q, must be one of %s", output, strings.Join(outputs, ", "))
	}
	return nil
}

// printOnce reads the devices once and prints them to standard output.
func printOnce(ctx context.Context, cfg local.Config, output string) error {
	t, err := readOnce(ctx, cfg)
	if err != nil {
		return err
	}
	if err := broken(t); err != nil {
		return err
	}
	switch output {
	case "json":
		return printJSON(os.Stdout, t)
	case "prometheus":
		return agent.WritePage(os.Stdout, t)
	}
	return render.Devices(os.Stdout, t)
}

// broken returns why no device could be read, nil if one was or if there is no hardware.
func broken(t node.Tick) error {
	var errs []error
	for _, s := range t.Sources {
		if len(t.Readings) == 0 && s.Problem != "" && s.State != "absent" {
			errs = append(errs, fmt.Errorf("%s: %s: run gpumeter doctor for details", s.Name, s.Problem))
		}
	}
	return errors.Join(errs...)
}

func printJSON(w io.Writer, t node.Tick) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(t)
}

func readOnce(ctx context.Context, cfg local.Config) (node.Tick, error) {
	return local.ReadOnce(ctx, cfg)
}
