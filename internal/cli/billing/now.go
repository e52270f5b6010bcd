package billing

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/fleet/serving"
	"github.com/gpumeter/gpumeter/internal/optional"
)

// Now is how models are served at the end of a period: rates, latencies and means of devices over a window, and what
// stands at its end. It is what the page shows.
type Now struct {
	At     time.Time `json:"at"` // UTC
	Window int       `json:"window_seconds"`
	Rows   []NowRow  `json:"rows"` // by model and workload
}

// NowRow is what a workload serves of a model, beside what its devices do meanwhile. Unknown is null.
type NowRow struct {
	Model     string   `json:"model"`    // empty if it is unknown
	Workload  string   `json:"workload"` // empty if it is unknown
	Team      string   `json:"team"`
	Cluster   string   `json:"cluster"`
	Providers []string `json:"providers"`
	Engines   int      `json:"engines"`
	Up        int      `json:"engines_up"` // of them, those whose metrics could be read
	Devices   int      `json:"devices"`

	Requests optional.Float            `json:"requests_per_second"`            // finished
	Outcomes map[string]optional.Float `json:"requests_per_second_by_outcome"` // null if unknown
	In       optional.Float            `json:"tokens_in_per_second"`
	Out      optional.Float            `json:"tokens_out_per_second"`
	Running  optional.Float            `json:"requests_running"`
	Waiting  optional.Float            `json:"requests_waiting"`

	TTFT  Percentiles `json:"time_to_first_token_seconds"`
	TPOT  Percentiles `json:"time_per_output_token_seconds"`
	ITL   Percentiles `json:"inter_token_seconds"`
	E2E   Percentiles `json:"request_seconds"`
	Queue Percentiles `json:"queue_seconds"`

	Cache optional.Float `json:"kv_cache_ratio"`
	Hits  optional.Float `json:"prefix_hit_ratio"`

	SM          optional.Float `json:"sm_active_ratio"` // like tensor and utilization a mean over devices
	Tensor      optional.Float `json:"tensor_active_ratio"`
	Utilization optional.Float `json:"utilization_ratio"`
	Memory      optional.Float `json:"memory_used_bytes"` // a sum over devices, like power
	Power       optional.Float `json:"power_watts"`
}

// Percentiles are those of a duration.
type Percentiles struct {
	P50 optional.Float `json:"p50"`
	P95 optional.Float `json:"p95"`
	P99 optional.Float `json:"p99"`
}

// NowOf converts what is served at a moment.
func NowOf(rows []serving.Row, at time.Time, window time.Duration) *Now {
	out := &Now{At: at.UTC(), Window: int(window.Seconds()), Rows: []NowRow{}}
	percents := func(q serving.Quantiles) Percentiles { return Percentiles(q) }
	for i := range rows {
		s := &rows[i]
		r := NowRow{
			Model: s.Model, Team: s.Owner.Team, Cluster: s.Owner.Cluster, Providers: s.Providers, Engines: s.Engines, Up: s.Up, Devices: len(s.Devices),
			In: s.In, Out: s.Out, Running: s.Running, Waiting: s.Waiting,
			TTFT: percents(s.FirstToken), TPOT: percents(s.PerToken), ITL: percents(s.InterToken), E2E: percents(s.Request), Queue: percents(s.Queue),
			Cache: s.Cache, Hits: s.Hits, SM: s.SM, Tensor: s.Tensor, Utilization: s.Utilization, Memory: s.Memory, Power: s.Power,
		}
		if s.Owner.ID != "" {
			r.Workload = s.Owner.Label()
		}
		if s.Finished != nil {
			r.Outcomes = map[string]optional.Float{}
			sum := 0.0
			for _, outcome := range slices.Sorted(maps.Keys(s.Finished)) {
				r.Outcomes[outcome] = optional.Of(s.Finished[outcome])
				sum += s.Finished[outcome]
			}
			r.Requests = optional.Of(sum)
		}
		out.Rows = append(out.Rows, r)
	}
	return out
}

// nowColumn is a column of a table about how models are served.
type nowColumn struct {
	title string
	text  func(*NowRow) string
}

