//go:build linux

package cli

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpumeter/gpumeter/exporter/hubexporter"
	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/nvidia"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi"
	"github.com/gpumeter/gpumeter/internal/workload/kubelet"
	"github.com/gpumeter/gpumeter/internal/workload/kubernetes"
	"github.com/gpumeter/gpumeter/receiver/gpureceiver"
)

// labelled is a node of Kubernetes: a GPU of 100 W, the kubelet, which has given it to a pod,
// and the API server, which knows the pod or is away.
type labelled struct {
	at    time.Time
	start time.Time
	state kubeapi.State
	pod   kubeapi.Pod
}

func (n *labelled) Open(context.Context) (device.Reader, error)      { return n, nil }
func (n *labelled) Devices(context.Context) ([]device.Device, error) { return []device.Device{n}, nil }
func (n *labelled) Close() error                                     { return nil }
func (n *labelled) ID() device.ID                                    { return device.ID{Vendor: "nvidia", UUID: "GPU-1", Model: "H200"} }
func (n *labelled) State() kubeapi.State                             { return n.state }
func (n *labelled) PodByUID(uid string) (kubeapi.Pod, bool)          { return n.pod, n.pod.UID == uid }
func (n *labelled) PodByName(_, name string) (kubeapi.Pod, bool)     { return n.pod, n.pod.Name == name }
func (n *labelled) PodByContainer(string) (kubeapi.Pod, bool)        { return kubeapi.Pod{}, false }
func (n *labelled) Claimed(_, _, _ string) ([]string, bool)          { return nil, false }
func (n *labelled) Access(_, _, _, _, _ string) (a kubeapi.Access)   { return a }

func (n *labelled) Read(context.Context, device.Tier) (device.Sample, error) {
	return device.Sample{
		ID: n.ID(), Energy: device.Of(100 * n.at.Sub(n.start).Seconds()), Powers: []device.Power{{Scope: "gpu", Instant: device.Of(100)}},
		Utilization: device.Engines{Compute: device.Of(0.9)},
	}, nil
}

func (n *labelled) Last() (kubelet.Snapshot, bool, error) {
	return kubelet.Snapshot{Time: time.Now(), Allocations: []kubelet.Allocation{
		{Namespace: "ml", Pod: "train-x", Container: "main", Resource: "nvidia.com/gpu", DeviceIDs: []string{"GPU-1"}},
	}}, true, nil
}

