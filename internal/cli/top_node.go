//go:build linux

package cli

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/cli/tui"
	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/health"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
)

var topSeverities = map[health.Severity]tui.Severity{health.Info: tui.Info, health.Warning: tui.Warning, health.Critical: tui.Critical}

// thisMachine is the state of the terminal view that outlives a tick.
type thisMachine struct {
	price   pricing
	history fleet.History
}

// snapshot converts a tick for the terminal view.
func (m *thisMachine) snapshot(t node.Tick) tui.Snapshot {
	s := tui.Snapshot{
		Time: t.Time, From: hostOf(t), Simulated: t.Simulated, Currency: m.price.currency,
		Empty: "No accelerator found. Run gpumeter doctor to see why, or gpumeter demo or gpumeter top --simulate mixed for simulated ones.",
	}
	if t.Paused {
		s.Empty = "Paused: the drivers are released. gpumeter pause --for 0 resumes."
	}
	worst := map[string]tui.Severity{}
	for _, f := range t.Findings {
		of := "machine"
		if f.Device.UUID != "" {
			of = fmt.Sprintf("%s %d", f.Device.Vendor, f.Device.Index)
		}
		severity := topSeverities[f.Severity]
		worst[f.Device.UUID] = max(worst[f.Device.UUID], severity)
		s.Findings = append(s.Findings, tui.Finding{
			Severity: severity, Host: t.Host, UUID: f.Device.UUID, Of: of, Reason: f.Reason, Action: f.Action, Since: f.Since,
		})
	}
	for _, a := range t.Attribution {
		if a.Reason != workload.OK && a.Reason != workload.Absent {
			s.Findings = append(s.Findings, tui.Finding{
				Severity: tui.Warning, Host: t.Host, Of: "workloads", Reason: strings.ReplaceAll(string(a.Reason), "_", " ") + ": " + a.Detail,
				Action: "Run gpumeter doctor for a diagnosis.",
			})
		}
	}
	here := map[string]bool{}
	for i := range t.Readings {
		r := &t.Readings[i]
		d := topDevice(t, r)
		if r.ID.Parent == "" {
			d.Held, d.Idle = m.holding(t.Time, r, here)
		}
		d.Severity = worst[r.ID.UUID]
		switch {
		case !r.Up:
			d.Severity = max(d.Severity, tui.Critical)
		case d.Severity >= tui.Warning && d.State == "ok":
			d.State = d.Severity.String()
		}
		s.Findings = append(s.Findings, uninvited(&d)...)
		if r.ID.Parent == "" {
			charges := chargesOf(t, r, m.price.prices.Hourly)
			d.Cost, d.Lost = fleet.Rate(charges), fleet.HeldRate(charges)
			for i := range d.Owners {
				d.Owners[i].Cost = costOf(charges, d.Owners[i].ID, d.Owners[i].Partition)
			}
		}
		s.Devices = append(s.Devices, d)
	}
	m.history.Forget(func(account string) bool { return here[account] })
	sortFindings(s.Findings)
	return s
}

// holding reports whether workloads hold a device, and for how many seconds none of them has
// used it since this process started. It adds the device's accounts to here.
func (m *thisMachine) holding(at time.Time, r *node.Reading, here map[string]bool) (held bool, idle device.Value) {
	for i := range r.Holders {
		h := &r.Holders[i]
		if h.Ended || h.Allocation <= 0 || h.Kind == workload.Unallocated {
			continue
		}
		held = true
		active, ok := h.Active.Get()
		if !ok {
			continue
		}
		account := r.ID.UUID + "/" + h.Partition + "/" + h.ID
		here[account] = true
		since := m.history.Idle(account, at, active).Seconds()
		if before, ok := idle.Get(); !ok || since < before {
			idle = device.Of(since)
		}
	}
	return held, idle
}

// sortFindings sorts by severity, the worst first.
func sortFindings(list []tui.Finding) {
	slices.SortStableFunc(list, func(a, b tui.Finding) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity), cmp.Compare(a.Host, b.Host), cmp.Compare(a.Of, b.Of))
	})
}

func topDevice(t node.Tick, r *node.Reading) tui.Device {
	d := tui.Device{
		Host: t.Host, Vendor: r.ID.Vendor, Index: r.ID.Index, Model: r.ID.Model, UUID: r.ID.UUID, Profile: r.ID.Profile,
		Up: r.Up, State: shortState(r), Simulated: t.Simulated,
		Utilization: r.Busy.Or(r.Utilization.Compute), SM: r.Profile.SMActive, Memory: r.Memory.Used, MemoryTotal: r.Memory.Total,
		Owners: ownersOf(t, r), More: moreOf(r),
	}
	power := r.Power()
	d.Power, d.PowerLimit, d.Celsius = power.Draw(), power.Enforced(), r.Temperature()
	return d
}

