package rules

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// missed reports whether a rule is about something missing.
func missed(rule string) bool { return rule == MissingNode || rule == MissingDevice }

// presence indexes what reports now. The cluster name arrives late, when the API server
// answers, so it distinguishes two nodes of the same name only if both have a cluster name.
type presence struct {
	devices  map[deviceKey]bool         // keyed without the cluster
	clusters map[string]map[string]bool // clusters by host
	moved    map[deviceKey]bool         // nodes with a reporting device, under any cluster name
	named    map[string]string          // cluster by host, for labels recorded before it was known
	reported map[string]bool            // IDs of devices that some host reports
	slots    map[string]bool            // host and fleet.Slot of devices
}

// elsewhere reports whether a device that its host no longer reports is not missing: another host has it,
// or its host has it under the ID that a newer agent gave it.
func (p *presence) elsewhere(l query.Labels) bool {
	slot := fleet.Slot(l)
	return fleet.Global(l) && p.reported[l[fleet.LabelUUID]] || slot != "" && p.slots[l[fleet.LabelHost]+"\xff"+slot]
}

// thing returns the device that labels identify.
func thing(l query.Labels) deviceKey {
	return deviceKey{l[fleet.LabelCluster], l[fleet.LabelHost], l[fleet.LabelUUID]}
}

func newPresence(present, before []query.Sample, open []Change) *presence {
	p := &presence{map[deviceKey]bool{}, map[string]map[string]bool{}, map[deviceKey]bool{}, map[string]string{}, map[string]bool{}, map[string]bool{}}
	for _, s := range present {
		k := thing(s.Labels)
		p.devices[deviceKey{"", k.host, k.uuid}] = true
		p.reported[k.uuid] = true
		p.slots[k.host+"\xff"+fleet.Slot(s.Labels)] = true
		if p.clusters[k.host] == nil {
			p.clusters[k.host] = map[string]bool{}
		}
		p.clusters[k.host][k.cluster] = true
	}
	for _, s := range before {
		k := thing(s.Labels)
		p.name(k)
		if p.devices[deviceKey{"", k.host, k.uuid}] {
			p.moved[deviceKey{k.cluster, k.host, ""}] = true
		}
	}
	for i := range open {
		p.name(thing(open[i].Labels))
	}
	return p
}

func (p *presence) name(k deviceKey) {
	if old := p.named[k.host]; k.cluster != "" && (old == "" || k.cluster < old) {
		p.named[k.host] = k.cluster
	}
}

// node returns the node of a device.
func (p *presence) node(k deviceKey) deviceKey {
	return deviceKey{cmp.Or(k.cluster, p.named[k.host]), k.host, ""}
}

// about returns the node or device of a finding, independent of whether its cluster was known.
func (p *presence) about(f *Finding) deviceKey {
	k := thing(f.Labels)
	if f.Rule == MissingNode {
		return p.node(k)
	}
	return deviceKey{"", k.host, k.uuid}
}

// sends reports whether a node still reports. A node of the same name in another cluster is a
// different node, unless it has one of the node's devices.
func (p *presence) sends(node deviceKey) bool {
	all := p.clusters[node.host]
	return len(all) > 0 && (node.cluster == "" || all[node.cluster] || all[""] || p.moved[node])
}

// missing finds nodes and devices that reported within the last hour and stopped. A missing
// node is one finding, without its devices. kept are the findings in open that have been
// missing for longer, newest first.
func missing(ctx context.Context, store query.Store, open []Change, at time.Time) (out, kept []Finding, err error) {
	vendor := []string{fleet.LabelVendor} // for fleet.Global
	before, err := store.Instant(ctx, "group "+by(deviceLabels, vendor)+" (present_over_time("+fleet.SeriesUp+"["+query.Duration(memory)+"]))", at)
	if err != nil {
		return nil, nil, err
	}
	present, err := store.Instant(ctx, "group "+by(deviceLabels, vendor)+" ("+fleet.SeriesUp+")", at)
	if err != nil {
		return nil, nil, err
	}
	open = slices.DeleteFunc(slices.Clone(open), func(c Change) bool { return !missed(c.Rule) || at.Sub(c.Since) >= missedFor })
	slices.SortStableFunc(open, func(a, b Change) int { return b.Since.Compare(a.Since) })
	p := newPresence(present, before, open)
	type subject struct {
		rule string
		deviceKey
	}
	told, found := map[subject]query.Labels{}, map[subject]bool{}
	for i := range open {
		told[subject{open[i].Rule, p.about(&open[i].Finding)}] = open[i].Labels
	}
	// Labels arrive late and persist, so the largest label set is the most recent.
	slices.SortStableFunc(before, func(a, b query.Sample) int { return cmp.Compare(len(b.Labels), len(a.Labels)) })
	done, lost := map[deviceKey]bool{}, map[deviceKey]int{} // devices handled; lost devices by node
	left := map[deviceKey]bool{}                            // nodes with a device that is elsewhere
	for _, s := range before {
		k := thing(s.Labels)
		node, device := p.node(k), deviceKey{"", k.host, k.uuid}
		if p.devices[device] || done[deviceKey{node.cluster, k.host, k.uuid}] {
			continue
		}
		done[deviceKey{node.cluster, k.host, k.uuid}] = true // once per device, regardless of its other labels
		if p.elsewhere(s.Labels) {
			left[node] = true
			continue
		}
		f := missingDevice(s.Labels)
		if !p.sends(node) {
			if lost[node]++; lost[node] > 1 {
				continue
			}
			f = missingNode(s.Labels)
		}
		about := subject{f.Rule, p.about(&f)}
		found[about] = true
		if l, ok := told[about]; ok {
			f.Labels = l // keep the reported identity although a label appeared or disappeared
		}
		out = append(out, f)
	}
	for i := range out {
		if out[i].Rule == MissingNode {
			out[i].Value = float64(lost[p.about(&out[i])])
		}
	}
	for i := range open {
		f := &open[i].Finding
		about := subject{f.Rule, p.about(f)}
		back := f.Rule == MissingNode && (p.sends(about.deviceKey) || left[about.deviceKey] && lost[about.deviceKey] == 0) ||
			p.devices[about.deviceKey] || f.Rule == MissingDevice && p.elsewhere(f.Labels)
		if !back && !found[about] && len(kept) < maxFindings {
			found[about] = true
			kept = append(kept, *f)
		}
	}
	return out, kept, nil
}

func missingNode(l query.Labels) Finding {
	return Finding{
		Rule: MissingNode, Severity: "ERROR", Labels: pick(l, nodeLabels...),
		Reason: "node " + nodeOf(l) + " stopped reporting",
		Action: "Check that the node is up and that its agent runs and reaches the hub: run gpumeter doctor on the node.",
	}
}

func missingDevice(l query.Labels) Finding {
	return Finding{
		Rule: MissingDevice, Severity: "ERROR", Labels: pick(l, deviceLabels...),
		Reason: "GPU " + l[fleet.LabelIndex] + " on " + nodeOf(l) + " stopped reporting; the node's other GPUs still report",
		Action: "Check the kernel log for XIDs; a GPU reset or a reboot of the node may bring the GPU back.",
	}
}
