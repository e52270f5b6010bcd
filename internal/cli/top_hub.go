//go:build linux

package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/cli/tui"
	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/queue"
	"github.com/gpumeter/gpumeter/internal/natural"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// askStore returns a snapshot of the fleet from a store.
func askStore(ctx context.Context, store query.Store, reader *fleet.Reader, now time.Time, price pricing) (tui.Snapshot, error) {
	f, err := reader.At(ctx, now)
	if err != nil {
		return tui.Snapshot{}, err
	}
	holdings, err := reader.Holdings(ctx, now, "")
	if err != nil {
		return tui.Snapshot{}, err
	}
	detail, err := reader.Detail(ctx, now)
	if err != nil {
		return tui.Snapshot{}, err
	}
	clusters, err := queue.At(ctx, store, now)
	if err != nil {
		return tui.Snapshot{}, err
	}
	s := tui.Snapshot{
		Time: now, Currency: price.currency, Simulated: len(f.Devices) > 0, Queue: queue.TotalsOf(clusters).String(),
		Empty: "The store has no devices: no agent has sent data in the last minutes, or the series have other names.",
	}
	owners := map[string][]fleet.Holder{}
	for _, h := range holdings {
		owners[h.Device] = append(owners[h.Device], h)
	}
	for i := range f.Devices {
		d := &f.Devices[i]
		state := detail.States[d.Key()]
		if state == nil {
			state = &fleet.State{}
		}
		s.Devices = append(s.Devices, storeDevice(&s, d, state, owners[d.Key()]))
		for _, p := range state.Partitions {
			s.Devices = append(s.Devices, storePartition(d, p, owners[d.Key()]))
		}
		s.Simulated = s.Simulated && d.Simulated
	}
	slices.SortStableFunc(s.Devices, func(a, b tui.Device) int {
		return cmp.Or(natural.Compare(a.Host, b.Host), cmp.Compare(a.Vendor, b.Vendor), cmp.Compare(a.Index, b.Index))
	})
	for _, g := range detail.Gaps {
		if g.Reason == string(workload.OK) || g.Reason == string(workload.Absent) {
			continue
		}
		s.Findings = append(s.Findings, tui.Finding{
			Severity: tui.Info, Host: g.Host, Cluster: g.Cluster, Of: "workloads", Reason: g.Source + ": " + strings.ReplaceAll(g.Reason, "_", " "), Action: "Run gpumeter doctor on the node for details.",
		})
	}
	sortFindings(s.Findings)
	return s, nil
}

// storeDevice returns the view of one device, and adds its problems to the findings.
func storeDevice(s *tui.Snapshot, f *fleet.Device, state *fleet.State, owners []fleet.Holder) tui.Device {
	index, _ := f.Index.Get()
	d := tui.Device{
		Host: f.Host, Cluster: f.Cluster, Vendor: f.Vendor, Index: int(index), Model: f.Model, UUID: f.UUID, Up: f.Up, Simulated: f.Simulated,
		Utilization: f.Utilization, SM: state.SM, Memory: f.Memory, MemoryTotal: f.MemoryTotal, Power: f.Power, PowerLimit: state.PowerLimit,
		Celsius: f.Temperature, Cost: f.Rate, Lost: fleet.HeldRate(f.Charges), Held: f.Held(), Idle: f.Idle, Owners: storeOwners(owners, "", f.Charges), Since: f.Since,
	}
	if f.Silent() { // the fleet rules report its node
		d.State, d.Severity, d.Owners = "silent", tui.Info, nil
		return d
	}
	switch {
	case !d.Up:
		d.State, d.Severity = "DOWN", tui.Critical
	case state.NeedsReset:
		d.State = "needs reset"
	case state.ThermalThrottle:
		d.State = "too hot"
	case state.PowerCapped:
		d.State = "power cap"
	default:
		d.State = "ok"
	}
	switch health, judged := f.Health.Get(); {
	case judged && health <= 0:
		d.Severity = tui.Critical
	case judged && health < 1:
		d.Severity = max(d.Severity, tui.Warning)
	}
	if d.Severity >= tui.Warning && d.State == "ok" {
		d.State = d.Severity.String()
	}
	if d.Severity >= tui.Warning {
		s.Findings = append(s.Findings, tui.Finding{
			Severity: d.Severity, Host: d.Host, Cluster: d.Cluster, UUID: d.UUID, Of: fmt.Sprintf("%s %d", d.Vendor, d.Index), Reason: unwell(&d, state),
			Action: "See the page of the device in the hub, or run gpumeter top on " + d.Host + ".",
		})
	}
	if len(state.XIDs) > 0 {
		d.More = append(d.More, "xids so far: "+strings.Join(state.XIDs, ", "))
	}
	s.Findings = append(s.Findings, uninvited(&d)...)
	return d
}

