package kube

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/scheduler"
)

func labels(pairs ...string) object {
	all := object{}
	for i := 0; i+1 < len(pairs); i += 2 {
		all[pairs[i]] = pairs[i+1]
	}
	return object{"metadata": object{"labels": all}}
}

func annotations(pairs ...string) object {
	return object{"metadata": object{"annotations": labels(pairs...)["metadata"].(object)["labels"]}}
}

func phase(name string) object { return object{"status": object{"phase": name}} }

// podGroup returns a PodGroup that needs so many members.
func podGroup(name string, minimum int) object {
	return object{"metadata": object{"namespace": "ml", "name": name}, "spec": object{"minMember": minimum}}
}

// workload returns a Workload of Kueue with conditions, given as TYPE STATUS REASON MESSAGE.
func workload(name, owner string, conditions ...string) object {
	var list []any
	for _, c := range conditions {
		f := strings.SplitN(c, " ", 4)
		list = append(list, object{"type": f[0], "status": f[1], "reason": f[2], "message": f[3]})
	}
	return object{"metadata": object{"namespace": "ml", "name": name, "ownerReferences": []any{object{"uid": owner}}}, "status": object{"conditions": list}}
}

// into gives objects to the kinds of a cluster, by group and kind.
func into(t testing.TB, c *Cluster, further map[string][]object) {
	t.Helper()
	for _, k := range c.Kinds() {
		set(t, k.Sink, further[k.Group+" "+k.Kind]...)
	}
}

