package rules

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

const (
	// labelSenders has the names of the senders of a finding.
	labelSenders = "gpumeter_senders"
	// together is how long two senders must overlap: clocks of two hosts differ by seconds.
	together = time.Minute
	// maxNames bounds the names in a finding.
	maxNames = 3
)

// span is when a sender was heard.
type span struct {
	first, last time.Time
	labels      query.Labels // the largest set, which has what arrives late
}

func (s *span) add(x query.Series, at time.Time) {
	if s.first.IsZero() || at.Before(s.first) {
		s.first = at
	}
	if at.After(s.last) {
		s.last = at
	}
	if len(x.Labels) > len(s.labels) {
		s.labels = x.Labels
	}
}

// concurrent returns the keys, in order, of the spans that overlap with another one. What was heard in
// turn, such as an agent before and after a restart or a device that moved, does not overlap.
func concurrent[K cmp.Ordered](spans map[K]*span) []K {
	var out []K
	for _, key := range slices.Sorted(maps.Keys(spans)) {
		a := spans[key]
		for other, b := range spans {
			if other != key && minTime(a.last, b.last).Sub(maxTime(a.first, b.first)) > together {
				out = append(out, key)
				break
			}
		}
	}
	return out
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// senders finds devices that several hosts report, and nodes as which several agents report.
func senders(ctx context.Context, store query.Store, at time.Time) ([]Finding, error) {
	devices, err := hostsOfDevices(ctx, store, at)
	if err != nil {
		return nil, err
	}
	agents, err := agentsOfNodes(ctx, store, at)
	return append(devices, agents...), err
}

// hostsOfDevices finds IDs that several hosts report, one finding for each set of hosts.
func hostsOfDevices(ctx context.Context, store query.Store, at time.Time) ([]Finding, error) {
	several, err := store.Instant(ctx, "count by ("+fleet.LabelUUID+") (group by ("+fleet.LabelUUID+", "+fleet.LabelHost+") ("+fleet.SeriesUp+")) > 1", at)
	if err != nil {
		return nil, err
	}
	uuids := make([]string, 0, len(several))
	for _, s := range several {
		uuids = append(uuids, s.Labels[fleet.LabelUUID])
	}
	slices.Sort(uuids)
	spans := map[string]map[string]*span{} // by ID and host
	for _, match := range fleet.AnyOf(fleet.LabelUUID, uuids[:min(len(uuids), maxFindings)]) {
		list, err := store.Raw(ctx, fleet.Select(fleet.SeriesUp, nil, match), at.Add(-window), at)
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			uuid, host := s.Labels[fleet.LabelUUID], s.Labels[fleet.LabelHost]
			if spans[uuid] == nil {
				spans[uuid] = map[string]*span{}
			}
			if spans[uuid][host] == nil {
				spans[uuid][host] = &span{}
			}
			for _, p := range s.Points {
				spans[uuid][host].add(s, p.Time)
			}
		}
	}
	groups := map[string]*sharing{}
	for _, uuid := range slices.Sorted(maps.Keys(spans)) {
		hosts := concurrent(spans[uuid])
		if len(hosts) == 0 {
			continue
		}
		l := spans[uuid][hosts[0]].labels
		key := strings.Join(hosts, "\xff")
		if !fleet.Global(l) {
			key = "\xff" + l[fleet.LabelCluster] // all in one: nodes come and go
		}
		if groups[key] == nil {
			groups[key] = &sharing{labels: l, nodes: map[string]bool{}}
		}
		groups[key].devices++
		for _, host := range hosts {
			groups[key].nodes[nodeOf(spans[uuid][host].labels)] = true
		}
	}
	out := make([]Finding, 0, len(groups))
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		out = append(out, groups[key].finding())
	}
	return out, nil
}

// sharing is a group of nodes that report the same IDs.
type sharing struct {
	labels  query.Labels // of one of them
	nodes   map[string]bool
	devices int // IDs
}

