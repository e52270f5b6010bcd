package rules

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// workload is work that runs on several devices. Devices of other models are no peers.
type workload struct{ cluster, namespace, kind, name, model string }

// measures are what devices of the same work are compared by. load is that of the device
// and of its peers: one with less to do has lower clocks, one with more is hotter, and
// neither is odd.
var measures = []struct {
	rule, series string
	behind       func(v, median float64) bool
	fair         func(load, median float64) bool // nil: load is not regarded
	reason       string                          // of the device, its value and the median
	action       string
}{
	{
		SlowClock, fleet.SeriesClock,
		func(v, median float64) bool { return v < clockPart*median },
		func(load, median float64) bool { return load > 0 && load >= loadPart*median },
		"%s runs at %.0f MHz, others of the same work at %.0f MHz",
		"One slow device holds up all of a job. See why it is slowed down, power and heat first; else take it out.",
	},
	{
		LowActivity, fleet.SeriesSMActive,
		func(v, median float64) bool { return median > minActivity && v < activityPart*median },
		nil,
		"%s is %.0f %% busy, others of the same work are %.0f %% busy",
		"Look at the data that its process waits for, and at its node's CPUs and network.",
	},
	{
		HighHeat, fleet.SeriesTemperature,
		func(v, median float64) bool { return v > median+heatAbove },
		func(load, median float64) bool { return median >= loadPart*load },
		"%s has %.0f °C, others of the same work have %.0f °C",
		"Look at the fans, the filters and the place of the node in its rack.",
	},
}

// stragglers finds devices that are far from others which do the same work.
func stragglers(ctx context.Context, store query.Store, at time.Time) ([]Finding, error) {
	work, err := loads(ctx, store, at)
	if err != nil {
		return nil, err
	}
	var out []Finding
	for _, m := range measures {
		samples, err := store.Instant(ctx, averaged(m.series), at)
		if err != nil {
			return nil, err
		}
		groups := map[workload][]query.Sample{}
		for _, s := range samples {
			w, d := worker(s.Labels)
			if _, ok := work[w][d]; !math.IsNaN(s.Value) && (ok || m.fair == nil) {
				groups[w] = append(groups[w], s)
			}
		}
		for w, peers := range groups {
			if len(peers) < minPeers {
				continue
			}
			median, load := medianOf(values(peers)), 0.0
			if m.fair != nil {
				load = medianOf(slices.Collect(maps.Values(work[w])))
			}
			for _, s := range peers {
				_, d := worker(s.Labels)
				if !m.behind(s.Value, median) || m.fair != nil && !m.fair(work[w][d], load) {
					continue
				}
				l := s.Labels
				scale := map[string]float64{SlowClock: 1e-6, LowActivity: 100, HighHeat: 1}[m.rule]
				out = append(out, Finding{
					Rule: m.rule, Severity: "WARN", Value: s.Value,
					Labels: pick(l, slices.Concat(deviceLabels, workloadLabels)...),
					Reason: fmt.Sprintf(m.reason, "GPU "+l[fleet.LabelIndex]+" of "+nodeOf(l), s.Value*scale, median*scale),
					Action: m.action,
				})
			}
		}
	}
	return out, nil
}

// worker returns whose work is on a device, and which device that is.
func worker(l query.Labels) (workload, deviceKey) {
	return workload{l[fleet.LabelCluster], l[fleet.LabelNamespace], l[fleet.LabelKind], l[fleet.LabelWorkload], l[fleet.LabelModel]},
		thing(l)
}

// loads returns how much devices have to do, by whose work it is. Those that say it in
// another way than most of the work are left out: the two are no measure for each other.
func loads(ctx context.Context, store query.Store, at time.Time) (map[workload]map[deviceKey]float64, error) {
	out := map[workload]map[deviceKey]float64{}
	for _, series := range []string{fleet.SeriesUtilization, fleet.SeriesSMActive} {
		samples, err := store.Instant(ctx, averaged(series), at)
		if err != nil {
			return nil, err
		}
		found := map[workload]map[deviceKey]float64{}
		for _, s := range samples {
			if math.IsNaN(s.Value) {
				continue
			}
			w, d := worker(s.Labels)
			if found[w] == nil {
				found[w] = map[deviceKey]float64{}
			}
			found[w][d] = s.Value
		}
		for w, all := range found {
			if len(all) > len(out[w]) {
				out[w] = all
			}
		}
	}
	return out, nil
}

// averaged returns the query for the average of a series in the window, for each device that
// exactly one workload holds.
func averaged(series string) string {
	return fmt.Sprintf("avg %s (avg_over_time(%s[%s]))", by(deviceLabels, workloadLabels), fleet.Sole(series), query.Duration(window))
}

func values(samples []query.Sample) []float64 {
	out := make([]float64, len(samples))
	for i, s := range samples {
		out[i] = s.Value
	}
	return out
}

// medianOf returns the median, and sorts values.
func medianOf(values []float64) float64 {
	slices.Sort(values)
	if n := len(values); n%2 == 0 {
		return (values[n/2-1] + values[n/2]) / 2
	}
	return values[len(values)/2]
}

// ranks finds ranks that are behind the others of their communicator, wherever those run.
// Nodes tell where they are at different moments, so that what counts is how long ago the
// others were where it is; if they are not going on, they wait for it.
func ranks(ctx context.Context, store query.Store, at time.Time) ([]Finding, error) {
	current, err := store.Instant(ctx, fleet.SeriesCollectives, at)
	if err != nil || len(current) == 0 {
		return nil, err
	}
	past, err := store.Instant(ctx, fleet.SeriesCollectives, at.Add(-rankBehind))
	if err != nil {
		return nil, err
	}
	type rank struct{ comm, rank string }
	key := func(l query.Labels) rank { return rank{l[fleet.LabelCommunicator], l[fleet.LabelRank]} }
	before := map[rank]float64{}
	for _, s := range past {
		before[key(s.Labels)] = s.Value
	}
	comms := map[string][]query.Sample{}
	for _, s := range current {
		comms[s.Labels[fleet.LabelCommunicator]] = append(comms[s.Labels[fleet.LabelCommunicator]], s)
	}
	var out []Finding
	for comm, all := range comms {
		if len(all) < 2 {
			continue
		}
		slices.SortFunc(all, func(a, b query.Sample) int { return int(math.Copysign(1, a.Value-b.Value)) })
		// Where most of the others were before.
		others := all[len(all)/2]
		then, ok := before[key(others.Labels)]
		if !ok {
			continue
		}
		for _, s := range all {
			old, ok := before[key(s.Labels)]
			waiting := others.Value == then && s.Value < others.Value && s.Value == old // nobody goes on
			if !ok || !waiting && s.Value >= then {
				continue
			}
			l := s.Labels
			out = append(out, Finding{
				Rule: RankBehind, Severity: "ERROR", Value: others.Value - s.Value,
				Labels: pick(l, slices.Concat([]string{fleet.LabelCommunicator, fleet.LabelRank, fleet.LabelRanks}, deviceLabels, workloadLabels)...),
				Reason: fmt.Sprintf("rank %s of %s on %s is %.0f collectives behind the others of communicator %s", l[fleet.LabelRank], l[fleet.LabelRanks], nodeOf(l), others.Value-s.Value, comm),
				Action: "The others wait for it. Look at what its process does, at its GPU's clocks and at the node's network.",
			})
		}
	}
	return out, nil
}
