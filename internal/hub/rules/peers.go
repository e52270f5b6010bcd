package rules

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/query"
)

// workload is work that runs on several devices. Devices of other models are no peers.
type workload struct{ cluster, namespace, kind, name, model string }

const workloadLabels = "gpu_workload_kind, gpu_workload_name, gpu_workload_team, k8s_namespace_name"

// measures are what devices of the same work are compared by. load is that of the device
// and of its peers: one with less to do has lower clocks, one with more is hotter, and
// neither is odd.
var measures = []struct {
	rule, expr string
	behind     func(v, median float64) bool
	fair       func(load, median float64) bool // nil: load is not regarded
	reason     string                          // of the device, its value and the median
	action     string
}{
	{
		SlowClock, `gpu_clock_frequency_hertz{gpu_clock_type="sm"}`,
		func(v, median float64) bool { return v < clockPart*median },
		func(load, median float64) bool { return load > 0 && load >= loadPart*median },
		"%s runs at %.0f MHz, others of the same work at %.0f MHz",
		"One slow device holds up all of a job. See why it is slowed down, power and heat first; else take it out.",
	},
	{
		LowActivity, `gpu_sm_active_ratio`,
		func(v, median float64) bool { return median > minActivity && v < activityPart*median },
		nil,
		"%s is %.0f %% busy, others of the same work are %.0f %% busy",
		"Look at the data that its process waits for, and at its node's CPUs and network.",
	},
	{
		HighHeat, `gpu_temperature_celsius{gpu_temperature_sensor="edge"}`,
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
		samples, err := store.Instant(ctx, averaged(m.expr), at)
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
					Labels: pick(l, "gpu_uuid", "gpu_index", "gpu_model", "host_name", "k8s_node_name", "k8s_cluster_name",
						"gpu_workload_kind", "gpu_workload_name", "gpu_workload_team", "k8s_namespace_name"),
					Reason: fmt.Sprintf(m.reason, "GPU "+l["gpu_index"]+" of "+nodeOf(l), s.Value*scale, median*scale),
					Action: m.action,
				})
			}
		}
	}
	return out, nil
}

// worker returns whose work is on a device, and which device that is.
func worker(l query.Labels) (workload, deviceKey) {
	return workload{l["k8s_cluster_name"], l["k8s_namespace_name"], l["gpu_workload_kind"], l["gpu_workload_name"], l["gpu_model"]},
		deviceKey{l["k8s_cluster_name"], l["host_name"], l["gpu_uuid"]}
}

// loads returns how much devices have to do, by whose work it is. Those that say it in
// another way than most of the work are left out: the two are no measure for each other.
func loads(ctx context.Context, store query.Store, at time.Time) (map[workload]map[deviceKey]float64, error) {
	out := map[workload]map[deviceKey]float64{}
	for _, expr := range []string{`gpu_utilization_ratio{gpu_task="compute"}`, `gpu_sm_active_ratio`} {
		samples, err := store.Instant(ctx, averaged(expr), at)
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

// averaged returns the question for the average of a selector in the window, for each
// device that exactly one workload has.
func averaged(selector string) string {
	return fmt.Sprintf(`avg by (%s, %s) (avg_over_time(%s[%s]))`, deviceLabels, workloadLabels, owned(selector), query.Duration(window))
}

// owned returns the selector of devices that exactly one workload has.
func owned(selector string) string {
	const match = `gpu_workload_name!="",gpu_workload_kind!~"unallocated|unattributed|other"`
	if selector[len(selector)-1] == '}' {
		return selector[:len(selector)-1] + "," + match + "}"
	}
	return selector + "{" + match + "}"
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

const sequence = "nccl_collective_sequence_total"

// ranks finds ranks that are behind the others of their communicator, wherever those run.
// Nodes tell where they are at different moments, so that what counts is how long ago the
// others were where it is; if they are not going on, they wait for it.
func ranks(ctx context.Context, store query.Store, at time.Time) ([]Finding, error) {
	current, err := store.Instant(ctx, sequence, at)
	if err != nil || len(current) == 0 {
		return nil, err
	}
	past, err := store.Instant(ctx, sequence, at.Add(-rankBehind))
	if err != nil {
		return nil, err
	}
	type rank struct{ comm, rank string }
	key := func(l query.Labels) rank { return rank{l["comm_id_hash"], l["rank"]} }
	before := map[rank]float64{}
	for _, s := range past {
		before[key(s.Labels)] = s.Value
	}
	comms := map[string][]query.Sample{}
	for _, s := range current {
		comms[s.Labels["comm_id_hash"]] = append(comms[s.Labels["comm_id_hash"]], s)
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
				Labels: pick(l, "comm_id_hash", "rank", "nranks", "gpu_uuid", "gpu_index", "gpu_model", "host_name", "k8s_node_name", "k8s_cluster_name",
					"gpu_workload_kind", "gpu_workload_name", "gpu_workload_team", "k8s_namespace_name"),
				Reason: fmt.Sprintf("rank %s of %s on %s is %.0f collectives behind the others of communicator %s", l["rank"], l["nranks"], nodeOf(l), others.Value-s.Value, comm),
				Action: "The others wait for it. Look at what its process does, at its GPU's clocks and at the node's network.",
			})
		}
	}
	return out, nil
}
