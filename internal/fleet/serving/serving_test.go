package serving

import (
	"fmt"
	"maps"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

var noon = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)

// servingWorld has a store with engines, for five minutes up to noon.
type servingWorld struct{ *querytest.Memory }

// engine returns the labels of an engine.
func (servingWorld) engine(id, model, workload string, more ...string) query.Labels {
	l := query.Labels{
		fleet.LabelHost: "n1", fleet.LabelEngine: id, fleet.LabelProvider: "vllm", fleet.LabelServedModel: model, fleet.LabelKind: "deployment", fleet.LabelWorkload: workload, fleet.LabelTeam: "t",
		"job": "gpumeter", "server_port": "8000",
	}
	for i := 0; i < len(more); i += 2 {
		l[more[i]] = more[i+1]
	}
	maps.DeleteFunc(l, func(_, value string) bool { return value == "" })
	return l
}

// put adds a series that grows by so much a minute.
func (w servingWorld) put(name string, l query.Labels, v, perMinute float64, more ...string) {
	l = maps.Clone(l)
	l[fleet.LabelName] = name
	for i := 0; i < len(more); i += 2 {
		l[more[i]] = more[i+1]
	}
	for i := -5; i <= 0; i++ {
		w.Add(l, noon.Add(time.Duration(i)*time.Minute), v+perMinute*float64(i+5))
	}
}

// latency adds a histogram with so many values a minute up to each bound.
func (w servingWorld) latency(name string, l query.Labels, perMinute map[float64]float64, more ...string) {
	for le, n := range perMinute {
		bound := fmt.Sprint(le)
		if math.IsInf(le, 1) {
			bound = "+Inf"
		}
		w.put(fleet.Buckets(name), l, 1000, n, append(more, fleet.LabelBucket, bound)...)
	}
}

func (w servingWorld) device(l query.Labels, uuid string, more ...string) {
	w.put(fleet.SeriesEngineDevice, l, 1, 0, append([]string{fleet.LabelUUID, uuid, fleet.LabelVendor, "nvidia", fleet.LabelModel, "H100", fleet.LabelIndex, uuid[len(uuid)-1:]}, more...)...)
}

func (w servingWorld) gpu(uuid string, sm, watts float64) {
	l := query.Labels{fleet.LabelUUID: uuid, fleet.LabelVendor: "nvidia", fleet.LabelHost: "n1"}
	w.put(fleet.SeriesSMActive, l, sm, 0)
	w.put(fleet.SeriesUtilization, l, 1, 0)
	w.put(fleet.SeriesPower, l, watts, 0)
	w.put(fleet.SeriesPower, l, watts, 0, "job", "again")
	w.put(fleet.SeriesMemoryUsed, l, 10, 0)
	w.put(fleet.SeriesPipeActive, l, sm/2, 0, fleet.LabelPipe, "tensor")
	w.put(fleet.SeriesPipeActive, l, 1, 0, fleet.LabelPipe, "fp64")
}

var floats = cmp.Options{
	cmp.Transformer("rounded", func(v optional.Float) string {
		if f, ok := v.Get(); ok {
			return fmt.Sprintf("%.9g", f)
		}
		return "absent"
	}),
	cmpopts.EquateApprox(1e-12, 1e-12),
}

