package rules

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// missed reports whether a rule finds what is missing.
func missed(rule string) bool { return rule == MissingNode || rule == MissingDevice }

// presence is what sends now. The name of a cluster comes late, when the API server
// answers, so that it tells two nodes of one name apart only if both have one.
type presence struct {
	devices  map[deviceKey]bool         // without their clusters
	clusters map[string]map[string]bool // by host
	moved    map[deviceKey]bool         // nodes of which a device sends, whatever its cluster is now
	named    map[string]string          // a cluster by host, for labels from before it was known
}

// thing is what labels are about.
func thing(l query.Labels) deviceKey {
	return deviceKey{l[fleet.LabelCluster], l[fleet.LabelHost], l[fleet.LabelUUID]}
}

func newPresence(present, before []query.Sample, open []Change) *presence {
	p := &presence{map[deviceKey]bool{}, map[string]map[string]bool{}, map[deviceKey]bool{}, map[string]string{}}
	for _, s := range present {
		k := thing(s.Labels)
		p.devices[deviceKey{"", k.host, k.uuid}] = true
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

// about returns the node or device of a finding, the same whether its cluster was known.
func (p *presence) about(f *Finding) deviceKey {
	k := thing(f.Labels)
	if f.Rule == MissingNode {
		return p.node(k)
	}
	return deviceKey{"", k.host, k.uuid}
}

// sends reports whether a node sends anything. One of its name in another cluster is
// another node, unless it has one of its devices.
func (p *presence) sends(node deviceKey) bool {
	all := p.clusters[node.host]
	return len(all) > 0 && (node.cluster == "" || all[node.cluster] || all[""] || p.moved[node])
}

// missing finds nodes and devices that were there in the last hour and are no more. A
// device of a node that is missing is not named. kept are those of open that have been
// missing for longer, the newest first.
func missing(ctx context.Context, store query.Store, open []Change, at time.Time) (out, kept []Finding, err error) {
	before, err := store.Instant(ctx, "group "+by(deviceLabels)+" (present_over_time("+fleet.SeriesUp+"["+query.Duration(memory)+"]))", at)
	if err != nil {
		return nil, nil, err
	}
	present, err := store.Instant(ctx, "group "+by(deviceLabels)+" ("+fleet.SeriesUp+")", at)
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
	// Labels come late and do not go, so that the most are those from the end.
	slices.SortStableFunc(before, func(a, b query.Sample) int { return cmp.Compare(len(b.Labels), len(a.Labels)) })
	done, lost := map[deviceKey]bool{}, map[deviceKey]int{} // devices; how many by node
	for _, s := range before {
		k := thing(s.Labels)
		node, device := p.node(k), deviceKey{"", k.host, k.uuid}
		if p.devices[device] || done[deviceKey{node.cluster, k.host, k.uuid}] {
			continue
		}
		done[deviceKey{node.cluster, k.host, k.uuid}] = true // once, whatever its other labels were
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
			f.Labels = l // it is the same, though a label has come or gone
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
		back := f.Rule == MissingNode && p.sends(about.deviceKey) || p.devices[about.deviceKey]
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
		Reason: "node " + nodeOf(l) + " sends nothing any more",
		Action: "See whether it is up, its agent runs and can reach the hub: gpumeter doctor on the node.",
	}
}

func missingDevice(l query.Labels) Finding {
	return Finding{
		Rule: MissingDevice, Severity: "ERROR", Labels: pick(l, deviceLabels...),
		Reason: "GPU " + l[fleet.LabelIndex] + " of " + nodeOf(l) + " is gone, the others of the node are there",
		Action: "Look for an XID in the kernel's log; a reset or a restart of the node may bring it back.",
	}
}
