package cost

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// groups returns the device hours of a statement by dimensions.
func groups(t *testing.T, s *Statement, names ...string) map[string]float64 {
	t.Helper()
	var dims []Dimension
	for _, name := range names {
		d, ok := DimensionOf(name)
		if !ok {
			t.Fatal(name)
		}
		dims = append(dims, d)
	}
	out := map[string]float64{}
	for _, g := range s.By(dims...) {
		out[g.Name] += g.Allocated().Duration().Hours()
	}
	return out
}

// Catches nodes, namespaces and workloads of the same name in two clusters that are one row of a
// report.
func TestTwoClusters(t *testing.T) {
	t.Parallel()
	m := querytest.NewMemory()
	for i := range 121 {
		at := noon.Add(time.Duration(i-120) * time.Minute)
		for cluster, uuid := range map[string]string{"a": "g1", "b": "g2"} {
			one(m, at, float64(i*60), 0, "gpu_uuid", uuid, "host_name", "n1", "k8s_node_name", "n1", "k8s_cluster_name", cluster, "k8s_namespace_name", "lab", "k8s_pod_name", "train-0", "k8s_pod_uid", uuid)
		}
	}
	s := mustBill(t, m, Prices{}, noon.Add(-2*time.Hour), noon)
	for dimension, want := range map[string]map[string]float64{
		"node":      {"n1 @a": 2, "n1 @b": 2},
		"namespace": {"lab @a": 2, "lab @b": 2},
		"workload":  {"lab/j @a": 2, "lab/j @b": 2},
		"cluster":   {"a": 2, "b": 2},
	} {
		if diff := cmp.Diff(want, groups(t, &s, dimension)); diff != "" {
			t.Errorf("by %s (-want +got):\n%s", dimension, diff)
		}
	}
	if diff := cmp.Diff(map[string]float64{"a / n1 / lab": 2, "b / n1 / lab": 2}, groups(t, &s, "cluster", "node", "namespace")); diff != "" {
		t.Errorf("with the cluster (-want +got):\n%s", diff)
	}
}

// Catches hours that are lost or counted twice when a device moves to another node, whose agent
// starts its counters at 0.
func TestBillOfMovedDevice(t *testing.T) {
	t.Parallel()
	m := querytest.NewMemory()
	for i := range 61 {
		n1, n2 := noon.Add(time.Duration(i-130)*time.Minute), noon.Add(time.Duration(i-60)*time.Minute)
		one(m, n1, float64(i*60), 0, "host_name", "n1", "k8s_pod_uid", "p1")
		one(m, n2, float64(i*60), 0, "host_name", "n2", "k8s_pod_uid", "p2")
	}
	s := mustBill(t, m, Prices{}, noon.Add(-3*time.Hour), noon)
	if diff := cmp.Diff(map[string]float64{"n1": 1, "n2": 1}, groups(t, &s, "node")); diff != "" {
		t.Errorf("hours by node (-want +got):\n%s", diff)
	}
}
