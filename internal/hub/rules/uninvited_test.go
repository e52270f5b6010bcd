package rules

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Catches a workload that uses the device of another and is not reported, and one that is although
// it holds a partition of the device.
func TestUninvited(t *testing.T) {
	t.Parallel()
	f := newWorld(t)
	alloc := func(value float64, kind, name string, more ...string) {
		f.add(2*time.Minute, 0, value, append([]string{
			"__name__", fleet.SeriesAllocation, "gpu_uuid", "GPU-a", "gpu_index", "5", "host_name", "n1", "k8s_namespace_name", "ml",
			"gpu_workload_kind", kind, "gpu_workload_name", name,
		}, more...)...)
	}
	alloc(1, "deployment", "api")
	alloc(0, "statefulset", "mallory", "gpu_workload_team", "interns")
	alloc(0, "job", "part", "gpu_partition_id", "MIG-1")
	alloc(0.5, "job", "part", "gpu_partition_id", "MIG-2")
	alloc(0, "unattributed", "")
	f.found()
	got, err := Evaluate(t.Context(), f.s, now)
	if err != nil {
		t.Fatal(err)
	}
	want := []Finding{{
		Rule: NotAllocated, Severity: "WARN",
		Labels: query.Labels{
			"gpu_uuid": "GPU-a", "gpu_index": "5", "host_name": "n1", "k8s_namespace_name": "ml",
			"gpu_workload_kind": "statefulset", "gpu_workload_name": "mallory", "gpu_workload_team": "interns",
		},
		Reason: "ml/mallory uses GPU 5 on n1 without an allocation",
		Action: "Find out who runs the workload, and whether its container is privileged or mounts the device.",
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	e := (&Change{Finding: got[0], Since: now, Time: now}).Event()
	if key := e.Attributes["gpu.finding.key"]; key != "statefulset/ml/mallory" {
		t.Errorf("the event has the key %q: another workload on the device would replace it", key)
	}
}
