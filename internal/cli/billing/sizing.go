package billing

import (
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/sizing"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
)

// SizingKind is the report on what workloads asked for against what they used.
const SizingKind = "sizing"

// maxSized bounds the workloads of a table and of a page. CSV and JSON have all.
const maxSized = 200

// Sized is the content of a report on requested against used.
type Sized struct {
	Kind      string    `json:"kind"`
	From      time.Time `json:"from"` // UTC
	To        time.Time `json:"to"`
	PeaksFrom time.Time `json:"peaks_from"` // peaks are from then to the end
	Zone      string    `json:"time_zone"`
	Currency  string    `json:"currency"`
	Simulated string    `json:"simulated"` // all, some, or empty
	// Step is how far apart the moments are at which gpus_most was determined.
	Step      float64         `json:"most_step_seconds"`
	Headroom  float64         `json:"headroom"`  // part of a peak that is added before anything smaller is proposed
	Workloads []SizedWorkload `json:"workloads"` // the largest saving first
	Notes     []string        `json:"notes"`
}

// SizedWorkload is what one workload asked for and used.
type SizedWorkload struct {
	Name    string       `json:"name"`
	Owner   fleet.Owner  `json:"owner"`
	Models  []SizedModel `json:"models"`
	Mean    float64      `json:"gpus_mean"` // held, over the whole period
	Most    float64      `json:"gpus_most"` // at once
	Now     float64      `json:"gpus_now"`  // at the end
	Devices int          `json:"devices"`   // of the instances that hold some at the end, else of the largest
	// Those of devices that were used, and what was used of them. null is not known.
	Used         optional.Float `json:"devices_used"`
	Activity     optional.Float `json:"activity_mean"`
	ActivityPeak optional.Float `json:"activity_peak"`
	MemoryPeak   optional.Float `json:"memory_peak_bytes"` // of the fullest device
	MemorySize   optional.Float `json:"memory_bytes"`      // of that device
	Observed     float64        `json:"observed_seconds"`
	Advice       []SizedAdvice  `json:"advice"`
	Because      string         `json:"because,omitempty"` // why there is no advice
}

// SizedModel is how much of a model was held, on average over the whole period.
type SizedModel struct {
	Model string  `json:"model"`
	Mean  float64 `json:"gpus_mean"`
}

// SizedAdvice is what could be asked for instead.
type SizedAdvice struct {
	Kind    string         `json:"kind"`
	Devices int            `json:"devices"` // to give back, or to exchange
	Enough  int            `json:"enough,omitempty"`
	Model   string         `json:"model,omitempty"`
	Profile string         `json:"profile,omitempty"`
	Memory  optional.Float `json:"memory_bytes,omitzero"` // of what is proposed
	Text    string         `json:"text"`
	PerDay  optional.Float `json:"saves_per_day"` // null: not priced, or nothing is held any more
	Hours   float64        `json:"gpu_hours"`     // of the period that would have been left to others
}

// WriteSized writes a report on requested against used. The bill is that of the period, and d has the notes so far. Notes that the format
// has no place for go to notes.
func WriteSized(ctx context.Context, w, notes io.Writer, format string, store query.Store, prices cost.Prices, facts sizing.Facts, bill *cost.Statement, o cost.Options, d *Report) error {
	f, err := fleet.NewReader(store, fleet.Options{}).At(ctx, bill.To)
	if err != nil {
		return err
	}
	r, err := sizing.Read(ctx, store, bill.Uses(), f, bill.From, bill.To, sizing.Options{MeterOptions: o, Price: prices.Hourly, Facts: facts})
	if err != nil {
		return err
	}
	s := sizedOf(r)
	s.Kind, s.Zone, s.Currency, s.Simulated = SizingKind, d.Zone, prices.Currency, bill.Simulated()
	s.Notes = append(s.Notes, d.Notes...)
	if len(s.Workloads) == 0 {
		s.Notes = append(s.Notes, "The store has no workload in this period.")
	}
	switch format {
	case "csv":
		for _, note := range s.Notes {
			fmt.Fprintln(notes, Plain(note))
		}
		return s.csv(w)
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(s)
	case "html":
		return s.html(w)
	}
	return s.table(w)
}