func (s *sharing) finding() Finding {
	names := slices.Sorted(maps.Keys(s.nodes))
	f := Finding{Rule: TwoSenders, Severity: "WARN", Value: float64(s.devices)}
	if fleet.Global(s.labels) {
		f.Labels = pick(s.labels, nodeLabels...)
		f.Labels[labelSenders] = enumerate(names)
		what := "the same device"
		if s.devices > 1 {
			what = "the same " + strconv.Itoa(s.devices) + " devices"
		}
		f.Reason = enumerate(names) + " report " + what + "; a device counts once"
		f.Action = "If the names belong to one machine, stop one of its agents or give both the same --host-name. If not, set a different host.id on each machine: see Device IDs in docs/architecture.md."
		return f
	}
	f.Labels = pick(s.labels, fleet.LabelCluster)
	f.Reason = enumerate(names) + " have devices with the same IDs; each node's devices count"
	f.Action = "Upgrade the agents of these nodes: an ID from a PCI address is not unique in a fleet."
	return f
}

// agentsOfNodes finds nodes as which several agents report: each says when it began.
func agentsOfNodes(ctx context.Context, store query.Store, at time.Time) ([]Finding, error) {
	over := func(f string) string {
		return f + " by (" + fleet.LabelHost + ") (" + f + "_over_time(" + fleet.SeriesAgentStart + "[" + query.Duration(window) + "]))"
	}
	several, err := store.Instant(ctx, over("max")+" > "+over("min"), at)
	if err != nil {
		return nil, err
	}
	hosts := make([]string, 0, len(several))
	for _, s := range several {
		hosts = append(hosts, s.Labels[fleet.LabelHost])
	}
	slices.Sort(hosts)
	byHost := map[string][]query.Series{}
	for _, match := range fleet.AnyOf(fleet.LabelHost, hosts[:min(len(hosts), maxFindings)]) {
		list, err := store.Raw(ctx, fleet.Select(fleet.SeriesAgentStart, nil, match), at.Add(-window), at)
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			byHost[s.Labels[fleet.LabelHost]] = append(byHost[s.Labels[fleet.LabelHost]], s)
		}
	}
	var out []Finding
	for _, host := range slices.Sorted(maps.Keys(byHost)) {
		for _, list := range byCluster(byHost[host]) {
			spans := map[float64]*span{} // by when the agent began
			for _, s := range list {
				for _, p := range s.Points {
					if p.Value != p.Value { // the end of a series
						continue
					}
					if spans[p.Value] == nil {
						spans[p.Value] = &span{}
					}
					spans[p.Value].add(s, p.Time)
				}
			}
			if began := concurrent(spans); len(began) > 0 {
				out = append(out, twoAgents(spans[began[len(began)-1]].labels, began))
			}
		}
	}
	return out, nil
}

// byCluster divides the series of one host name if nodes of several clusters have the name. An agent that does
// not know its cluster may be in any of them.
func byCluster(list []query.Series) map[string][]query.Series {
	out := map[string][]query.Series{}
	for _, s := range list {
		out[s.Labels[fleet.LabelCluster]] = append(out[s.Labels[fleet.LabelCluster]], s)
	}
	if unknown := out[""]; len(unknown) > 0 && len(out) == 2 {
		return map[string][]query.Series{"": list}
	}
	return out
}

func twoAgents(l query.Labels, began []float64) Finding {
	times := make([]string, len(began))
	for i, v := range began {
		times[i] = time.UnixMilli(int64(v * 1000)).UTC().Format(time.DateTime)
	}
	return Finding{
		Rule: TwoSenders, Severity: "WARN", Labels: pick(l, nodeLabels...), Value: float64(len(began)),
		Reason: strconv.Itoa(len(began)) + " agents send as node " + nodeOf(l) + ", since " + enumerate(times) + " UTC",
		Action: "Stop all agents of the node but one, or give the machines different names: gauges alternate between the agents. Bills count every second of a device once. " +
			"If the clock of the node was set back, the finding ends by itself.",
	}
}

// enumerate returns names as text: a, b, c and 5 more.
func enumerate(names []string) string {
	switch n := len(names); {
	case n > maxNames:
		return strings.Join(names[:maxNames], ", ") + " and " + strconv.Itoa(n-maxNames) + " more"
	case n > 1:
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	}
	return strings.Join(names, "")
}