// nowColumns returns the columns of tables.
func nowColumns() []nowColumn {
	number := func(title string, of func(*NowRow) optional.Float, format func(float64) string) nowColumn {
		return nowColumn{title, func(r *NowRow) string {
			v, ok := of(r).Get()
			if !ok {
				return ""
			}
			return format(v)
		}}
	}
	digits := func(v float64) string { return strconv.FormatFloat(v, 'g', 3, 64) }
	rate := func(v float64) string {
		if v >= 100 {
			return strconv.FormatFloat(v, 'f', 0, 64)
		}
		return digits(v)
	}
	whole := func(v float64) string { return strconv.FormatFloat(v, 'f', 0, 64) }
	percent := func(v float64) string { return strconv.FormatFloat(100*v, 'f', 0, 64) + " %" }
	latency := func(title string, of func(*NowRow) Percentiles) nowColumn {
		return nowColumn{title, func(r *NowRow) string {
			var parts []string
			for _, q := range []optional.Float{of(r).P50, of(r).P95, of(r).P99} {
				if v, ok := q.Get(); ok {
					parts = append(parts, digits(v))
				}
			}
			return strings.Join(parts, "/")
		}}
	}
	return []nowColumn{
		{"WORKLOAD", func(r *NowRow) string { return Plain(r.Workload) }},
		{"GPUS", func(r *NowRow) string { return strconv.Itoa(r.Devices) }},
		number("REQ/S", func(r *NowRow) optional.Float { return r.Requests }, rate),
		number("IN/S", func(r *NowRow) optional.Float { return r.In }, rate),
		number("OUT/S", func(r *NowRow) optional.Float { return r.Out }, rate),
		latency("TTFT", func(r *NowRow) Percentiles { return r.TTFT }),
		latency("TPOT", func(r *NowRow) Percentiles {
			if r.TPOT == (Percentiles{}) {
				return r.ITL
			}
			return r.TPOT
		}),
		latency("E2E", func(r *NowRow) Percentiles { return r.E2E }),
		number("RUNNING", func(r *NowRow) optional.Float { return r.Running }, whole),
		number("WAITING", func(r *NowRow) optional.Float { return r.Waiting }, whole),
		number("KV", func(r *NowRow) optional.Float { return r.Cache }, percent),
		number("BUSY", func(r *NowRow) optional.Float { return r.Utilization }, percent),
		number("SM", func(r *NowRow) optional.Float { return r.SM }, percent),
		number("TENSOR", func(r *NowRow) optional.Float { return r.Tensor }, percent),
		number("MEMORY", func(r *NowRow) optional.Float { return r.Memory }, func(v float64) string { return digits(v/(1<<30)) + " GiB" }),
		number("POWER", func(r *NowRow) optional.Float { return r.Power }, func(v float64) string { return whole(v) + " W" }),
	}
}

// title says what the rows are about.
func (n *Now) title(zone string) string {
	z, err := cost.Zone(zone)
	if err != nil {
		z = time.UTC
	}
	return fmt.Sprintf("as served in the %d minutes up to %s; latencies are p50/p95/p99 in seconds", n.Window/60, n.At.In(z).Format("2006-01-02 15:04 MST"))
}

// rows returns the cells, and the name of each row before them.
func (n *Now) rows() [][]string {
	var rows [][]string
	for i := range n.Rows {
		row := []string{Plain(cmp.Or(n.Rows[i].Model, "(none)"))}
		for _, c := range nowColumns() {
			row = append(row, c.text(&n.Rows[i]))
		}
		rows = append(rows, row)
	}
	return rows
}

// print writes the table.
func (n *Now) print(b *strings.Builder, zone string) {
	if len(n.Rows) == 0 {
		return
	}
	head := []string{"MODEL"}
	for _, c := range nowColumns() {
		head = append(head, c.title)
	}
	rows := [][]string{head}
	for _, row := range n.rows() {
		for i := range row {
			row[i] = cmp.Or(row[i], "-")
		}
		rows = append(rows, row)
	}
	fmt.Fprintf(b, "\n%s\n\n", n.title(zone))
	printAligned(b, rows, 2)
}

// NowCSV writes how models are served, with all digits.
func NowCSV(w io.Writer, d *Served) error {
	head := strings.Fields("model workload team cluster engine engines engines_up devices requests_per_second requests_failed_per_second requests_aborted_per_second tokens_in_per_second tokens_out_per_second requests_running requests_waiting")
	for _, name := range []string{"time_to_first_token", "time_per_output_token", "inter_token", "request", "queue"} {
		for _, q := range []string{"p50", "p95", "p99"} {
			head = append(head, name+"_"+q+"_seconds")
		}
	}
	rows := [][]string{append(head, strings.Fields("kv_cache_ratio prefix_hit_ratio sm_active_ratio tensor_active_ratio utilization_ratio memory_used_bytes power_watts at window_seconds simulated")...)}
	for i := range d.Now.Rows {
		r := &d.Now.Rows[i]
		row := []string{cell(r.Model), cell(r.Workload), cell(r.Team), cell(r.Cluster), cell(strings.Join(r.Providers, ",")), strconv.Itoa(r.Engines), strconv.Itoa(r.Up), strconv.Itoa(r.Devices)}
		values := []optional.Float{r.Requests, r.Outcomes["error"], r.Outcomes["abort"], r.In, r.Out, r.Running, r.Waiting}
		for _, q := range []Percentiles{r.TTFT, r.TPOT, r.ITL, r.E2E, r.Queue} {
			values = append(values, q.P50, q.P95, q.P99)
		}
		for _, f := range append(values, r.Cache, r.Hits, r.SM, r.Tensor, r.Utilization, r.Memory, r.Power) {
			text := ""
			if v, ok := f.Get(); ok {
				text = strconv.FormatFloat(v, 'f', -1, 64)
			}
			row = append(row, text)
		}
		rows = append(rows, append(row, d.Now.At.Format("2006-01-02T15:04:05Z"), strconv.Itoa(d.Now.Window), cmp.Or(d.Simulated, "none")))
	}
	return csv.NewWriter(w).WriteAll(rows)
}