// Catches seconds that are billed twice because a label was edited or the owner of a pod was
// not known at first. It runs the whole way: kubelet and API server, agent with a restart,
// receiver, hub, report.
func TestLabelsChange(t *testing.T) {
	t.Parallel()
	store, err := hub.Open(t.TempDir(), hub.Options{Now: func() time.Time { return demoNow }})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	start := demoNow.Add(-10 * time.Minute)
	n := &labelled{at: start, start: start}
	writer, dir := hubexporter.NewWriter(store, nil), t.TempDir()
	var last node.Tick
	// run runs an agent from one second to another.
	run := func(from, to int, at map[int]func()) {
		t.Helper()
		owners := &workload.Resolver{Sources: []workload.Source{kubernetes.New(kubernetes.Config{Kubelet: n, API: n, Vendors: device.Vendors{nvidia.Facts}})}}
		view := node.New(node.Config{
			Sources: []node.Source{{Name: "nvidia", Open: n.Open}}, Interval: time.Second, SlowInterval: 3 * time.Second,
			StateDir: dir, BootID: "boot", Owners: owners, Host: "node1",
		})
		f := gpureceiver.NewFactory()
		emit := gpureceiver.NewEmitter(f.CreateDefaultConfig().(*gpureceiver.Config), receivertest.NewNopSettings(f.Type()))
		for s := from; s <= to; s++ {
			if change := at[s]; change != nil {
				change()
				n.state.Generation++
			}
			n.at = start.Add(time.Duration(s) * time.Second)
			last = view.Tick(t.Context(), n.at)
			allowed := 0
			if s == from && from > 0 {
				allowed = 1 // when the agent started: the last one said something else at this very moment
			}
			if r, err := writer.Metrics(t.Context(), emit.Emit(last)); err != nil || r.Refused > allowed {
				t.Fatalf("%+v, %v", r, err)
			}
		}
		if err := view.Close(); err != nil {
			t.Fatal(err)
		}
	}
	known := func(team string) func() {
		return func() {
			n.state = kubeapi.State{Synced: true, Generation: n.state.Generation}
			n.pod = kubeapi.Pod{
				UID: "u1", Namespace: "ml", Name: "train-x", Phase: "Running", Team: team,
				Owner: kubeapi.Owner{Kind: "job", Name: "train"}, Owners: []kubeapi.Owner{{Kind: "job", Name: "train"}},
			}
		}
	}
	away := func() {
		n.state = kubeapi.State{Generation: n.state.Generation, Problems: []kubeapi.Problem{{Part: kubeapi.Pods, Since: time.Now(), Err: errors.New("connection refused")}}}
		n.pod = kubeapi.Pod{}
	}
	known("red")()
	run(0, 20, map[int]func(){10: known("blue")}) // 10 s each, until second 20
	away()
	run(20, 41, map[int]func(){30: known("blue")}) // 10 s of a pod without a team, then 11 s

	held := 0.0
	for _, h := range last.Readings[0].Holders {
		held += h.Allocated
	}
	if held != 41 {
		t.Errorf("the agent counted %v s", held)
	}
	type bill struct{ Seconds, Joules float64 }
	of := func(s cost.Statement) bill { return bill{s.Total.Time().Float(), s.Total.Energy.Joules()} }
	bills := map[string]bill{}
	whole, err := cost.Bill(t.Context(), store, cost.Prices{}, start.Add(-time.Minute), demoNow, cost.Options{})
	if err != nil {
		t.Fatal(err)
	}
	bills["all"] = of(whole)
	for _, d := range cost.Dimensions() {
		if d.Name != "team" && d.Name != "workload" {
			continue
		}
		for _, g := range whole.By(d) {
			bills[d.Name+" "+g.Name] = bill{g.Time().Float(), g.Energy.Joules()}
		}
	}
	for _, team := range []string{"red", "blue"} { // a tenant sees its own series only
		s, err := cost.Bill(t.Context(), store, cost.Prices{}, start.Add(-time.Minute), demoNow, cost.Options{Match: map[string]string{"gpu_workload_team": team}})
		if err != nil {
			t.Fatal(err)
		}
		bills["tenant "+team] = of(s)
	}
	for i, at := range []time.Duration{5 * time.Second, 10 * time.Second, 15 * time.Second, 25 * time.Second} { // any two parts
		var sum bill
		for _, p := range [][2]time.Time{{start.Add(-time.Minute), start.Add(at)}, {start.Add(at), demoNow}} {
			s, err := cost.Bill(t.Context(), store, cost.Prices{}, p[0], p[1], cost.Options{})
			if err != nil {
				t.Fatal(err)
			}
			sum.Seconds += of(s).Seconds
			sum.Joules += of(s).Joules
		}
		if sum != bills["all"] {
			t.Errorf("split %d at %s: %+v", i, at, sum)
		}
	}
	want := map[string]bill{
		"all": {41, 4100}, "team red": {10, 1000}, "team blue": {21, 2100}, "team ml": {10, 1000},
		"workload ml/train": {31, 3100}, "workload ml/train-x": {10, 1000}, "tenant red": {10, 1000}, "tenant blue": {21, 2100},
	}
	if diff := cmp.Diff(want, bills); diff != "" {
		t.Errorf("bills (-want +got):\n%s", diff)
	}
	list, err := store.Instant(t.Context(), "sum(increase(gpu_workload_allocated_time_seconds_total[10m]))", start.Add(42*time.Second))
	if err != nil || len(list) != 1 || list[0].Value < 40 || list[0].Value > 43 { // increase extrapolates
		t.Errorf("increase in PromQL: %v, %v", list, err)
	}
}
