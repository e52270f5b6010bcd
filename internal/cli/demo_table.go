//go:build linux

package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// printShortTable prints one line a device, for people who see gpumeter for the first time:
// what they know, and no wider than a terminal of 100 columns.
func printShortTable(w io.Writer, t node.Tick) error {
	if t.Simulated {
		fmt.Fprintln(w, "SIMULATED devices: none of these numbers are real.")
	}
	if len(t.Readings) == 0 {
		fmt.Fprintln(w, "No accelerator found. gpumeter doctor says what was looked for.")
		return nil
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "GPU\tMODEL\tUTIL\tGIB USED\tWATTS\tTEMP\tWORKLOAD\tSTATE")
	absent := false
	for i := range t.Readings {
		r := &t.Readings[i]
		row := append(shortRow(r), shortWorkload(t, r), shortState(r))
		absent = absent || slices.Contains(row, none)
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if absent {
		fmt.Fprintln(w, none+" is what the driver of a device does not tell, or tells of its parts.")
	}
	return nil
}

func shortRow(r *node.Reading) []string {
	gpu, model := fmt.Sprint(r.ID.Index), shortModel(r.ID)
	if r.ID.Parent != "" {
		gpu, model = "", "  "+r.ID.Profile
	}
	used, watts := none, none
	if x, ok := r.Memory.Used.Get(); ok {
		used = fmt.Sprintf("%.0f", x/(1<<30))
	}
	if x, ok := r.Memory.Total.Get(); ok {
		used += fmt.Sprintf("/%.0f", x/(1<<30))
	}
	if len(r.Power) > 0 {
		if x, ok := r.Power[0].Draw().Get(); ok {
			watts = fmt.Sprintf("%.0f", x)
			if limit, ok := r.Power[0].Enforced().Get(); ok {
				watts += fmt.Sprintf("/%.0f", limit)
			}
		} else if x, ok := r.Power[0].Utilization.Get(); ok {
			watts = fmt.Sprintf("%.0f%%", 100*x)
		}
	}
	return []string{gpu, model, percentage(r.Utilization.Compute.Or(r.Profile.SMActive)), used, watts, temperature(r.Temperatures)}
}

// shortModel returns the name of a product without the words that its vendor adds to all.
func shortModel(id device.ID) string {
	return cut(strings.NewReplacer("Data Center GPU ", "", "Blackhole ", "", "Wormhole ", "", " 80GB HBM3", "").Replace(id.Model), 22)
}

// cut returns at most n characters of s.
func cut(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// shortWorkload names who has the device by what their users call it, not by pod.
func shortWorkload(t node.Tick, r *node.Reading) string {
	var words []string
	for i := range t.Readings {
		if t.Readings[i].ID.UUID != r.ID.Physical() {
			continue
		}
		for _, h := range t.Readings[i].Holders {
			if h.Ended || h.Kind == workload.Unallocated || h.Partition != partitionOf(r) {
				continue
			}
			name := h.Name
			if ns := h.Attributes["k8s.namespace.name"]; ns != "" && name != "" {
				name = ns + "/" + name
			}
			if name == "" {
				name = h.Kind
			}
			words = append(words, name)
		}
	}
	if len(words) == 0 {
		return none
	}
	return cut(strings.Join(words, ", "), 28)
}

// partitionOf returns the UUID of a partition, and of a whole device nothing.
func partitionOf(r *node.Reading) string {
	if r.ID.Parent != "" {
		return r.ID.UUID
	}
	return ""
}

// shortState says in a word or two what deserves attention.
func shortState(r *node.Reading) string {
	action, _ := r.RecoveryAction.Get()
	throttled := func(b device.Buckets) bool { return r.Throttled(b) == device.Of(1) }
	switch {
	case !r.Up:
		return "DOWN"
	case action > 0:
		return "needs reset"
	case throttled(device.BucketThermal):
		return "too hot"
	case throttled(device.BucketPower):
		return "power cap"
	case throttled(device.BucketSW | device.BucketHW):
		return "throttled"
	}
	return "ok"
}
