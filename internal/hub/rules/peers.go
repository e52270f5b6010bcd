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

// workload is work that spans several devices. Devices of different models are not peers.
type workload struct{ cluster, namespace, kind, name, model string }

// measures are the metrics by which devices of one workload are compared. fair compares the
// load of the device with the median load: a device with less work clocks lower and one with
// more runs hotter, and neither is a straggler.
var measures = []struct {
	rule, series string
	behind       func(v, median float64) bool
	fair         func(load, median float64) bool // nil ignores the load
	reason       string                          // format of device, value and median
	action       string
}{
	{
		SlowClock, fleet.SeriesClock,
		func(v, median float64) bool { return v < clockPart*median },
		func(load, median float64) bool { return load > 0 && load >= loadPart*median },
		"%s runs at %.0f MHz, its peers in the same workload at %.0f MHz",
		"One slow device stalls the whole job. Check why it throttles, power and temperature first; otherwise drain it.",
	},
	{
		LowActivity, fleet.SeriesSMActive,
		func(v, median float64) bool { return median > minActivity && v < activityPart*median },
		nil,
		"%s is %.0f %% busy, its peers in the same workload %.0f %%",
		"Check the input pipeline of its process and the CPUs and network of its node.",
	},
	{
		HighHeat, fleet.SeriesTemperature,
		func(v, median float64) bool { return v > median+heatAbove },
		func(load, median float64) bool { return median >= loadPart*load },
		"%s is at %.0f °C, its peers in the same workload at %.0f °C",
		"Check the fans, the filters and the airflow around the node in its rack.",
	},
}

// stragglers finds devices that deviate far from their peers in the same workload.
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

// worker returns the workload and the device that labels identify.
func worker(l query.Labels) (workload, deviceKey) {
	return workload{l[fleet.LabelCluster], l[fleet.LabelNamespace], l[fleet.LabelKind], l[fleet.LabelWorkload], l[fleet.LabelModel]},
		thing(l)
}

// loads returns the load of devices by workload. Devices that report load by a different
// metric than the majority of the workload are omitted: the two metrics are not comparable.
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

// averaged returns the query for the average of a series over the window, for each device with
// a sole holder.
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

// medianOf returns the median. It sorts values.
func medianOf(values []float64) float64 {
	slices.Sort(values)
	if n := len(values); n%2 == 0 {
		return (values[n/2-1] + values[n/2]) / 2
	}
	return values[len(values)/2]
}

// ranks finds ranks that lag behind their communicator, across nodes. Nodes report at different
// times, so a rank's lag is how long ago the other ranks had its current count. If no rank makes
// progress, the others wait for the rank with the lower count.
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
		// The median rank, and its count a minute ago.
		others := all[len(all)/2]
		then, ok := before[key(others.Labels)]
		if !ok {
			continue
		}
		for _, s := range all {
			old, ok := before[key(s.Labels)]
			waiting := others.Value == then && s.Value < others.Value && s.Value == old // no progress
			if !ok || !waiting && s.Value >= then {
				continue
			}
			l := s.Labels
			out = append(out, Finding{
				Rule: RankBehind, Severity: "ERROR", Value: others.Value - s.Value,
				Labels: pick(l, slices.Concat([]string{fleet.LabelCommunicator, fleet.LabelRank, fleet.LabelRanks}, deviceLabels, workloadLabels)...),
				Reason: fmt.Sprintf("rank %s of %s on %s is %.0f collectives behind the other ranks of communicator %s", l[fleet.LabelRank], l[fleet.LabelRanks], nodeOf(l), others.Value-s.Value, comm),
				Action: "The other ranks wait for this rank. Check its process, the clocks of its GPU and the network of its node.",
			})
		}
	}
	return out, nil
}
