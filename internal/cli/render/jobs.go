//go:build linux

package render

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/scheduler/accounting"
)

// column is a column of the job table.
type column struct {
	name  string
	short string // header in a narrow terminal; empty: name
	right bool   // right-aligned
	least int    // minimum width when truncated; 0: never truncated
}

var jobColumns = []column{
	{"JOB", "", false, 0},
	{"USER", "", false, 8},
	{"ACCOUNT", "", false, 7},
	{"PARTITION", "PART", false, 5},
	{"STATE", "", false, 9},
	{"ELAPSED", "", true, 0},
	{"GPUS", "", true, 0},
	{"GPU-HOURS", "GPU-H", true, 0},
	{"ACTIVE", "", true, 0},
	{"IDLE GPU-H", "IDLE-H", true, 0},
	{"kWh", "", true, 0},
	{"PEAK MEM", "PEAK", true, 0},
	{"NAME", "", false, 8},
}

// jobSums holds the totals of the last line.
type jobSums struct {
	gpuTime                time.Duration
	allocated, active      float64 // of jobs for which both are known
	idle, energy, peak     float64
	anyIdle, anyEnergy     bool
	anyActive, anyPeak     bool
	withGPUs, withoutUsage int
}

// Jobs writes the job table with its totals, then the notes. width is the width of the
// terminal; 0: nothing is truncated.
func Jobs(w io.Writer, list []accounting.Record, notes []string, width int, q accounting.Query) error {
	if len(list) == 0 {
		who := "any user"
		if len(q.Users) > 0 {
			who = strings.Join(q.Users, ", ")
		}
		_, err := fmt.Fprintf(w, "No jobs of %s since %s. Use --since to go back further, or --user all for all users.\n", who, q.From.Format("2006-01-02 15:04"))
		return err
	}
	var s jobSums
	rows := make([][]string, 0, len(list)+2)
	head := make([]string, len(jobColumns))
	for i, c := range jobColumns {
		head[i] = c.name
	}
	rows = append(rows, head)
	for i := range list {
		rows = append(rows, jobRow(&list[i], &s))
	}
	rows = append(rows, s.row(len(list)))
	printRows(w, rows, width)
	for _, note := range notes {
		fmt.Fprintln(w, note)
	}
	if s.withGPUs > s.withoutUsage && s.withoutUsage > 0 && len(notes) == 0 {
		fmt.Fprintf(w, "GPU usage is unknown for %d of %d jobs with GPUs.\n", s.withoutUsage, s.withGPUs)
	}
	return nil
}

func jobRow(r *accounting.Record, s *jobSums) []string {
	gpus, hours := none, none
	if r.GPUs > 0 {
		gpus, hours = fmt.Sprint(r.GPUs), number(r.GPUTime().Hours())
		s.gpuTime += r.GPUTime()
	}
	if r.Start.IsZero() {
		hours = none
	}
	if r.Start.IsZero() && r.Requested > 0 && !r.Ended() {
		gpus = fmt.Sprint(r.Requested) // what the job is waiting for
	}
	active, idle, energy, peak := none, none, none, none
	u := &r.Usage
	if r.Ran() {
		if s.withGPUs++; u.Status != accounting.UsageOK {
			s.withoutUsage++
		}
	}
	if u.Status == accounting.UsageOK {
		if e, ok := u.Efficiency().Get(); ok {
			active = fmt.Sprintf("%.0f%%", 100*e)
			s.allocated, s.active, s.anyActive = s.allocated+u.Allocated, s.active+e*u.Allocated, true
		}
		if v, ok := u.Idle.Get(); ok {
			idle = number(v / 3600)
			s.idle, s.anyIdle = s.idle+v, true
		}
		if v, ok := u.Energy.Get(); ok {
			energy = number(v / 3.6e6)
			s.energy, s.anyEnergy = s.energy+v, true
		}
		if v, ok := u.Peak.Get(); ok {
			peak = gibibytes(v)
			s.peak, s.anyPeak = max(s.peak, v), true
		}
	}
	elapsed := none
	if !r.Start.IsZero() {
		elapsed = clock(r.Elapsed)
	}
	return []string{r.UserID, r.User, r.Account, r.Partition, r.State, elapsed, gpus, hours, active, idle, energy, peak, r.Name}
}

func (s *jobSums) row(jobs int) []string {
	out := []string{fmt.Sprintf("%d jobs", jobs), "", "", "", "", "", "", number(s.gpuTime.Hours()), none, none, none, none, ""}
	if jobs == 1 {
		out[0] = "1 job"
	}
	if s.anyActive && s.allocated > 0 {
		out[8] = fmt.Sprintf("%.0f%%", 100*s.active/s.allocated)
	}
	if s.anyIdle {
		out[9] = number(s.idle / 3600)
	}
	if s.anyEnergy {
		out[10] = number(s.energy / 3.6e6)
	}
	if s.anyPeak {
		out[11] = gibibytes(s.peak)
	}
	return out
}

