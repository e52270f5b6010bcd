package kube

import (
	"testing"
	"time"

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

// Catches a pod that counts twice: at each event, after a list, and for another process that counted it before.
func TestWaits(t *testing.T) {
	moment := func(s int) string { return epoch.Add(time.Duration(s) * time.Second).Format(time.RFC3339) }
	scheduled := func(s int) object {
		return object{"status": object{"conditions": []any{object{"type": "PodScheduled", "status": "True", "lastTransitionTime": moment(s)}}}}
	}
	started := func(s int) object {
		return object{"status": object{"containerStatuses": []any{object{"state": object{"running": object{"startedAt": moment(s)}}}}}}
	}
	w := NewWaits()
	c := NewCluster(vendors, "", w)
	sink := at(c, epoch)
	sums := func(when string, scheduledCount uint64, scheduledSum float64, startedCount uint64, startedSum float64) {
		t.Helper()
		of := func(h scheduler.Histograms) (uint64, float64) {
			if h["ml"] == nil {
				return 0, 0
			}
			return h["ml"].Count, h["ml"].Sum
		}
		a, b := w.Histograms()
		n1, s1 := of(a)
		n2, s2 := of(b)
		if n1 != scheduledCount || s1 != scheduledSum || n2 != startedCount || s2 != startedSum {
			t.Errorf("%s: %d waited %v s and %d started after %v s; want %d, %v, %d, %v", when, n1, s1, n2, s2, scheduledCount, scheduledSum, startedCount, startedSum)
		}
	}
	set(t, sink, pod("before", "gn1", 1, "1", scheduled(5)), pod("a", "", 1, "1"), pod("plain", "gn1", 0, "1", scheduled(9)))
	sums("the first list", 0, 0, 0, 0)
	a := pod("a", "gn1", 1, "1", scheduled(30))
	sink.Put(raw(t, a))
	sink.Put(raw(t, a))
	sums("one was scheduled", 1, 30, 0, 0)
	a = pod("a", "gn1", 1, "1", scheduled(30), started(50))
	sink.Put(raw(t, a))
	sink.Put(raw(t, pod("before", "gn1", 1, "1", scheduled(5), started(8))))
	sums("two started", 1, 30, 2, 23)
	set(t, sink, a, pod("between", "gn1", 1, "1", scheduled(7)))
	sums("another list", 2, 37, 2, 23)
	sink.Put(raw(t, pod("late", "", 1, "1")))
	sink.Delete(raw(t, pod("late", "gn1", 1, "1", scheduled(3), object{"status": object{"phase": "Failed"}})))
	sums("deleted before it was seen on a node", 3, 40, 2, 23)
}