func sizedOf(r *sizing.Report) *Sized {
	out := &Sized{From: r.From.UTC(), To: r.To.UTC(), PeaksFrom: r.To.Add(-r.Peaks).UTC(), Step: r.Step.Seconds(), Headroom: sizing.Headroom, Workloads: []SizedWorkload{}, Notes: []string{}}
	for i := range r.Workloads {
		w := &r.Workloads[i]
		x := SizedWorkload{
			Name: w.Label(), Owner: w.Owner, Models: []SizedModel{}, Mean: w.Mean, Most: w.Most, Now: w.Now, Devices: w.Devices, Used: w.Used,
			Activity: w.Activity, ActivityPeak: w.ActivityPeak, MemoryPeak: w.MemoryPeak, MemorySize: w.MemorySize,
			Observed: w.Observed.Seconds(), Advice: []SizedAdvice{}, Because: w.Because,
		}
		for _, m := range w.Models {
			x.Models = append(x.Models, SizedModel{m.Name, m.Mean})
		}
		for _, a := range w.Advice {
			x.Advice = append(x.Advice, SizedAdvice{a.Kind, a.Devices, a.Enough, a.Model, a.Profile, a.Memory, a.Text, a.PerDay, a.Hours})
		}
		out.Workloads = append(out.Workloads, x)
	}
	return out
}

// display returns the name of a workload in its cluster, with the ID of a job.
func (w *SizedWorkload) display() string {
	return Plain(fleet.InCluster(strings.TrimSpace(w.Name+" "+w.Owner.Job), w.Owner.Cluster))
}

func (w *SizedWorkload) models() string {
	var names []string
	for _, m := range w.Models {
		names = append(names, cmp.Or(m.Model, "(no model)"))
	}
	return strings.Join(names, ", ")
}

// best returns the advice with the largest saving, and false if there is none.
func (w *SizedWorkload) best() (SizedAdvice, bool) {
	if len(w.Advice) == 0 {
		return SizedAdvice{}, false
	}
	return w.Advice[0], true
}

// sizedNames is how many of the columns are names.
const sizedNames = 4

func sizedHead() []string {
	return []string{"WORKLOAD", "TEAM", "MODEL", "ADVICE", "HELD", "MOST", "NOW", "USED", "BUSY", "PEAK", "MEMORY", "SEEN", "SAVES/DAY"}
}

// row returns the cells of a table.
func (w *SizedWorkload) row() []string {
	advice, perDay := "- "+w.Because, "-"
	if a, ok := w.best(); ok {
		advice = a.Text
		if v, ok := a.PerDay.Get(); ok {
			perDay = strconv.FormatFloat(v, 'f', 2, 64)
		}
	}
	used := "?"
	if n, ok := w.Used.Get(); ok {
		used = strconv.FormatFloat(n, 'f', -1, 64)
	}
	memory := "-"
	if v, ok := w.MemoryPeak.Get(); ok {
		memory = fmt.Sprintf("%.0f GiB", v/(1<<30))
		if size, ok := w.MemorySize.Get(); ok {
			memory = fmt.Sprintf("%.0f of %.0f GiB", v/(1<<30), size/(1<<30))
		}
	}
	return []string{
		w.display(), Plain(cmp.Or(w.Owner.Team, "(none)")), Plain(w.models()), Plain(advice),
		sizedCount(w.Mean), sizedCount(w.Most), sizedCount(w.Now), fmt.Sprintf("%s of %d", used, w.Devices),
		sizedPart(w.Activity), sizedPart(w.ActivityPeak), memory, fmt.Sprintf("%.1f h", w.Observed/3600), perDay,
	}
}

func sizedCount(n float64) string {
	return strconv.FormatFloat(math.Round(n*100)/100, 'f', -1, 64)
}

func sizedPart(v optional.Float) string {
	if f, ok := v.Get(); ok {
		return fmt.Sprintf("%.0f%%", 100*f)
	}
	return "-"
}

// rows returns the cells of the workloads that a table has room for, and how many are left out.
func (d *Sized) rows() (rows [][]string, more int) {
	for i := range d.Workloads[:min(len(d.Workloads), maxSized)] {
		rows = append(rows, d.Workloads[i].row())
	}
	return rows, max(0, len(d.Workloads)-maxSized)
}

