// Package rules finds problems that only the whole fleet reveals: missing nodes and devices,
// devices that lag behind their peers in the same workload, ranks that stall a collective,
// workloads that use devices of others, and devices and nodes with two senders.
// Package internal/health finds what a node can detect by itself.
package rules

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Names of the rules in events, metrics and alerts.
const (
	MissingNode   = "fleet_missing_node"
	MissingDevice = "fleet_missing_device"
	SlowClock     = "fleet_slow_clock"
	LowActivity   = "fleet_low_activity"
	HighHeat      = "fleet_high_temperature"
	RankBehind    = "fleet_rank_behind"
	NotAllocated  = "fleet_not_allocated"
	TwoSenders    = "fleet_two_senders"
	OverQuota     = "fleet_over_quota" // evaluated by the caller: quotas are not in the store
	OverShare     = "fleet_over_share" // evaluated by the caller: refusals are not in the store
	BudgetBurns   = "fleet_slo_burn"   // evaluated by the caller: objectives are not in the store
)

// Finding is a problem with a node or a device.
type Finding struct {
	Rule     string
	Severity string // WARN or ERROR
	// Labels identify the subject of the finding, by their PromQL names.
	Labels query.Labels
	Reason string
	Action string
	Value  float64 // the measurement behind the finding
}

// Key identifies the finding across evaluations.
func (f *Finding) Key() string {
	key := f.Rule
	for _, name := range slices.Sorted(maps.Keys(f.Labels)) {
		key += fmt.Sprintf(",%q=%q", name, f.Labels[name])
	}
	return key
}

// Thresholds and limits of the rules.
const (
	memory   = time.Hour        // how long after its last sample something is found missing
	window   = 10 * time.Minute // averaging window for the comparison of devices
	minPeers = 4                // fewer peers prove nothing
	// A device lags if it deviates this far from the median of its peers.
	clockPart    = 0.85 // fraction of the median clock
	activityPart = 0.6  // fraction of the median activity, if that is above minActivity
	minActivity  = 0.3
	heatAbove    = 15.0 // °C above the median
	loadPart     = 0.9  // loads within this fraction count as equal
	// A rank lags if the other ranks had its current count this long ago.
	rankBehind = time.Minute
	// maxFindings bounds one evaluation: if half of the fleet is down, a longer list does not help.
	maxFindings = 1000
	// missedFor is how long a missing node or device stays a finding: the default retention of
	// events. Beyond memory, only the newest maxFindings are kept.
	missedFor = hub.DefaultRetention
)

// Evaluate applies all rules to the store at a moment. Findings are ordered by key.
func Evaluate(ctx context.Context, store query.Store, at time.Time) ([]Finding, error) {
	return evaluate(ctx, store, nil, at)
}

// evaluate is Evaluate with the findings that are already open: something missing for longer
// than memory is still missing.
func evaluate(ctx context.Context, store query.Store, open []Change, at time.Time) ([]Finding, error) {
	all, kept, err := missing(ctx, store, open, at)
	if err != nil {
		return nil, fmt.Errorf("cannot evaluate the fleet rules: %w", err)
	}
	for _, rule := range []func(context.Context, query.Store, time.Time) ([]Finding, error){stragglers, ranks, uninvited, senders} {
		found, err := rule(ctx, store, at)
		if err != nil {
			return nil, fmt.Errorf("cannot evaluate the fleet rules: %w", err)
		}
		all = append(all, found...)
	}
	byKey := func(a, b Finding) int { return cmp.Compare(a.Key(), b.Key()) }
	slices.SortFunc(all, byKey)
	all = append(all[:min(len(all), maxFindings)], kept...)
	slices.SortFunc(all, byKey)
	return all, nil
}

// pick returns the named labels that are not empty.
func pick(l query.Labels, names ...string) query.Labels {
	out := query.Labels{}
	for _, n := range names {
		if v := l[n]; v != "" {
			out[n] = v
		}
	}
	return out
}

// Labels of findings, by subject.
var (
	nodeLabels     = []string{fleet.LabelHost, fleet.LabelNode, fleet.LabelCluster}
	deviceLabels   = append([]string{fleet.LabelUUID, fleet.LabelIndex, fleet.LabelModel}, nodeLabels...)
	workloadLabels = []string{fleet.LabelKind, fleet.LabelWorkload, fleet.LabelTeam, fleet.LabelNamespace}
)

// by returns the by clause of an aggregation.
func by(lists ...[]string) string { return "by (" + strings.Join(slices.Concat(lists...), ", ") + ")" }

type deviceKey struct{ cluster, host, uuid string }

func nodeOf(l query.Labels) string { return cmp.Or(fleet.NodeOf(l), "?") }
