//go:build linux

package cli

import (
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/demo"
	"github.com/gpumeter/gpumeter/internal/device/sim"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/node"
)

const answerPrices = `
currency: EUR
prices:
- match: {model: "*"}
  rates: [{from: 2020-01-01, kind: owned, capex: 43830, years: 5}]
power:
- rates: [{from: 2020-01-01, per_kwh: 0.30, pue: 1.2}]
`

// answerFleet has every kind of device and of holder that answers could differ in.
func answerFleet() []demo.Machine {
	pod := func(owner string) []sim.Stay {
		return []sim.Stay{{Pod: sim.Pod{Namespace: "ml", Name: owner + "-0", UID: "uid-" + owner, Container: "main", Kind: "job", Owner: owner, Team: "team-" + owner}}}
	}
	job := func(id string) []sim.Stay {
		return []sim.Stay{{Job: sim.Job{ID: id, Name: "md", User: "otto", Account: "chemistry", Partition: "gpu", Cluster: "hpc"}}}
	}
	return []demo.Machine{
		{Host: "kube", Labels: map[string]string{"k8s.cluster.name": "prod", "k8s.node.name": "kube"}, Groups: []sim.Group{
			{Model: "h200", Devices: 2, Role: "training", Stays: pod("train")},
			{Model: "gh200", Devices: 1, Role: "training", Stays: pod("super")}, // a power of the GPU and one of the module
			{Model: "mi300x", Devices: 1, Role: "idle", Stays: pod("hoarder")},  // no edge sensor
			{Model: "h100", Devices: 1, Role: "partitioned"},                    // MIG
			{Model: "gaudi3", Devices: 1, Role: "inference", Stays: pod("gaudi")},
			{Model: "v6e", Devices: 1, Role: "training", Stays: pod("tpu")},
			{Model: "trn2", Devices: 1, Role: "inference"}, // cores with tenants of their own
			{Model: "p150a", Devices: 1, Role: "inference", Stays: pod("tensor")},
			{Model: "max1550", Devices: 1, Role: "training"}, // nobody has it
		}},
		{Host: "slurm", Labels: map[string]string{}, Groups: []sim.Group{
			{Model: "a100", Devices: 2, Role: "training", Stays: job("7")},
			{Model: "a100", Devices: 1, Role: "idle", Stays: job("8")},
		}},
	}
}

const (
	answerAge  = 3 * time.Hour
	answerStep = time.Minute
)

// answerStore returns a store in which the fleet has lived for answerAge, and the last tick of
// each machine.
func answerStore(t *testing.T) (*hub.Store, []node.Tick) {
	t.Helper()
	store, err := hub.Open(t.TempDir(), hub.Options{Now: func() time.Time { return demoNow }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	var last []node.Tick
	for _, m := range answerFleet() {
		to, err := demo.Into(store)
		if err != nil {
			t.Fatal(err)
		}
		n, err := demo.NewNode(m, demoNow.Add(-answerAge), to, zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		var tick node.Tick
		for at := demoNow.Add(-answerAge); !at.After(demoNow); at = at.Add(answerStep) {
			tick = n.Tick(t.Context(), at)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		last = append(last, tick)
	}
	sliced(t, store)
	return store, last
}

// sliced writes a device that two pods share by time slicing, of which one is idle, as an
// agent exports it.
func sliced(t *testing.T, store *hub.Store) {
	t.Helper()
	of := func(name string, more ...string) hub.Labels {
		l := []string{
			fleet.LabelName, name, fleet.LabelUUID, "GPU-sliced", fleet.LabelIndex, "0", fleet.LabelModel, "NVIDIA L40S", fleet.LabelVendor, "nvidia",
			fleet.LabelHost, "sliced", fleet.LabelNode, "sliced", fleet.LabelCluster, "prod", fleet.LabelSimulated, "true",
		}
		return labels.FromStrings(append(l, more...)...)
	}
	a := store.Appender(t.Context())
	for at := demoNow.Add(-answerAge); !at.After(demoNow); at = at.Add(answerStep) {
		ms, seconds := at.UnixMilli(), at.Sub(demoNow.Add(-answerAge)).Seconds()
		a.Gauge(of(fleet.SeriesUp), ms, 1)
		a.Gauge(of(fleet.SeriesHealth), ms, 1)
		a.Gauge(of(fleet.SeriesPower), ms, 200)
		a.Gauge(of(fleet.SeriesTemperature), ms, 55)
		a.Gauge(of(fleet.SeriesUtilization), ms, 0.5)
		for i, name := range []string{"left", "right"} {
			who := []string{fleet.LabelKind, "job", fleet.LabelWorkload, name, fleet.LabelTeam, "team-" + name, fleet.LabelNamespace, "ml", fleet.LabelPodUID, "uid-" + name, fleet.LabelContainer, "main"}
			a.Gauge(of(fleet.SeriesAllocation, append(who, fleet.LabelShareBasis, "process")...), ms, 0.5)
			start := demoNow.Add(-answerAge).UnixMilli()
			a.Counter(of(fleet.SeriesAllocatedTime, who...), start, ms, 0.5*seconds)
			a.Counter(of(fleet.SeriesActiveTime, who...), start, ms, 0.5*seconds*float64(i))
			a.Counter(of(fleet.SeriesEnergy, who...), start, ms, 100*seconds)
		}
	}
	if r, err := a.Commit(); err != nil || r.Refused > 0 {
		t.Fatalf("%+v, %v", r, err)
	}
}