// about explains the columns, and what was left out.
func (d *Sized) about(more int) []string {
	out := []string{
		"Held is the mean of the period, most and now are at one moment. The other columns are about the devices held now, or of the largest instance of what has ended.",
		fmt.Sprintf("Busy and peak are of the compute units where the device reports them. Advice adds %.0f %% to peaks since %s; savings are of what is held now.", d.Headroom*100, d.PeaksFrom.Format("2006-01-02 15:04 MST")),
	}
	if more > 0 {
		out = append(out, fmt.Sprintf("%d more workloads with smaller savings: -o csv and -o json have all.", more))
	}
	return append(out, d.Notes...)
}

// report returns what this report has in common with the others.
func (d *Sized) report(notes []string) *Report {
	return &Report{Kind: SizingKind, By: "workload", From: d.From, To: d.To, Zone: d.Zone, Simulated: d.Simulated, Notes: notes}
}

func (d *Sized) table(w io.Writer) error {
	var b strings.Builder
	rows, more := d.rows()
	r := d.report(d.about(more))
	fmt.Fprint(&b, SizingKind+", "+r.period())
	if d.Currency != "" {
		fmt.Fprint(&b, ", ", d.Currency)
	}
	fmt.Fprintln(&b)
	if d.Simulated != "" {
		fmt.Fprintln(&b, r.Warning())
	}
	if len(rows) > 0 {
		fmt.Fprintln(&b)
		printAligned(&b, append([][]string{sizedHead()}, rows...), sizedNames)
	}
	fmt.Fprintln(&b)
	for _, note := range r.Notes {
		fmt.Fprintln(&b, Plain(note))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// html writes a page like that of other reports.
func (d *Sized) html(w io.Writer) error {
	rows, more := d.rows()
	page := htmlPage{Report: d.report(d.about(more))}
	page.Title, page.Period = SizingKind+", "+page.Report.period(), page.Report.period()
	page.Tables = []htmlTable{{"Requested against used", sizedNames, sizedHead(), rows}}
	return page.write(w)
}

// csv writes all digits, one line for each workload and piece of advice.
func (d *Sized) csv(w io.Writer) error {
	rows := [][]string{strings.Fields("workload kind namespace team user cluster job models gpus_mean gpus_most gpus_now devices devices_used activity_mean activity_peak memory_peak_bytes memory_bytes " +
		"observed_seconds advice ask_model ask_profile ask_devices saves_per_day currency gpu_hours because from to peaks_from simulated")}
	exact := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	known := func(v optional.Float) string {
		if f, ok := v.Get(); ok {
			return exact(f)
		}
		return ""
	}
	const second = "2006-01-02T15:04:05Z"
	for i := range d.Workloads {
		x := &d.Workloads[i]
		list := x.Advice
		if len(list) == 0 {
			list = []SizedAdvice{{}}
		}
		for _, a := range list {
			ask, hours := "", ""
			if a.Kind != "" {
				ask, hours = strconv.Itoa(a.Devices), exact(a.Hours)
			}
			if a.Kind == sizing.Fewer || a.Kind == sizing.Release {
				ask = strconv.Itoa(a.Enough)
			}
			rows = append(rows, []string{
				cell(x.Owner.Name), x.Owner.Kind, cell(x.Owner.Namespace), cell(x.Owner.Team), cell(x.Owner.User), cell(x.Owner.Cluster), cell(x.Owner.Job), cell(x.models()),
				exact(x.Mean), exact(x.Most), exact(x.Now), strconv.Itoa(x.Devices), known(x.Used), known(x.Activity), known(x.ActivityPeak), known(x.MemoryPeak), known(x.MemorySize),
				exact(x.Observed), a.Kind, cell(a.Model), cell(a.Profile), ask, known(a.PerDay), d.Currency, hours, x.Because,
				d.From.Format(second), d.To.Format(second), d.PeaksFrom.Format(second), cmp.Or(d.Simulated, "none"),
			})
		}
	}
	return csv.NewWriter(w).WriteAll(rows)
}
