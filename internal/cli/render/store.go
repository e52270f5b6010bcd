package render

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpumeter/gpumeter/internal/hub/days"
	"github.com/gpumeter/gpumeter/internal/hub/disk"
)

// Store is everything in the folder of a hub's store.
type Store struct {
	*disk.Report
	Days *days.Report `json:"days"`
}

// Lost returns the number of damaged parts that cannot be made again.
func (r *Store) Lost() int {
	n := len(r.Problems)
	for i := range r.Days.Damaged {
		if r.Days.Damaged[i].Severity == days.High {
			n++
		}
	}
	return n
}

// Print prints the report for people.
func (r *Store) Print(w io.Writer) error {
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
	case r.Lost() > 0:
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