// Catches a series that counts once for each way to the store, ranks of an engine that count once or whose
// caches add up, a replica that is down and is forgotten, requests that a router or an application counts again, values of another
// pipe, tier or weight, power of a partition at the moment beside means of the window, a row that has no value and shows 0, and power of a device that two agents send.
func TestServing(t *testing.T) {
	t.Parallel()
	w := servingWorld{querytest.NewMemory()}
	inf := math.Inf(1)
	for _, way := range []string{"push", "scrape"} {
		a := w.engine("a", "llama", "chat", "job", way)
		w.put(fleet.SeriesEngineUp, a, 1, 0, fleet.LabelServedModel, "")
		w.device(a, "GPU-0", fleet.LabelServedModel, "")
		w.device(a, "GPU-1", fleet.LabelServedModel, "")
		for rank, n := range map[string]float64{"0": 3, "1": 4} { // data-parallel ranks
			w.put(fleet.SeriesRequests, a, n, 0, fleet.LabelState, "running", fleet.LabelRankOfEngine, rank)
			w.put(fleet.SeriesRequests, a, 1, 0, fleet.LabelState, "waiting", fleet.LabelRankOfEngine, rank)
			w.put(fleet.SeriesRequests, a, 1, 0, fleet.LabelState, "swapped", fleet.LabelRankOfEngine, rank)
			w.put(fleet.SeriesKVCache, a, n/10, 0, fleet.LabelTier, "gpu", fleet.LabelRankOfEngine, rank)
			w.put(fleet.SeriesKVCache, a, 0.9, 0, fleet.LabelTier, "cpu", fleet.LabelRankOfEngine, rank)
		}
		w.put(fleet.SeriesTokensIn, a, 500, 6000)
		w.put(fleet.SeriesTokensOut, a, 500, 600)
		w.put(fleet.SeriesPrefixHits, a, 500, 1500, fleet.LabelTier, "gpu")
		w.put(fleet.SeriesPrefixQueries, a, 500, 6000, fleet.LabelTier, "gpu")
		w.put(fleet.SeriesPrefixHits, a, 500, 6000, fleet.LabelTier, "external")
		w.put(fleet.SeriesFinished, a, 0, 30, fleet.LabelOutcome, "success", fleet.LabelFinishReason, "stop")
		w.put(fleet.SeriesFinished, a, 0, 30, fleet.LabelOutcome, "success", fleet.LabelFinishReason, "length")
		w.put(fleet.SeriesFinished, a, 0, 6, fleet.LabelOutcome, "abort")
		w.put("inference_frontend_request_finished_total", a, 0, 600, fleet.LabelOutcome, "success")
		w.latency(fleet.HistogramFirstToken, a, map[float64]float64{0.1: 30, 0.2: 60, inf: 60})
		w.latency(fleet.HistogramFirstToken, w.engine("", "llama", "chat", "job", way), map[float64]float64{0.1: 0, 9: 600, inf: 600}) // of an application
		w.latency(fleet.HistogramInterToken, a, map[float64]float64{0.1: 60, inf: 60}, fleet.LabelWeight, "step")
	}
	b := w.engine("b", "llama", "chat", fleet.LabelServedModel, "") // down: its page says nothing
	w.put(fleet.SeriesEngineUp, b, 0, 0)
	w.device(b, "GPU-2")
	triton := w.engine("c", "", "many", fleet.LabelProvider, "triton")
	w.put(fleet.SeriesEngineUp, triton, 1, 0)
	w.device(triton, "GPU-3", fleet.LabelPartition, "MIG-1", fleet.LabelPartitionProfile, "1g.10gb")
	for _, model := range []string{"bert", "resnet"} {
		w.put(fleet.SeriesFinished, triton, 0, 60, fleet.LabelServedModel, model, fleet.LabelOutcome, "success")
	}
	w.put(fleet.SeriesEngineUp, w.engine("d", "", "", fleet.LabelKind, "", fleet.LabelTeam, ""), 1, 0)
	for i, sm := range []float64{0.5, 0.7} {
		w.gpu(fmt.Sprint("GPU-", i), sm, 400)
	}
	w.gpu("GPU-3", 0.9, 600)
	mig := query.Labels{fleet.LabelUUID: "GPU-3", fleet.LabelVendor: "nvidia", fleet.LabelHost: "n1", fleet.LabelPartition: "MIG-1"}
	w.put(fleet.SeriesPartitionSMActive, mig, 0.25, 0)
	w.put(fleet.SeriesPartitionMemoryUsed, mig, 5, 0)
	w.put(fleet.SeriesWorkloadPower, mig, 50, 4, fleet.LabelKind, "deployment", fleet.LabelWorkload, "many")
	w.put(fleet.SeriesWorkloadPower, mig, 40, 0, fleet.LabelKind, "deployment", fleet.LabelWorkload, "other")

	owner := func(name string) fleet.Owner {
		o, _ := fleet.OwnerOf(query.Labels{fleet.LabelKind: "deployment", fleet.LabelWorkload: name, fleet.LabelTeam: "t"})
		return o
	}
	part := []EngineDevice{{Device: "GPU-3", UUID: "GPU-3", Partition: "MIG-1", Profile: "1g.10gb", Index: "3", Model: "H100", Host: "n1", Node: "n1"}}
	whole := func(uuid string) EngineDevice {
		return EngineDevice{Device: uuid, UUID: uuid, Index: uuid[len(uuid)-1:], Model: "H100", Host: "n1", Node: "n1"}
	}
	of := optional.Of
	ofTriton := Row{
		Providers: []string{"triton"}, Owner: owner("many"), Engines: 1, Up: 1, Devices: part, Finished: map[string]float64{"success": 1},
		SM: of(0.25), Memory: of(5), Power: of(100),
	}
	bert, resnet := ofTriton, ofTriton
	bert.Model, resnet.Model = "bert", "resnet"
	want := []Row{
		{Providers: []string{"vllm"}, Engines: 1, Up: 1},
		bert,
		{
			Model: "llama", Providers: []string{"vllm"}, Owner: owner("chat"), Engines: 2, Up: 1, Devices: []EngineDevice{whole("GPU-0"), whole("GPU-1"), whole("GPU-2")},
			Running: of(7), Waiting: of(2), Finished: map[string]float64{"success": 1, "abort": 0.1}, In: of(100), Out: of(10),
			FirstToken: Quantiles{of(0.1), of(0.19), of(0.198)}, Cache: of(0.4), Hits: of(0.25),
			SM: of(0.6), Tensor: of(0.3), Utilization: of(1), Memory: of(20), Power: of(800),
		},
		resnet,
	}
	got, err := At(t.Context(), w, noon, 5*time.Minute)
	if diff := cmp.Diff(want, got, floats, cmpopts.EquateEmpty()); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	// Of one workload the same, and nothing of the others.
	got, err = At(t.Context(), w, noon, 5*time.Minute, fleet.Equals(fleet.LabelWorkload, "chat"))
	if diff := cmp.Diff(want[2:3], got, floats, cmpopts.EquateEmpty()); err != nil || diff != "" {
		t.Errorf("of one workload: %v (-want +got):\n%s", err, diff)
	}
}

