package slurmctl

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/scheduler"
	"github.com/gpumeter/gpumeter/internal/slurm"
)

// Catches a state or a reason of Slurm that means something else in the words of all schedulers, jobs without GPUs among those with
// some, and a job array that counts as one.
func TestWords(t *testing.T) {
	f := func(state, reason string, want scheduler.State, why scheduler.Reason) {
		t.Helper()
		c := Counts([]slurm.Job{
			{ID: "1", Tasks: 3, State: state, Reason: reason, Partition: "gpu", Account: "ml", GPUs: 2, NodeList: "a"},
			{ID: "2", Tasks: 1, State: state, Reason: reason, Partition: "gpu", Account: "ml"},
		})
		expect := scheduler.Counts{}
		expect.Add(scheduler.Group{Queue: "gpu", Team: "ml", State: want, Reason: why}, 3, 6)
		if diff := cmp.Diff(expect, c); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", state, reason, diff)
		}
	}
	f("RUNNING", "None", scheduler.Running, "")
	f("CONFIGURING", "", scheduler.Starting, "")
	f("COMPLETING", "", scheduler.Stopping, "")
	f("SUSPENDED", "", scheduler.Suspended, "")
	f("TIMEOUT", "TimeLimit", scheduler.Finished, "")
	f("PENDING", "", scheduler.Pending, scheduler.New)
	f("PENDING", "Resources", scheduler.Pending, scheduler.Resources)
	f("PENDING", "Priority", scheduler.Pending, scheduler.Priority)
	f("PENDING", "JobHeldUser", scheduler.Held, scheduler.Gated)
	f("PENDING", "QOSMaxGRESPerUser", scheduler.Pending, scheduler.Quota)
	f("PENDING", "AssocGrpGRES", scheduler.Pending, scheduler.Quota)
	f("PENDING", "PartitionTimeLimit", scheduler.Pending, scheduler.Quota)
	f("PENDING", "PartitionDown", scheduler.Pending, scheduler.Unavailable)
	f("PENDING", "ReqNodeNotAvail, UnavailableNodes:a", scheduler.Pending, scheduler.Unavailable)
	f("PENDING", "DependencyNeverSatisfied", scheduler.Pending, scheduler.Dependency)
	f("PENDING", "BeginTime", scheduler.Pending, scheduler.Later)
	f("PENDING", "Licenses", scheduler.Pending, scheduler.License)
	f("PENDING", "SomethingNew", scheduler.Pending, scheduler.Other)
}

// Catches GPUs that are in two states or in none, and stranded GPUs that could be used.
func TestRoom(t *testing.T) {
	gpus := func(total, allocated int64) []GPUs { return []GPUs{{Type: "h100", Total: total, Allocated: allocated}} }
	got := Room([]Node{
		{Name: "mixed", State: "mixed", CPUs: 16, CPUsAllocated: 4, Memory: 100, GPUs: gpus(8, 5)},
		{Name: "no CPU", State: "mixed", CPUs: 16, CPUsAllocated: 16, GPUs: gpus(8, 6)},
		{Name: "no memory", State: "mixed", CPUs: 16, CPUsAllocated: 4, Memory: 100, MemoryAllocated: 100, GPUs: gpus(8, 7)},
		{Name: "drained", State: "drained", CPUs: 16, GPUs: gpus(8, 0)},
		{Name: "reserved", State: "reserved", CPUs: 16, GPUs: gpus(4, 0)},
		{Name: "down", State: "down", CPUs: 16, GPUs: gpus(2, 0)},
		{Name: "future", State: "future", CPUs: 16, GPUs: gpus(8, 0)},
	})
	want := scheduler.Room{Pools: map[string]*scheduler.Pool{"h100": {
		Devices:  map[scheduler.DeviceState]int64{scheduler.Allocated: 18, scheduler.Idle: 6, scheduler.Drained: 12, scheduler.Down: 2},
		Free:     scheduler.Free{3, 2, 1},
		Stranded: map[scheduler.Cause]int64{scheduler.LacksCPU: 2, scheduler.LacksMemory: 1, scheduler.Cordoned: 12, scheduler.NotReady: 2},
	}}}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b scheduler.Room) bool {
		return cmp.Equal(a.Pools, b.Pools) && a.Unusable.OK() == b.Unusable.OK()
	})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Catches a fair share of what has no share, which would be infinite or that of the whole cluster.
func TestLoad(t *testing.T) {
	f := func(s Share, want float64, ok bool) {
		t.Helper()
		if got, known := s.Load().Get(); known != ok || got != want {
			t.Errorf("%+v has a load of %v, %v", s, got, known)
		}
	}
	f(Share{Account: "ml", Norm: optional.Of(0.25), Usage: optional.Of(0.5)}, 2, true)
	f(Share{Account: "ml", Norm: optional.Of(0.25), Usage: optional.Of(0.0)}, 0, true)
	f(Share{Account: "ml", Norm: optional.Of(0.0), Usage: optional.Of(0.5)}, 0, false)
	f(Share{Account: "ml", Usage: optional.Of(0.5)}, 0, false)
	f(Share{Account: "ml", Norm: optional.Of(0.25)}, 0, false)
	f(Share{Account: "root", Norm: optional.Of(1.0), Usage: optional.Of(1.0)}, 0, false)
}