// uninvited returns a finding for each workload that uses a device without an allocation.
func uninvited(d *tui.Device) []tui.Finding {
	var list []tui.Finding
	for _, o := range d.Owners {
		if o.Uninvited && d.Profile == "" {
			list = append(list, tui.Finding{
				Severity: tui.Warning, Host: d.Host, Cluster: d.Cluster, UUID: d.UUID, Of: fmt.Sprintf("%s %d", d.Vendor, d.Index),
				Reason: o.Label + " uses the device without an allocation",
				Action: "Find out who runs the workload, and whether its container is privileged or mounts the device.",
			})
		}
	}
	return list
}

// ownersOf returns the workloads on a device, including its partitions, or on one partition.
func ownersOf(t node.Tick, r *node.Reading) []tui.Owner {
	var list []tui.Owner
	for i := range t.Readings {
		if t.Readings[i].ID.UUID != r.ID.Physical() {
			continue
		}
		for _, h := range t.Readings[i].Holders {
			if h.Ended || h.Kind == workload.Unallocated || r.ID.Parent != "" && h.Partition != r.ID.UUID {
				continue
			}
			o, _ := fleet.OwnerOf(ownerLabels(&h.Workload))
			list = append(list, tui.Owner{
				ID: o.ID, Partition: h.Partition, Kind: h.Kind, Name: h.Name, Label: o.Label(), Team: o.Team,
				Share: h.Allocation, Uninvited: h.Allocation == 0 && h.Kind != workload.Unattributed && h.Kind != workload.Other,
				Utilization: h.Utilization, Memory: h.MemoryUsed, Power: h.Power,
			})
		}
	}
	return list
}

// ownerLabels returns the attributes of a workload keyed by the hub's label names.
func ownerLabels(w *workload.Workload) map[string]string {
	labels := map[string]string{}
	for _, a := range w.Identity() {
		labels[strings.ReplaceAll(a.Key, ".", "_")] = a.Value
	}
	return labels
}

// moreOf returns the details that have no column in the table.
func moreOf(r *node.Reading) []string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	if r.Info.Driver != "" {
		add("driver %s, pci %s, numa %s", r.Info.Driver, r.ID.PCI, r.Info.NUMA)
	}
	if r.Problem != "" {
		add("%s", r.Problem)
	}
	for _, t := range r.Throttles {
		if t.Active && t.Buckets != 0 {
			add("slowed down by %s", t.Cause)
		}
	}
	for _, c := range r.Clocks {
		if f, ok := c.Frequency.Get(); ok && (c.Type == "sm" || c.Type == "memory") {
			add("clock %s %.0f MHz", c.Type, f/1e6)
		}
	}
	for _, e := range r.ECC {
		if n, _ := e.Count.Get(); n > 0 && e.Location == "" {
			add("ecc %s %s %.0f", e.Type, e.Lifetime, n)
		}
	}
	for _, x := range r.XIDs {
		add("xid %d: %d times", x.Code, x.Count)
	}
	for _, p := range r.Processes {
		line := fmt.Sprintf("process %d %s", p.PID, p.Name)
		if b, ok := p.MemoryUsed.Get(); ok {
			line += fmt.Sprintf(", %.1f GiB", b/(1<<30))
		}
		if u, ok := p.Utilization.Get(); ok {
			line += fmt.Sprintf(", %.0f%%", 100*u)
		}
		add("%s", line)
	}
	return lines
}

// labelsOf returns the labels that a price may depend on, keyed by the hub's label names.
func labelsOf(t node.Tick, r *node.Reading) map[string]string {
	labels := map[string]string{
		fleet.LabelHost: t.Host, fleet.LabelModel: r.ID.Model, fleet.LabelVendor: r.ID.Vendor, fleet.LabelUUID: r.ID.UUID,
		fleet.LabelIndex: fmt.Sprint(r.ID.Index),
	}
	for key, value := range t.Resource {
		labels[strings.ReplaceAll(key, ".", "_")] = value
	}
	return labels
}

// chargesOf returns what the parts of a device cost per hour, by the labels that a store would have.
func chargesOf(t node.Tick, r *node.Reading, price fleet.Pricer) []fleet.Charge {
	var parts []fleet.Part
	for i := range r.Holders {
		h := &r.Holders[i]
		if h.Ended {
			continue
		}
		row := labelsOf(t, r)
		maps.Copy(row, ownerLabels(&h.Workload))
		if h.Partition != "" {
			row[fleet.LabelPartition] = h.Partition
		}
		parts = append(parts, fleet.Part{Row: fleet.Row(row), Ratio: h.Allocation})
	}
	if len(parts) == 0 {
		row := labelsOf(t, r)
		row[fleet.LabelKind] = fleet.KindUnallocated
		parts = []fleet.Part{{Row: fleet.Row(row), Ratio: 1}}
	}
	return fleet.Charges(parts, t.Time, r.Power().Draw(), price)
}

// shortState returns the state in one or two words.
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
