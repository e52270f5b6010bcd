//go:build linux

package local

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/workload/kubeapi"
)

// Zone and region of a node become known late, and yield to configured ones.
func TestPlace(t *testing.T) {
	var node kubeapi.Node
	resource := beside(
		func() map[string]string { return map[string]string{"k8s.cluster.name": "prod", "cloud.region": "here"} },
		func() map[string]string { return place(node) },
	)
	f := func(want map[string]string) {
		t.Helper()
		if diff := cmp.Diff(want, resource()); diff != "" {
			t.Errorf("resource (-want +got):\n%s", diff)
		}
	}
	f(map[string]string{"k8s.cluster.name": "prod", "cloud.region": "here"})
	node = kubeapi.Node{Zone: "z1", Region: "r1"}
	f(map[string]string{"k8s.cluster.name": "prod", "cloud.region": "here", "cloud.availability_zone": "z1"})
}
