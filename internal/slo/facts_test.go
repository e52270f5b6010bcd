package slo

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/serving"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Catches a fact that is another one, a mean of requests that counts an application or one of two ways, a GPU of another model,
// and a partition that has the clock of its whole device.
func TestFacts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, way := range []string{"push", "scrape"} {
		a := engine("a", "llama", "chat", "job", way)
		w.put(fleet.SeriesEngineUp, a, false, constant(1))
		for i, histogram := range []string{fleet.HistogramFirstToken, fleet.HistogramQueue, fleet.HistogramPrefill, fleet.HistogramRequest} {
			w.put(fleet.HistogramSum(histogram), a, true, constant(float64(60*(i+1))))
			w.put(fleet.HistogramCount(histogram), a, true, constant(60))
		}
		w.put(fleet.SeriesRequests, a, false, func(ago time.Duration) (float64, bool) {
			if ago < 30*time.Minute {
				return 5, true
			}
			return 0, true
		}, fleet.LabelState, "waiting")
		w.put(fleet.SeriesRequests, a, false, constant(7), fleet.LabelState, "running")
		w.put(fleet.SeriesKVCache, a, false, func(ago time.Duration) (float64, bool) {
			switch {
			case ago < 15*time.Minute:
				return 0.97, true
			case ago < 24*time.Minute:
				return 0.5, true
			}
			return 0.9, true
		}, fleet.LabelTier, fleet.TierGPU)
	}
	w.put(fleet.HistogramSum(fleet.HistogramQueue), engine("", "llama", "chat"), true, constant(1e6)) // of an application
	w.put(fleet.HistogramCount(fleet.HistogramQueue), engine("", "llama", "chat"), true, constant(1))
	b := engine("b", "phi", "part")
	w.put(fleet.SeriesEngineUp, b, false, constant(1))
	w.put(fleet.SeriesFinished, b, true, constant(1), fleet.LabelOutcome, "success")
	for id, uuid := range map[string]string{"a": "GPU-1", "aa": "GPU-2", "b": "GPU-3"} {
		l := engine(id[:1], "", map[string]string{"a": "chat", "b": "part"}[id[:1]], fleet.LabelUUID, uuid, fleet.LabelVendor, "nvidia")
		delete(l, fleet.LabelServedModel)
		if id == "b" {
			l[fleet.LabelPartition] = "MIG-1"
		}
		w.put(fleet.SeriesEngineDevice, l, false, constant(1))
	}
	for uuid, v := range map[string]float64{"GPU-1": 0.2, "GPU-2": 0.4, "GPU-3": 0.9} {
		l := query.Labels{fleet.LabelUUID: uuid, fleet.LabelVendor: "nvidia", fleet.LabelHost: "n1"}
		w.put(fleet.SeriesDRAMActive, l, false, constant(v))
		w.put(fleet.SeriesSMActive, l, false, constant(1))
		w.put(fleet.SeriesThrottlePower, l, false, constant(v/2))
		w.put(fleet.SeriesThrottleThermal, l, false, constant(v/4))
		w.put(fleet.SeriesClock, l, false, func(ago time.Duration) (float64, bool) {
			if ago < 31*time.Minute { // half of the samples of the hour
				return 1e9, true
			}
			return 2e9, true
		})
	}
	w.write(2 * time.Hour)
	now, err := serving.At(t.Context(), w.store, noon, hintWindow)
	if err != nil {
		t.Fatal(err)
	}
	a := ask(w.store, noon)
	a.requests(t.Context())
	a.devices(t.Context(), []*serving.Row{&now[0], &now[1]})
	if a.err != nil {
		t.Fatal(a.err)
	}
	got := a.facts
	of := optional.Of
	want := map[key]Facts{
		{"llama", whoseOf(&now[0].Owner)}: {
			FirstToken: of(1), Queue: of(2), Prefill: of(3), Request: of(4),
			Waits: of(30.0 / 61), Full: of(0.5), Room: of(0.3), Running: of(7),
			SM: of(1), DRAM: of(0.3), Power: of(0.15), Thermal: of(0.075), Clock: of(0.75),
		},
		{"phi", whoseOf(&now[1].Owner)}: {},
	}
	if diff := cmp.Diff(want, got, rough); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
}

