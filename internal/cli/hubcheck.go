//go:build linux

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/hub/disk"
)

func newHubCheck() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check [FOLDER]",
		Short: "Verify the store of a hub and list what is in it",
		Long: `Verify the store of a hub and list what is in it.

All samples and events in FOLDER (default: that of gpumeter hub) are read and all checksums
verified. Nothing is changed, and the hub may be running. The exit code is 1 if something is damaged.`,
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
			r, err := disk.Check(cmd.Context(), dir)
			if err != nil {
				return err
			}
			if asJSON {
				e := json.NewEncoder(os.Stdout)
				e.SetIndent("", "  ")
				err = e.Encode(r)
			} else {
				err = printStore(os.Stdout, r)
			}
			if err == nil && r.Damaged() {
				return exitError{1, fmt.Errorf("%d parts of the store in %s are damaged", len(r.Problems), dir)}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	return cmd
}

// printStore prints the report of a store's folder for people.
func printStore(w io.Writer, r *disk.Report) error {
	state := "no hub uses it"
	if r.InUse {
		state = "in use by a hub"
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "%s: %s, %s free on the disk\n\n", r.Dir, state, disk.Bytes(r.Free))
	fmt.Fprintln(tw, "BLOCK\tFROM (UTC)\tTO\tSERIES\tSAMPLES\tSIZE\tCHECKSUMS")
	for _, b := range r.Blocks {
		verdict := "ok"
		if b.Damage != "" {
			verdict = "DAMAGED"
		} else if b.OutOfOrder {
			verdict = "ok, from out-of-order samples"
		}
		fmt.Fprintf(tw, "%s\t%s\t%d\t%d\t%s\t%s\n", b.ID, span(b.Range), b.Series, b.Samples, disk.Bytes(b.Bytes), verdict)
	}
	fmt.Fprintln(tw, "\nFOLDER\tFROM (UTC)\tTO\tFILES\tSAMPLES OR EVENTS\tSIZE\t")
	for _, f := range append(r.Logs, r.Events) {
		fmt.Fprintf(tw, "%s\t%s\t%d\t%d\t%s\t\n", f.Name, span(f.Range), f.Files, f.Samples+f.Events, disk.Bytes(f.Bytes))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	var b strings.Builder
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "\nDAMAGED %s (%s)\n  %s\n", p.Path, p.Range, p.Reason)
	}
	for _, d := range r.SetAside {
		fmt.Fprintf(&b, "\nset aside on %s: %s (%s, %s)\n  %s\n  now in %s\n", stampOf(d.Time), d.Path, d.Range, disk.Bytes(d.Bytes), d.Reason, d.Aside)
	}
	if len(r.Repairs) > 0 {
		fmt.Fprintf(&b, "\nThe next start of the hub will, with %s free on the disk:\n", disk.Bytes(r.Need))
		for _, s := range r.Repairs {
			fmt.Fprintf(&b, "  %s\n", s)
		}
	}
	if !r.Damaged() {
		b.WriteString("\nEverything can be read.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// span returns the two columns of a range of time.
func span(r disk.Range) string {
	if r.From.IsZero() {
		return "-\t-"
	}
	return stampOf(r.From) + "\t" + stampOf(r.To)
}

func stampOf(t time.Time) string { return t.Format("2006-01-02 15:04:05") }