// Catches a row that adds up two teams whose workloads have the same name, or two users' processes, also for an engine that
// names no model.
func TestServingKeepsTeamsApart(t *testing.T) {
	t.Parallel()
	w := servingWorld{querytest.NewMemory()}
	for i, l := range []query.Labels{
		w.engine("a", "llama", "chat", fleet.LabelTeam, "red"), w.engine("b", "llama", "chat", fleet.LabelTeam, "blue"),
		w.engine("c", "llama", "python", fleet.LabelTeam, "", fleet.LabelKind, "process", fleet.LabelUser, "ann"),
		w.engine("d", "llama", "python", fleet.LabelTeam, "", fleet.LabelKind, "process", fleet.LabelUser, "bob"),
	} {
		w.put(fleet.SeriesEngineUp, l, 1, 0)
		w.put(fleet.SeriesTokensOut, l, 500, 60*float64(i+1))
	}
	w.put(fleet.SeriesEngineUp, w.engine("down", "", "chat", fleet.LabelTeam, "blue"), 0, 0)
	list, err := At(t.Context(), w, noon, 5*time.Minute)
	got := map[string]string{}
	for _, r := range list {
		got[r.Owner.Name+r.Owner.Team+r.Owner.User] = fmt.Sprintf("%d engines, %.0f/s", r.Engines, r.Out.Default(0))
	}
	want := map[string]string{"chatred": "1 engines, 1/s", "chatblue": "2 engines, 2/s", "pythonann": "1 engines, 3/s", "pythonbob": "1 engines, 4/s"}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// Catches quantiles that differ from histogram_quantile of PromQL, and engines of two versions whose sum
// has a bucket of one of them only.
func TestQuantiles(t *testing.T) {
	t.Parallel()
	inf := math.Inf(1)
	sum := func(list ...map[float64]float64) buckets {
		b := buckets{}
		for _, h := range list {
			for le, n := range h {
				text := fmt.Sprint(le)
				if math.IsInf(le, 1) {
					text = "+Inf"
				}
				b.put(text, n, false)
				b.put(text, 1, true)
			}
		}
		return b
	}
	of := optional.Of
	f := func(name string, want Quantiles, list ...map[float64]float64) {
		t.Helper()
		if diff := cmp.Diff(want, sum(list...).quantiles(), floats); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	f("nothing", Quantiles{})
	f("no value", Quantiles{}, map[float64]float64{0.1: 0, inf: 0})
	f("no bounds", Quantiles{}, map[float64]float64{inf: 5})
	f("no end", Quantiles{}, map[float64]float64{0.1: 5})
	f("one bucket", Quantiles{of(0.5), of(0.95), of(0.99)}, map[float64]float64{1: 10, inf: 10})
	f("beyond", Quantiles{of(2), of(2), of(2)}, map[float64]float64{1: 1, 2: 2, inf: 10})
	f("two", Quantiles{of(1), of(1.9), of(1.98)}, map[float64]float64{1: 5, 2: 10, inf: 10})
	f("a rate that fell", Quantiles{of(0.75), of(3.7), of(3.94)}, map[float64]float64{1: 5, 2: 4.9, 4: 7.5, inf: 7.5}) // 2 counts as 5
	f("two versions", Quantiles{of(1), of(3.7), of(3.94)}, map[float64]float64{1: 5, 2: 10, 4: 10, inf: 10}, map[float64]float64{1: 5, 4: 10, inf: 10})
}
