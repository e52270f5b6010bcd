//go:build linux

package render

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/health"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Devices writes a table with one line per device. UUIDs come last, where a narrow terminal
// wraps them.
func Devices(w io.Writer, t node.Tick) error {
	if t.Simulated {
		fmt.Fprintln(w, "SIMULATED devices: none of these numbers are real.")
	}
	if len(t.Readings) == 0 {
		fmt.Fprintln(w, "No accelerator found. Run gpumeter doctor to see why, or gpumeter demo for simulated ones.")
		return nil
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	owned := t.Attribution != nil
	head := []string{"GPU", "MODEL", "UTIL", "SM", "TENSOR", "MEMORY", "POWER", "TEMP"}
	if owned {
		head = append(head, "WORKLOAD")
	}
	head = append(head, "STATE", "UUID")
	fmt.Fprintln(tw, strings.Join(head, "\t"))
	for i := range t.Readings {
		r := &t.Readings[i]
		row := tableRow(r)
		if owned {
			row = append(row, workloadsOf(t, r))
		}
		row = append(row, state(r, t.Findings), r.ID.UUID)
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	printFindings(w, t.Findings)
	for _, s := range t.Attribution {
		if s.Reason != workload.OK && s.Reason != workload.Absent {
			fmt.Fprintf(w, "Workloads by %s: %s: %s.\n", strings.ReplaceAll(s.Source, "_", " "), strings.ReplaceAll(string(s.Reason), "_", " "), s.Detail)
		}
	}
	return nil
}

// workloadsOf returns the workloads that hold a device or a partition, with their shares.
func workloadsOf(t node.Tick, r *node.Reading) string {
	partition := ""
	if r.ID.Parent != "" {
		partition = r.ID.UUID
	}
	cut := partition == "" && slices.ContainsFunc(t.Readings, func(o node.Reading) bool { return o.ID.Parent == r.ID.UUID })
	var words []string
	for i := range t.Readings {
		for _, h := range t.Readings[i].Holders {
			if t.Readings[i].ID.UUID != r.ID.Physical() || h.Ended || h.Partition != partition {
				continue
			}
			word := workloadName(h.Workload)
			if partition == "" && h.Allocation > 0 && (h.Allocation < 1 || cut) {
				word += fmt.Sprintf(" %.0f%%", 100*h.Allocation)
			}
			if h.Stale {
				word += " (stale)"
			}
			words = append(words, word)
		}
	}
	switch {
	case len(words) > 0:
		return strings.Join(words, ", ")
	case partition != "":
		return workload.Unallocated
	}
	return none
}

// workloadName returns the name by which users know a workload.
func workloadName(w workload.Workload) string {
	if pod := w.Attributes["k8s.pod.name"]; pod != "" {
		return w.Attributes["k8s.namespace.name"] + "/" + pod
	}
	if w.Name == "" {
		return w.Kind
	}
	return w.Kind + " " + w.Name
}

func tableRow(r *node.Reading) []string {
	gpu, model := fmt.Sprint(r.ID.Index), r.ID.Model
	if r.ID.Parent != "" {
		gpu, model = "", "  "+r.ID.Profile
	}
	var tensor device.Value
	for _, p := range r.Profile.Pipes {
		if p.Name == "tensor" {
			tensor = p.Active
		}
	}
	return []string{
		gpu, model, percentage(r.Busy.Or(r.Utilization.Compute)), percentage(r.Profile.SMActive), percentage(tensor),
		memory(r.Memory), power(r.Power()), temperature(r.Temperature()),
	}
}

// none stands for an absent value, which is not zero.
const none = "-"

func percentage(v device.Value) string {
	if x, ok := v.Get(); ok {
		return fmt.Sprintf("%.0f%%", x*100)
	}
	return none
}

func memory(m device.Memory) string {
	const gib = 1 << 30
	used, ok := m.Used.Get()
	total, whole := m.Total.Get()
	switch {
	case ok && whole:
		return fmt.Sprintf("%.1f/%.0f GiB", used/gib, total/gib)
	case ok:
		return fmt.Sprintf("%.1f GiB", used/gib)
	case whole:
		return fmt.Sprintf("%s/%.0f GiB", none, total/gib)
	}
	return none
}

func power(p device.Power) string {
	draw, ok := p.Draw().Get()
	if !ok {
		return percentage(p.Utilization)
	}
	if limit, ok := p.Enforced().Get(); ok {
		return fmt.Sprintf("%.0f/%.0f W", draw, limit)
	}
	return fmt.Sprintf("%.0f W", draw)
}

func temperature(celsius device.Value) string {
	if v, ok := celsius.Get(); ok {
		return fmt.Sprintf("%.0f C", v)
	}
	return none
}

// printFindings writes one line per finding, with the recommended action.
func printFindings(w io.Writer, findings []health.Finding) {
	for _, f := range findings {
		if f.Severity < health.Warning {
			continue
		}
		of := "The machine"
		if f.Device.UUID != "" {
			of = fmt.Sprintf("%s %d", strings.ToUpper(f.Device.Vendor), f.Device.Index)
		}
		fmt.Fprintf(w, "%s %s: %s. %s\n", of, f.Severity, f.Reason, f.Action)
	}
}

// state returns the state of a device in a few words.
func state(r *node.Reading, findings []health.Finding) string {
	if !r.Up {
		return "DOWN: " + r.Problem
	}
	var words []string
	// Findings are sorted by severity, and printed in full below the table.
	worst := slices.IndexFunc(findings, func(f health.Finding) bool { return f.Device.UUID == r.ID.UUID })
	if worst >= 0 && findings[worst].Severity >= health.Warning {
		words = append(words, strings.ToUpper(findings[worst].Severity.String()))
	}
	if on, _ := r.Modes.MIG.Get(); on == 1 {
		words = append(words, "MIG")
	}
	for _, t := range r.Throttles {
		if t.Active && t.Buckets != 0 {
			words = append(words, "throttled: "+t.Cause)
		}
	}
	if len(words) == 0 {
		return "ok"
	}
	return strings.Join(words, ", ")
}