// storePartition returns the view of one partition of a device.
func storePartition(f *fleet.Device, p fleet.Partition, owners []fleet.Holder) tui.Device {
	index, _ := f.Index.Get()
	d := tui.Device{
		Host: f.Host, Cluster: f.Cluster, Vendor: f.Vendor, Index: int(index), Model: f.Model, UUID: p.ID, Profile: cmp.Or(p.Profile, "partition"), Up: p.Up, State: "ok", Simulated: f.Simulated,
		Utilization: p.Utilization, SM: p.SM, Memory: p.Memory, MemoryTotal: p.MemoryTotal, Owners: storeOwners(owners, p.ID, f.Charges),
	}
	if !d.Up {
		d.State, d.Severity = "DOWN", tui.Critical
	}
	return d
}

// clusterOf returns the cluster that distinguishes a workload from others of its name. Holders
// that are not workloads are the same everywhere.
func clusterOf(h *fleet.Holder) string {
	if !fleet.IsWorkload(h.Kind) {
		return ""
	}
	return h.Cluster
}

// storeOwners returns the workloads on a device, or on one partition.
func storeOwners(list []fleet.Holder, partition string, charges []fleet.Charge) []tui.Owner {
	var out []tui.Owner
	for i := range list {
		h := &list[i]
		if partition != "" && h.Partition != partition {
			continue
		}
		share, _ := h.Allocation.Get()
		out = append(out, tui.Owner{
			Kind: h.Kind, Name: h.Name, Label: h.Label(), Cluster: clusterOf(h), Team: h.Team, Share: share, Uninvited: h.Uninvited(),
			Utilization: h.Utilization, Memory: h.Memory, Power: h.Power, Cost: costOf(charges, h.ID, h.Partition),
		})
	}
	slices.SortStableFunc(out, func(a, b tui.Owner) int { return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.Label, b.Label)) })
	return out
}

// costOf returns what a holder's part of a device costs per hour.
func costOf(charges []fleet.Charge, owner, partition string) device.Value {
	var own []fleet.Charge
	for _, c := range charges {
		if c.Owner == owner && c.Partition == partition {
			own = append(own, c)
		}
	}
	if len(own) == 0 && fleet.Rate(charges).OK() {
		return device.Of(0) // use without an allocation is not billed
	}
	return fleet.Rate(own)
}

// unwell returns why a device is unhealthy, as far as its series show.
func unwell(d *tui.Device, state *fleet.State) string {
	var words []string
	for _, r := range []struct {
		is   bool
		text string
	}{
		{!d.Up, "the device does not answer"},
		{state.NeedsReset, "the driver requests a reset of the device"},
		{state.RemapPending, "row remapping is pending"},
		{state.ThermalThrottle, "thermal throttling"},
		{len(state.XIDs) > 0, "the driver reported XIDs"},
	} {
		if r.is {
			words = append(words, r.text)
		}
	}
	if len(words) == 0 {
		return "the agent judges the device " + d.Severity.String()
	}
	return strings.Join(words, ", ")
}
