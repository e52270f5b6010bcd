//go:build linux

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

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
				err = r.print(os.Stdout)
			}
			if n := r.lost(); err == nil && n > 0 {
				return exitError{1, fmt.Errorf("%d parts of the store in %s are damaged", n, dir)}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	return cmd
}

// storeReport is everything in a store's folder.
type storeReport struct {
	*disk.Report
	Days *days.Report `json:"days"`
}

func checkStore(ctx context.Context, dir string) (*storeReport, error) {
	r, err := disk.Check(ctx, dir)
	if err != nil {
		return nil, err
	}
	usage, err := days.Check(ctx, filepath.Join(dir, days.Folder), r.Oldest())
	if err != nil {
		return nil, err
	}
	return &storeReport{r, usage}, nil
}

// lost returns the number of damaged parts that cannot be made again.
func (r *storeReport) lost() int {
	n := len(r.Problems)
	for i := range r.Days.Damaged {
		if r.Days.Damaged[i].Severity == days.High {
			n++
		}
	}
	return n
}

// print prints the report for people.
func (r *storeReport) print(w io.Writer) error {
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
	fmt.Fprintf(tw, "%s\t%s\t%d\t-\t%s\t\n", days.Folder, span(disk.Range{From: r.Days.From, To: r.Days.To}), r.Days.Files, disk.Bytes(r.Days.Bytes))
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
	printDays(&b, r.Days)
	if len(r.Repairs) > 0 {
		fmt.Fprintf(&b, "\nThe next start of the hub will, with %s free on the disk:\n", disk.Bytes(r.Need))
		for _, s := range r.Repairs {
			fmt.Fprintf(&b, "  %s\n", s)
		}
	}
	switch {
	case r.lost() > 0:
	case len(r.Days.Damaged) > 0:
		b.WriteString("\nEverything else can be read.\n")
	default:
		b.WriteString("\nEverything can be read.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// printDays prints the damage of kept days.
func printDays(w io.Writer, r *days.Report) {
	for _, d := range r.Damaged {
		what := "the usage of the day is lost, at least in part: its samples are missing too"
		if d.Severity == days.Low {
			what = "low severity: the hub makes it again from samples"
		}
		fmt.Fprintf(w, "\nDAMAGED %s (%s)\n  %s\n  %s\n", d.Path, disk.Bytes(d.Bytes), d.Reason, what)
	}
	for _, d := range r.SetAside {
		what := "the usage of the day is lost, at least in part: its samples are missing too"
		switch {
		case d.Remade:
			what = "low severity: the day was made again from samples"
		case d.Severity == days.Low:
			what = "low severity: the hub makes the day again from samples"
		}
		fmt.Fprintf(w, "\nset aside: %s (%s)\n  %s\n", d.Path, disk.Bytes(d.Bytes), what)
	}
}

// span returns the two columns of a range of time.
func span(r disk.Range) string {
	if r.From.IsZero() {
		return "-\t-"
	}
	return stampOf(r.From) + "\t" + stampOf(r.To)
}

func stampOf(t time.Time) string { return t.Format("2006-01-02 15:04:05") }
