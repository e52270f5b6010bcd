package kube

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/scheduler"
)

// Catches a pod that is counted under several reasons or not at all, and devices of parts that are counted as whole.
func TestCounts(t *testing.T) {
	mig := object{"spec": object{"containers": []any{object{"resources": object{"requests": object{"nvidia.com/mig-1g.10gb": "2"}}}}}}
	team := object{"metadata": object{"labels": object{"team": "a"}}}
	s := snapshot(t, []object{node("gn1", "64"), node("gn2", "64", object{"metadata": object{"labels": object{"nvidia.com/gpu.product": "A100", "pool": "old"}}})}, []object{
		pod("run", "gn1", 5, "8", team), pod("start", "gn1", 1, "8", object{"status": object{"phase": "Pending"}}),
		pod("wait", "", 8, "8", refused(lacksGPUAndCPU)), pod("more", "", 8, "8", refused(lacksGPUAndCPU)),
		pod("old", "", 1, "1", object{"spec": object{"nodeSelector": object{"pool": "old"}}}, gates("x")),
		pod("part", "", 0, "1", mig), pod("done", "gn1", 8, "1", object{"status": object{"phase": "Succeeded"}}),
		pod("plain", "gn1", 0, "1"),
	})
	want := scheduler.Counts{}
	want.Add(scheduler.Group{Queue: "ml", Team: "a", Model: "H100", State: scheduler.Running}, 1, 5)
	want.Add(scheduler.Group{Queue: "ml", Model: "H100", State: scheduler.Starting}, 1, 1)
	want.Add(scheduler.Group{Queue: "ml", State: scheduler.Pending, Reason: scheduler.New}, 3, 16) // two fit gn2, and one asks for parts that no node has
	want.Add(scheduler.Group{Queue: "ml", Model: "A100", State: scheduler.Held, Reason: scheduler.Gated}, 1, 1)
	want.Add(scheduler.Group{Queue: "ml", Model: "H100", State: scheduler.Finished}, 1, 8)
	if diff := cmp.Diff(want, s.Counts()); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}
