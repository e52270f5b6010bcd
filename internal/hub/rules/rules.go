// Package rules finds what only the whole fleet shows: nodes and devices that are missing,
// devices that are behind others of the same work, and ranks for which others wait. What
// a node can know of itself internal/health finds there.
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

// The rules, as they are called in events, metrics and alerts.
const (
	MissingNode   = "fleet_missing_node"
	MissingDevice = "fleet_missing_device"
	SlowClock     = "fleet_slow_clock"
	LowActivity   = "fleet_low_activity"
	HighHeat      = "fleet_high_temperature"
	RankBehind    = "fleet_rank_behind"
	OverQuota     = "fleet_over_quota" // the caller finds it: quotas are not in the store
)

// Finding is something that is wrong with a node or a device.
type Finding struct {
	Rule     string
	Severity string // WARN or ERROR
	// Labels say what it is about, by their names in PromQL.
	Labels query.Labels
	Reason string
	Action string
	Value  float64 // the number behind it
}

// Key is the same for the same thing at another time.
func (f *Finding) Key() string {
	key := f.Rule
	for _, name := range slices.Sorted(maps.Keys(f.Labels)) {
		key += fmt.Sprintf(",%q=%q", name, f.Labels[name])
	}
	return key
}

// Limits of the rules.
const (
	memory   = time.Hour        // how long ago something was there that is found to be missing
	window   = 10 * time.Minute // over which devices are compared
	minPeers = 4                // fewer show nothing
	// A device is behind if it is this far from the median of its peers.
	clockPart    = 0.85 // of their clock
	activityPart = 0.6  // of their activity, if that is above
	minActivity  = 0.3
	heatAbove    = 15.0 // degrees
	loadPart     = 0.9  // of the utilization of another is as much to do
	// A rank is behind if the others were where it is so long ago.
	rankBehind = time.Minute
	// maxFindings bounds one evaluation: if half of a fleet is gone, a list of it does not help.
	maxFindings = 1000
	// missedFor is how long something that is missing is waited for: as long as events
	// are kept by default. At most maxFindings are waited for after memory, the newest.
	missedFor = hub.DefaultRetention
)

// Evaluate applies all rules to what store knows at a moment. Findings are in the order of
// their keys.
func Evaluate(ctx context.Context, store query.Store, at time.Time) ([]Finding, error) {
	return evaluate(ctx, store, nil, at)
}

// evaluate does as Evaluate. open is what was found before and holds: what is missing is
// not back because it has been missing for long.
func evaluate(ctx context.Context, store query.Store, open []Change, at time.Time) ([]Finding, error) {
	all, kept, err := missing(ctx, store, open, at)
	if err != nil {
		return nil, fmt.Errorf("cannot evaluate the fleet rules: %w", err)
	}
	for _, rule := range []func(context.Context, query.Store, time.Time) ([]Finding, error){stragglers, ranks} {
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

// pick returns those of the labels that are there.
func pick(l query.Labels, names ...string) query.Labels {
	out := query.Labels{}
	for _, n := range names {
		if v := l[n]; v != "" {
			out[n] = v
		}
	}
	return out
}

// Labels of findings, by what they are about.
var (
	nodeLabels     = []string{fleet.LabelHost, fleet.LabelNode, fleet.LabelCluster}
	deviceLabels   = append([]string{fleet.LabelUUID, fleet.LabelIndex, fleet.LabelModel}, nodeLabels...)
	workloadLabels = []string{fleet.LabelKind, fleet.LabelWorkload, fleet.LabelTeam, fleet.LabelNamespace}
)

// by returns the list of labels of an aggregation.
func by(lists ...[]string) string { return "by (" + strings.Join(slices.Concat(lists...), ", ") + ")" }

type deviceKey struct{ cluster, host, uuid string }

func nodeOf(l query.Labels) string { return cmp.Or(fleet.NodeOf(l), "?") }
