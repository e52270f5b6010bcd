package queue

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// Catches free devices that are blocked by jobs which somebody holds, jobs for any model that block the same device twice or only that of
// an unnamed model, and a waiting job that blocks more than it asks for, and
// one that blocks devices on which it could never run.
func TestPools(t *testing.T) {
	f := func(name string, c Cluster, want map[string]float64, totals string) {
		t.Helper()
		got := map[string]float64{}
		for _, p := range c.Pools() {
			got[p.Model] = p.Blocked
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: blocked devices (-want +got):\n%s", name, diff)
		}
		if text := TotalsOf([]Cluster{c}).String(); text != totals {
			t.Errorf("%s: %q, want %q", name, text, totals)
		}
	}
	devices := func(free map[string]float64) (list []Count) {
		for model, n := range free {
			list = append(list, Count{Key{Model: model, State: stateFree}, n}, Count{Key{Model: model, State: stateAllocated}, 10})
		}
		return list
	}
	waits := func(model, reason string, n float64) Count { return Count{Key{Model: model, Reason: reason}, n} }
	one := []Count{{Key{Reason: "gpu"}, 1}}
	f("nothing", Cluster{}, map[string]float64{}, "")
	f("nothing waits", Cluster{Devices: devices(map[string]float64{"a": 4})}, map[string]float64{"a": 0}, "")
	f("fewer wait", Cluster{Devices: devices(map[string]float64{"a": 4}), PendingJobs: one, Pending: []Count{waits("a", "cpu", 1)}}, map[string]float64{"a": 1}, "1 job waits for 1 GPU, 1 free meanwhile")
	f("more wait", Cluster{Devices: devices(map[string]float64{"a": 4, "b": 8}), PendingJobs: one, Pending: []Count{waits("a", "gpu", 16)}}, map[string]float64{"a": 4, "b": 0}, "1 job waits for 16 GPUs, 4 free meanwhile")
	f("held", Cluster{Devices: devices(map[string]float64{"a": 4}), PendingJobs: one, Pending: []Count{waits("a", "held", 4), waits("a", "dependency", 4)}}, map[string]float64{"a": 0}, "1 job waits for 8 GPUs")
	f("any model", Cluster{Devices: devices(map[string]float64{"a": 4, "b": 8, "": 1}), PendingJobs: one, Pending: []Count{waits("a", "cpu", 3), waits("", "quota", 9)}}, map[string]float64{"a": 4, "b": 8, "": 0}, "1 job waits for 12 GPUs, 12 free meanwhile")
	f("a model that is not there", Cluster{Devices: devices(map[string]float64{"a": 4, "b": 8}), PendingJobs: one, Pending: []Count{waits("c", "gpu", 8)}}, map[string]float64{"a": 0, "b": 0}, "1 job waits for 8 GPUs")
	f("no node may run it", Cluster{Devices: devices(map[string]float64{"a": 4, "b": 8}), PendingJobs: one, Pending: []Count{waits("", "taint", 4), waits("", "affinity", 4), waits("a", "taint", 1)}}, map[string]float64{"a": 1, "b": 0}, "1 job waits for 9 GPUs, 1 free meanwhile")
	f("no node may run it, and there is no model", Cluster{Devices: devices(map[string]float64{"": 4}), PendingJobs: one, Pending: []Count{waits("", "taint", 4)}}, map[string]float64{"": 0}, "1 job waits for 4 GPUs")
	f("no model is named", Cluster{Devices: devices(map[string]float64{"": 4}), PendingJobs: one, Pending: []Count{waits("", "cpu", 3)}}, map[string]float64{"": 3}, "1 job waits for 3 GPUs, 3 free meanwhile")
}

// Catches time that counts although nothing was free, or nothing waited for it, at that moment.
func TestBlockedIn(t *testing.T) {
	m := querytest.NewMemory()
	for i := range 60 {
		at := now.Add(time.Duration(i-59) * time.Minute)
		free, pending := 0.0, 0.0
		if i >= 20 {
			free = 4
		}
		if i < 40 {
			pending = 2
		}
		add(m, at, "slurm", SeriesDevices, free, LabelModel, "h100", LabelDeviceState, "free")
		add(m, at, "slurm", SeriesDevices, 7, LabelModel, "h100", LabelDeviceState, "allocated")
		add(m, at, "slurm", SeriesPending, pending, LabelReason, "resources", LabelModel, "")
		add(m, at, "slurm", SeriesPending, 8, LabelReason, "held", LabelModel, "")
		add(m, at, "slurm", SeriesPending, 8, LabelReason, "affinity", LabelModel, "")
		add(m, at, "slurm", SeriesPending, 8, LabelReason, "gpu", LabelModel, "b200")
	}
	got, err := BlockedIn(t.Context(), m, now.Add(-time.Hour), now)
	if diff := cmp.Diff([]Blocked{{"east", "slurm", "h100", 2 * 20 * 60}}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}