// Catches members that are counted under several states or not at all, such as those without a GPU, a group that waits for
// ever because a member failed and was replaced, and a need that only an object says.
func TestGroups(t *testing.T) {
	volcano, jobset := annotations("scheduling.k8s.io/group-name", "v"), labels("jobset.sigs.k8s.io/jobset-name", "js")
	kueue := []object{labels("kueue.x-k8s.io/pod-group-name", "kg"), annotations("kueue.x-k8s.io/pod-group-total-count", "3")}
	c := NewCluster(vendors, "", nil)
	into(t, c, map[string][]object{"scheduling.volcano.sh PodGroup": {podGroup("v", 4), podGroup("other", 9)}})
	set(t, NodeSink{c}, node("gn1", "64"))
	set(t, at(c, epoch),
		pod("v0", "gn1", 2, "1", volcano), pod("v1", "gn1", 2, "1", volcano, phase("Pending")), pod("v2", "", 8, "1", volcano, refused("pod group is not ready")),
		pod("js0", "gn1", 1, "1", jobset), pod("js1", "gn1", 0, "1", jobset), pod("js-old", "gn1", 1, "1", jobset, phase("Failed")), pod("js2", "gn1", 1, "1", jobset, phase("Succeeded")),
		pod("k0", "", 1, "1", append(kueue, gates("kueue.x-k8s.io/admission"))...), pod("k1", "", 0, "1", append(kueue, gates("kueue.x-k8s.io/admission"))...),
		pod("cpu0", "gn1", 0, "1", labels("jobset.sigs.k8s.io/jobset-name", "cpu")), pod("cpu1", "", 0, "1", labels("jobset.sigs.k8s.io/jobset-name", "cpu")),
		pod("one", "gn1", 0, "1", labels("jobset.sigs.k8s.io/jobset-name", "one")),
		pod("kai0", "gn1", 1, "1", annotations("pod-group-name", "unknown-need")), pod("kai1", "", 0, "1", annotations("pod-group-name", "unknown-need")),
		pod("over0", "gn1", 1, "1", labels("jobset.sigs.k8s.io/jobset-name", "over"), phase("Succeeded")), pod("over1", "gn1", 1, "1", labels("jobset.sigs.k8s.io/jobset-name", "over"), phase("Succeeded")),
	)
	s := c.Snapshot(epoch)
	var got []string
	for _, g := range s.Groups {
		got = append(got, fmt.Sprint(g.System, " ", g.Name, " needs ", g.Needed, " is ", g.State(), " ", g.Members))
	}
	want := []string{
		"jobset js needs 3 is running map[done:1 running:2]",
		"kueue kg needs 3 is waiting map[missing:1 waiting:2]",
		"volcano v needs 4 is waiting map[missing:1 placed:1 running:1 waiting:1]",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	f := func(name string, reason scheduler.Reason, line int, want string) {
		t.Helper()
		p := s.find(t, name)
		if got := s.Reason(p); got != reason {
			t.Errorf("%s waits for the reason %s, want %s", name, got, reason)
		}
		if lines := s.Why(p); lines[line] != want {
			t.Errorf("%s: %s\nwant %s", name, lines[line], want)
		}
	}
	f("v2", scheduler.Gang, 2, "Its group v (volcano) needs 4 pods: 3 exist, 2 have a place. Those that wait ask for 8 GPUs, and 2 are free.")
	f("k0", scheduler.Gang, 2, "Its group kg (kueue) needs 3 pods: 2 exist, none has a place. Those that wait ask for 1 GPU, and 2 are free.")
}

// Catches members of one gang that wait for several reasons: each fits alone, and the scheduler says of each what keeps it from the node
// once the others are there.
func TestReasonOfMembers(t *testing.T) {
	c := NewCluster(vendors, "", nil)
	into(t, c, map[string][]object{"scheduling.volcano.sh PodGroup": {podGroup("v", 3), podGroup("placed", 1)}})
	set(t, NodeSink{c}, node("gn1", "64"))
	volcano := func(group string) object { return annotations("scheduling.k8s.io/group-name", group) }
	full := refused("0/1 nodes are unavailable: 1 Insufficient nvidia.com/gpu.")
	set(t, at(c, epoch),
		pod("v0", "", 3, "1", volcano("v"), full), pod("v1", "", 3, "1", volcano("v"), refused("Pod ml/v1 can possibly be assigned to gn1, once resource is released and minAvailable is satisfied")),
		pod("v2", "", 3, "1", volcano("v"), refused("no nodes with enough resources were found: 1 node(s) didn't have enough resources: GPUs.")),
		pod("placed-0", "gn1", 1, "1", volcano("placed")), pod("more", "", 3, "1", volcano("placed"), full), pod("alone", "", 3, "1", full),
	)
	s := c.Snapshot(epoch)
	for name, want := range map[string]scheduler.Reason{"v0": scheduler.Gang, "v1": scheduler.Gang, "v2": scheduler.Gang, "more": scheduler.New, "alone": scheduler.New} {
		if got := s.Reason(s.find(t, name)); got != want {
			t.Errorf("%s waits for the reason %s, want %s", name, got, want)
		}
	}
}

// Catches a gated pod whose Workload says that a quota is the reason, or something else, and that is shown as held for no
// reason, and a Workload that is not found because a pod names it in another way.
func TestWorkloads(t *testing.T) {
	gate := gates("kueue.x-k8s.io/admission")
	owned := func(uid string) object {
		return object{"metadata": object{"ownerReferences": []any{object{"uid": uid, "kind": "Job", "controller": true}}}}
	}
	const quota = "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor default, 4 more needed"
	c := NewCluster(vendors, "", nil)
	into(t, c, map[string][]object{"kueue.x-k8s.io Workload": {
		workload("pod-a", "uid-a", "QuotaReserved False WaitingForQuota "+quota),
		workload("group", "x", "QuotaReserved False Pending "+quota),
		workload("job-c", "uid-job", "QuotaReserved True Reserved ok", "Admitted False UnsatisfiedAdmissionChecks The workload has failed checks"),
		workload("named", "y", "QuotaReserved False NoMatchingFlavor no flavor"),
		workload("done", "uid-e", "QuotaReserved True Reserved ok", "Admitted True Admitted ok"),
		merge(workload("foreign", "uid-g", "QuotaReserved False WaitingForQuota this is not for you"), object{"metadata": object{"namespace": "evil"}}),
		workload("stopped", "uid-f", "QuotaReserved False Suspended ClusterQueue gpus is stopped"),
	}})
	set(t, NodeSink{c}, node("gn1", "64"))
	set(t, at(c, epoch),
		pod("a", "", 4, "1", gate), pod("b", "", 4, "1", gate, labels("kueue.x-k8s.io/pod-group-name", "group")), pod("c", "", 4, "1", gate, owned("uid-job")),
		pod("d", "", 4, "1", gate, annotations("kueue.x-k8s.io/workload", "named")), pod("e", "", 4, "1", gate), pod("f", "", 4, "1", gate), pod("g", "", 4, "1", gates("x")))
	s := c.Snapshot(epoch)
	f := func(name string, reason scheduler.Reason, want string) {
		t.Helper()
		p := s.find(t, name)
		if got := s.Reason(p); got != reason {
			t.Errorf("%s waits for the reason %s, want %s", name, got, reason)
		}
		if got := strings.Join(s.saysGroup(p), " "); got != want {
			t.Errorf("%s: %s\nwant %s", name, got, want)
		}
	}
	f("a", scheduler.Quota, "Kueue says of workload pod-a: "+quota+".")
	f("b", scheduler.Quota, "Kueue says of workload group: "+quota+".")
	f("c", scheduler.Gated, "Kueue says of workload job-c: The workload has failed checks.")
	f("d", scheduler.Affinity, "Kueue says of workload named: no flavor.")
	f("e", scheduler.Gated, "")
	f("f", scheduler.Gated, "Kueue says of workload stopped: ClusterQueue gpus is stopped.")
	f("g", scheduler.Gated, "")
}

// Catches a pod that counts as evicted at each event, for having been evicted before anybody watched, or for ending by
// itself, and an eviction by Kueue, which no condition of the pod tells.
func TestEvictions(t *testing.T) {
	w := NewWaits(epoch)
	c := NewCluster(vendors, "team", w)
	target := func(reason string) object {
		return object{"status": object{"conditions": []any{object{"type": "DisruptionTarget", "status": "True", "reason": reason}}}}
	}
	deleted := object{"metadata": object{"deletionTimestamp": "2026-11-19T12:00:00Z"}}
	kueue := []object{annotations("kueue.x-k8s.io/workload", "w"), deleted}
	set(t, at(c, epoch), pod("before", "gn1", 1, "1", target("EvictionByEvictionAPI")), pod("a", "gn1", 1, "1"), pod("b", "gn1", 1, "1"), pod("plain", "gn1", 0, "1"), pod("k", "gn1", 1, "1", kueue[0]))
	sink := at(c, epoch)
	for range 2 {
		sink.Put(raw(t, pod("before", "gn1", 1, "1", target("EvictionByEvictionAPI"), deleted)))
		sink.Put(raw(t, pod("a", "gn1", 1, "1", target("PreemptionByScheduler"))))
		sink.Put(raw(t, pod("a", "gn1", 1, "1", target("PreemptionByScheduler"), deleted)))
		sink.Put(raw(t, pod("plain", "gn1", 0, "1", target("PreemptionByScheduler"))))
		sink.Put(raw(t, pod("b", "gn1", 1, "1", deleted)))
		sink.Put(raw(t, pod("k", "gn1", 1, "1", kueue...)))
	}
	sink.Delete(raw(t, pod("a", "gn1", 1, "1", target("PreemptionByScheduler"), deleted)))
	into(t, c, map[string][]object{"kueue.x-k8s.io Workload": {workload("w", "z", "Evicted True DeactivatedDueToRequeuingLimitExceeded x")}})
	sink.Put(raw(t, pod("k", "gn1", 1, "1", kueue...)))
	into(t, c, nil) // admitted again
	sink.Put(raw(t, pod("k", "gn1", 1, "1", kueue...)))
	into(t, c, map[string][]object{"kueue.x-k8s.io Workload": {workload("w", "z", "Evicted True Preempted x")}})
	sink.Delete(raw(t, pod("k", "gn1", 1, "1", kueue...)))
	sink.Put(raw(t, pod("new", "gn1", 1, "1", target("NewReason"), object{"metadata": object{"labels": object{"team": "t"}}})))
	want := map[Eviction]int64{{"ml", "", "preempted"}: 1, {"ml", "", "deactivated"}: 1, {"ml", "t", "other"}: 1}
	if diff := cmp.Diff(want, w.Totals().Evicted); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for i := range 2 * maxEvictions {
		w.lost(sight{pod: &Pod{UID: fmt.Sprint(i), Namespace: fmt.Sprint("n", i), Evicted: "preempted"}, now: epoch})
	}
	if n := len(w.Totals().Evicted); n > maxEvictions+1 {
		t.Errorf("%d groups", n)
	}
}

// Catches an index of evicted Workloads that keeps those that were admitted again or are gone, and so grows, or lacks one.
func TestEvictedWorkloads(t *testing.T) {
	c := NewCluster(vendors, "", nil)
	evicted, admitted := workload("w", "z", "Evicted True Preempted x"), workload("w", "z", "Evicted False QuotaReserved x")
	f := func(when string, want int) {
		t.Helper()
		if len(c.kueue.picked) != want {
			t.Errorf("%s: %d evicted, want %d", when, len(c.kueue.picked), want)
		}
	}
	set(t, &c.kueue, evicted, workload("other", "y", "Evicted False x x"))
	f("listed", 1)
	c.kueue.Put(raw(t, admitted))
	f("admitted again", 0)
	c.kueue.Put(raw(t, evicted))
	f("evicted", 1)
	c.kueue.Delete(raw(t, evicted))
	f("deleted", 0)
	c.kueue.Put(raw(t, evicted))
	set(t, &c.kueue)
	f("gone from the list", 0)
}
