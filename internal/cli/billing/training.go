package billing

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/training"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
)

// TrainingKind is the report on workloads that train.
const TrainingKind = "training"

// Trained is the content of a report on training.
type Trained struct {
	Kind      string         `json:"kind"`
	From      time.Time      `json:"from"` // UTC
	To        time.Time      `json:"to"`
	Zone      string         `json:"time_zone"`
	Simulated string         `json:"simulated"` // all, some, or empty
	Workloads []training.Row `json:"workloads"` // the most allocated time first
	Notes     []string       `json:"notes"`
}

// WriteTraining writes a report on training. bill has the allocated time of the period, and d its notes.
func WriteTraining(ctx context.Context, w, notes io.Writer, format string, store query.Store, bill *cost.Statement, o cost.Options, d *Report) error {
	allocated := map[string]fleet.Seconds{}
	for i := range bill.Rows {
		if owner, ok := fleet.OwnerOf(bill.Rows[i].Labels); ok {
			allocated[owner.ID] += bill.Rows[i].Allocated()
		}
	}
	var match []string
	for _, label := range slices.Sorted(maps.Keys(o.Match)) {
		match = append(match, fleet.Equals(label, o.Match[label]))
	}
	rows, err := training.Read(ctx, store, bill.From, bill.To, allocated, match...)
	if err != nil {
		return err
	}
	slices.SortFunc(rows, training.Compare)
	t := &Trained{Kind: TrainingKind, From: d.From, To: d.To, Zone: d.Zone, Simulated: bill.Simulated(), Workloads: rows, Notes: slices.Clone(d.Notes)}
	if len(rows) == 0 {
		t.Notes = append(t.Notes, "The store has no workload that trains in this period. Agents see training with --trace, and take what it reports with --otlp-receiver.")
	}
	return t.write(w, notes, format)
}

func (t *Trained) write(w, notes io.Writer, format string) error {
	switch format {
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(t)
	case "csv":
		for _, note := range t.Notes {
			fmt.Fprintln(notes, Plain(note))
		}
		return t.csv(w)
	case "table":
		return t.table(w)
	}
	return errors.New("a report on training is a table, csv or json")
}

func (t *Trained) csv(w io.Writer) error {
	c := csv.NewWriter(w)
	head := []string{"workload", "kind", "team", "steps", "step_seconds", "mfu", "mfu_estimated", "tokens", "samples", "loss", "gradient_norm", "checkpoints", "checkpoint_bytes", "restarts", "goodput", "allocated_seconds"}
	for _, p := range training.Divide(0, nil, 0).Parts {
		head = append(head, p.Name+"_seconds")
	}
	_ = c.Write(head) // Error has it
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	maybe := func(f optional.Float) string {
		if v, ok := f.Get(); ok {
			return number(v)
		}
		return ""
	}
	for i := range t.Workloads {
		r := &t.Workloads[i]
		row := []string{
			Plain(r.Owner.Label()), r.Owner.Kind, Plain(r.Owner.Team), number(r.Steps), maybe(r.StepTime), maybe(r.MFU), strconv.FormatBool(r.Estimated), maybe(r.Tokens), maybe(r.Samples),
			maybe(r.Loss), maybe(r.Gradient), number(r.Checkpoints), number(r.CheckpointBytes), number(r.Restarts), maybe(r.Waterfall.Goodput()), number(r.Waterfall.Allocated.Float()),
		}
		for _, p := range r.Waterfall.Parts {
			row = append(row, number(p.Time.Float()))
		}
		_ = c.Write(row)
	}
	c.Flush()
	return c.Error()
}

func (t *Trained) table(w io.Writer) error {
	page := &Report{Kind: TrainingKind, By: "workload", From: t.From, To: t.To, Zone: t.Zone}
	var b strings.Builder
	fmt.Fprintln(&b, TrainingKind+", "+page.period())
	out := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	maybe := func(f optional.Float, format func(float64) string) string {
		if v, ok := f.Get(); ok {
			return format(v)
		}
		return "-"
	}
	percent := func(v float64) string { return strconv.FormatFloat(100*v, 'f', 1, 64) + " %" }
	for i := range t.Workloads {
		r := &t.Workloads[i]
		fmt.Fprintf(&b, "\n%s\n", Plain(r.Owner.Label()))
		fmt.Fprintf(out, "  steps\t%.0f\tstep\t%s\n", r.Steps, maybe(r.StepTime, func(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) + " s" }))
		mfu := maybe(r.MFU, percent)
		if r.Estimated {
			mfu += " (estimate)"
		}
		fmt.Fprintf(out, "  goodput\t%s\tMFU\t%s\n", maybe(r.Waterfall.Goodput(), percent), mfu)
		fmt.Fprintf(out, "  checkpoints\t%.0f\tbytes\t%.4g\n", r.Checkpoints, r.CheckpointBytes)
		fmt.Fprintf(out, "  restarts\t%.0f\tloss\t%s\n", r.Restarts, maybe(r.Loss, func(v float64) string { return strconv.FormatFloat(v, 'g', 5, 64) }))
		fmt.Fprintf(out, "  allocated\t%s h\t\t\n", hoursOf(r.Waterfall.Allocated))
		for _, p := range r.Waterfall.Parts {
			if p.Time > 0 {
				fmt.Fprintf(out, "    %s\t%s h\t%s\t\n", words[p.Name], hoursOf(p.Time), percent(float64(p.Time)/float64(r.Waterfall.Allocated)))
			}
		}
		_ = out.Flush() // to memory
	}
	for _, note := range t.Notes {
		fmt.Fprintln(&b, "\n"+Plain(note))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// words are what the parts of a waterfall are called.
var words = map[string]string{
	training.Stepping: "stepping", training.Data: "waits for data", training.Collective: "waits for ranks", training.Checkpoint: "checkpoints", training.Other: "other work",
	training.Starting: "starting", training.Lost: "lost to restarts", training.Idle: "idle",
}

func hoursOf(s fleet.Seconds) string { return strconv.FormatFloat(s.Float()/3600, 'f', 2, 64) }
