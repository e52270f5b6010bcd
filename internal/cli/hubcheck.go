//go:build linux

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/cli/render"
	"github.com/gpumeter/gpumeter/internal/hub/days"
	"github.com/gpumeter/gpumeter/internal/hub/disk"
)

func newHubCheck() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check [FOLDER]",
		Short: "Verify the store of a hub and list what is in it",
		Long: `Verify the store of a hub and list what is in it.

All samples, events and kept days in FOLDER (default: that of gpumeter hub) are read and all
checksums verified. Nothing is changed, and the hub may be running. The exit code is 1 if something
is damaged that cannot be made again.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("hub check takes one folder, got %d arguments", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := filepath.Join(defaultState(), "hub")
			if len(args) == 1 {
				dir = args[0]
			}
			r, err := checkStore(cmd.Context(), dir)
			if err != nil {
				return err
			}
			if asJSON {
				e := json.NewEncoder(os.Stdout)
				e.SetIndent("", "  ")
				err = e.Encode(r)
			} else {
				err = r.Print(os.Stdout)
			}
			if n := r.Lost(); err == nil && n > 0 {
				return exitError{1, fmt.Errorf("%d parts of the store in %s are damaged", n, dir)}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	return cmd
}

func checkStore(ctx context.Context, dir string) (*render.Store, error) {
	r, err := disk.Check(ctx, dir)
	if err != nil {
		return nil, err
	}
	usage, err := days.Check(ctx, filepath.Join(dir, days.Folder), r.Oldest())
	if err != nil {
		return nil, err
	}
	return &render.Store{Report: r, Days: usage}, nil
}