// printRows aligns the columns, and truncates text until the rows fit, the last column first.
// Truncated text ends with +, as in Slurm's own tables.
func printRows(w io.Writer, rows [][]string, width int) {
	widths := make([]int, len(jobColumns))
	gap := 2
	measure := func() (over int) {
		clear(widths)
		for _, row := range rows {
			for i, cell := range row {
				widths[i] = max(widths[i], utf8.RuneCountInString(cell))
			}
		}
		over = gap*(len(widths)-1) - width
		for _, w := range widths {
			over += w
		}
		return over
	}
	if over := measure(); width > 0 && over > 0 {
		gap = 1
		for i, c := range jobColumns {
			rows[0][i] = cmp.Or(c.short, c.name)
		}
		over = measure()
		for i := len(widths) - 1; i >= 0; i-- {
			if least := jobColumns[i].least; least > 0 && over > 0 && widths[i] > least {
				cut := min(over, widths[i]-least)
				widths[i] -= cut
				over -= cut
			}
		}
	}
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			n := utf8.RuneCountInString(cell)
			if n > widths[i] {
				cell = string([]rune(cell)[:widths[i]-1]) + "+"
				n = widths[i]
			}
			pad := strings.Repeat(" ", widths[i]-n)
			if i > 0 {
				b.WriteString(strings.Repeat(" ", gap))
			}
			if jobColumns[i].right {
				b.WriteString(pad + cell)
			} else {
				b.WriteString(cell + pad)
			}
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

// clock formats a duration as Slurm does: 1-02:03:04.
func clock(d time.Duration) string {
	s := int64(d / time.Second)
	text := fmt.Sprintf("%02d:%02d:%02d", s/3600%24, s/60%60, s%60)
	if days := s / 86400; days > 0 {
		text = fmt.Sprintf("%d-%s", days, text)
	}
	return text
}

// number formats hours and kWh with two decimals. A small value is not shown as zero.
func number(v float64) string {
	switch {
	case v >= 1000:
		return fmt.Sprintf("%.0f", v)
	case v > 0 && v < 0.005:
		return "<0.01"
	}
	return fmt.Sprintf("%.2f", v)
}

func gibibytes(v float64) string { return fmt.Sprintf("%.1f GiB", v/(1<<30)) }

// jobJSON is the JSON form of a job, in seconds, joules and bytes. Unknown values are absent.
type jobJSON struct {
	UID         string     `json:"uid,omitempty"`
	ID          string     `json:"job_id"`
	DisplayID   string     `json:"display_id"`
	Cluster     string     `json:"cluster,omitempty"`
	Name        string     `json:"name,omitempty"`
	User        string     `json:"user,omitempty"`
	Account     string     `json:"account,omitempty"`
	Partition   string     `json:"partition,omitempty"`
	QOS         string     `json:"qos,omitempty"`
	State       string     `json:"state"`
	ExitCode    *int       `json:"exit_code,omitempty"`
	Signal      *int       `json:"signal,omitempty"`
	Submit      *time.Time `json:"submit,omitempty"`
	Eligible    *time.Time `json:"eligible,omitempty"`
	Start       *time.Time `json:"start,omitempty"`
	End         *time.Time `json:"end,omitempty"`
	Wait        *float64   `json:"wait_seconds,omitempty"`
	Elapsed     float64    `json:"elapsed_seconds"`
	Suspended   float64    `json:"suspended_seconds"`
	Nodes       int64      `json:"nodes"`
	NodeList    string     `json:"node_list,omitempty"`
	CPUs        int64      `json:"cpus"`
	GPUs        int64      `json:"gpus"`
	Requested   int64      `json:"gpus_requested"`
	GPUTypes    []string   `json:"gpu_types,omitempty"`
	Shards      int64      `json:"shards,omitempty"`
	GPUSeconds  float64    `json:"gpu_seconds"`
	UsageStatus string     `json:"usage_status,omitempty"`
	Allocated   *float64   `json:"allocated_gpu_seconds,omitempty"`
	Active      *float64   `json:"active_gpu_seconds,omitempty"`
	Idle        *float64   `json:"idle_gpu_seconds,omitempty"`
	Efficiency  *float64   `json:"efficiency,omitempty"`
	Energy      *float64   `json:"energy_joules,omitempty"`
	Peak        *float64   `json:"peak_memory_bytes,omitempty"`
	Unseen      float64    `json:"unseen_gpu_seconds,omitempty"`
}

// JobsJSON writes the jobs as a JSON array.
func JobsJSON(w io.Writer, list []accounting.Record) error {
	out := make([]jobJSON, 0, len(list))
	for i := range list {
		out = append(out, toJSON(&list[i]))
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(out)
}

func toJSON(r *accounting.Record) jobJSON {
	j := jobJSON{
		ID: r.ID, DisplayID: r.UserID, Cluster: r.Cluster, Name: r.Name, User: r.User, Account: r.Account, Partition: r.Partition, QOS: r.QOS,
		State: strings.ToLower(r.State), Elapsed: r.Elapsed.Seconds(), Suspended: r.Suspended.Seconds(), Nodes: r.Nodes, NodeList: r.NodeList, CPUs: r.CPUs,
		GPUs: r.GPUs, Requested: r.Requested, GPUTypes: r.GPUTypes, Shards: r.Shards, GPUSeconds: r.GPUTime().Seconds(), UsageStatus: r.Usage.Status,
		Submit: known(r.Submit), Eligible: known(r.Eligible), Start: known(r.Start), End: known(r.End),
	}
	if r.Ended() {
		j.UID = r.UID()
	}
	if r.Ended() && r.ExitKnown {
		j.ExitCode, j.Signal = &r.Exit, &r.Signal
	}
	if wait, ok := r.Wait(); ok {
		s := wait.Seconds()
		j.Wait = &s
	}
	if r.Usage.Status == accounting.UsageOK {
		j.Allocated = &r.Usage.Allocated
		j.Active, j.Idle, j.Energy, j.Peak = valueOf(r.Usage.Active), valueOf(r.Usage.Idle), valueOf(r.Usage.Energy), valueOf(r.Usage.Peak)
		j.Efficiency, j.Unseen = valueOf(r.Usage.Efficiency()), r.Usage.Unseen
	}
	return j
}

func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func valueOf(m device.Value) *float64 {
	if v, ok := m.Get(); ok {
		return &v
	}
	return nil
}