// Catches a host that is blamed for load that comes in bursts, and a power cap for a clock that is low because there is nothing to do: the
// GPU is busy in 20 of 60 minutes, and idle in the others. Catches one busy replica of three that looks like three idle ones,
// and a partition, or a machine that helps an engine, without numbers.
func TestFactsOfBursts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	during := func(busy, idle float64) func(time.Duration) (float64, bool) {
		return func(ago time.Duration) (float64, bool) {
			if ago%(30*time.Minute) < 10*time.Minute {
				return busy, true
			}
			return idle, true
		}
	}
	device := func(e, uuid string, value func(busy, idle float64) func(time.Duration) (float64, bool), more ...string) {
		on := engine(e, "", "bursts", append([]string{fleet.LabelUUID, uuid, fleet.LabelVendor, "nvidia"}, more...)...)
		delete(on, fleet.LabelServedModel)
		w.put(fleet.SeriesEngineDevice, on, false, constant(1))
		l := query.Labels{fleet.LabelUUID: uuid, fleet.LabelVendor: "nvidia", fleet.LabelHost: "n1"}
		w.put(fleet.SeriesUtilization, l, false, value(1, 0))
		w.put(fleet.SeriesSMActive, l, false, value(0.8, 0))
		w.put(fleet.SeriesDRAMActive, l, false, value(0.6, 0))
		w.put(fleet.SeriesClock, l, false, value(1.8e9, 0.3e9))
		w.put(fleet.SeriesThrottlePower, l, false, value(0.5, 0))
		w.put(fleet.SeriesThrottleThermal, l, false, value(0.25, 0))
		w.put(fleet.SeriesPartitionUtilization, l, false, value(0.7, 0), fleet.LabelPartition, "MIG-1")
		w.put(fleet.SeriesPartitionSMActive, l, false, value(0.4, 0), fleet.LabelPartition, "MIG-1")
	}
	for id, value := range map[string]func(busy, idle float64) func(time.Duration) (float64, bool){
		"1": during, "2": func(_, idle float64) func(time.Duration) (float64, bool) { return constant(idle) },
	} {
		e := engine(id, "llama", "bursts")
		w.put(fleet.SeriesEngineUp, e, false, constant(1))
		w.put(fleet.SeriesTokensOut, e, true, constant(1))
		w.put(fleet.SeriesRequests, e, false, value(8, 0), fleet.LabelState, "running")
		device(id, "GPU-"+id, value)
	}
	part := engine("part", "llama", "parts")
	w.put(fleet.SeriesEngineUp, part, false, constant(1))
	w.put(fleet.SeriesTokensOut, part, true, constant(1))
	w.put(fleet.SeriesRequests, part, false, during(2, 0), fleet.LabelState, "running")
	device("part", "GPU-3", during, fleet.LabelWorkload, "parts", fleet.LabelTeam, "team-parts", fleet.LabelPartition, "MIG-1")
	w.write(90 * time.Minute)
	now, err := serving.At(t.Context(), w.store, noon, hintWindow)
	if err != nil {
		t.Fatal(err)
	}
	a := ask(w.store, noon)
	a.requests(t.Context())
	a.devices(t.Context(), []*serving.Row{&now[0], &now[1]})
	if a.err != nil {
		t.Fatal(a.err)
	}
	of := optional.Of
	want := map[key]Facts{
		keyOfRow(&now[0]): {Running: of(8), Utilization: of(1), SM: of(0.8), DRAM: of(0.6), Clock: of(1), Power: of(0.5), Thermal: of(0.25)},
		keyOfRow(&now[1]): {Running: of(2), Utilization: of(0.7), SM: of(0.4)},
	}
	if diff := cmp.Diff(want, a.facts, rough); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
}

// rough compares numbers of a store, which are extrapolated.
var rough = cmp.Comparer(func(a, b optional.Float) bool {
	x, known := a.Get()
	y, also := b.Get()
	return known == also && x-y < 0.01 && y-x < 0.01
})

// Catches a router that has requests of other engines, too, or is in another cluster, and explains with them what its network takes, one of two gateways
// behind each other whose time is lost, and a model that is fast in the engine and slow for everybody.
func TestFactsOfFrontends(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	latency := func(histogram string, l query.Labels, perMinute, seconds float64) {
		w.put(fleet.HistogramSum(histogram), l, true, constant(perMinute*seconds))
		w.put(fleet.HistogramCount(histogram), l, true, constant(perMinute))
		w.requests(histogram, l, perMinute, always, func(time.Duration) map[string]float64 {
			parts := map[string]float64{"0.5": 0, "1": 0, "2": 0, "4": 0, "+Inf": 1}
			for _, bound := range []float64{0.5, 1, 2, 4} {
				if seconds <= bound {
					parts[fmt.Sprint(bound)] = 1
				}
			}
			return parts
		})
	}
	for model, workloads := range map[string][]string{"llama": {"chat"}, "phi": {"one", "two"}} {
		for _, name := range workloads {
			e := engine(name, model, name, fleet.LabelCluster, "x")
			w.put(fleet.SeriesEngineUp, e, false, constant(1))
			w.put(fleet.SeriesTokensOut, e, true, constant(9))
			latency(fleet.HistogramFirstToken, e, 60, 0.5)
			latency(fleet.HistogramRequest, e, 60, 1)
		}
	}
	front := func(provider, model, cluster string) query.Labels {
		return engine(provider, model, provider, fleet.LabelProvider, provider, fleet.LabelCluster, cluster)
	}
	latency(fleet.HistogramFrontFirstToken, front("dynamo", "llama", "x"), 59, 1)
	latency(fleet.HistogramFrontRequest, front("dynamo", "llama", "x"), 60, 1)
	latency(fleet.HistogramFrontFirstToken, front("litellm", "llama", "x"), 57, 2) // in front of the other one
	latency(fleet.HistogramFrontFirstToken, front("far", "llama", "y"), 60, 4)
	latency(fleet.HistogramFrontFirstToken, front("more", "llama", "x"), 70, 4)
	latency(fleet.HistogramFrontFirstToken, front("dynamo", "phi", "x"), 120, 4)
	w.write(90 * time.Minute)
	file, err := Parse([]byte(`{window: 1d, objectives: [{model: llama, ttft: {p95: 1500ms}, duration: {p50: 2s}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	a := ask(w.store, noon)
	a.requests(t.Context())
	if a.err != nil {
		t.Fatal(a.err)
	}
	got := map[string][2]Front{}
	for k, f := range a.facts {
		got[k.id] = [2]Front{f.FrontFirstToken, f.FrontRequest}
	}
	of := optional.Of
	want := map[string][2]Front{
		"deployment/x//chat/": {{"litellm", of(2), serving.Quantiles{P50: of(1.5), P95: of(1.95), P99: of(1.99)}}, {"dynamo", of(1), serving.Quantiles{P50: of(0.75), P95: of(0.975), P99: of(0.995)}}},
		"deployment/x//one/":  {}, "deployment/x//two/": {},
	}
	if diff := cmp.Diff(want, got, rough); diff != "" {
		t.Errorf("frontends (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff("network 75 % unexplained 25 % ", look(t, NewJudge(file), w.store, noon)["llama chat limits"]); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
}
