package kube

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/scheduler"
)

// Catches a reason that names what keeps the pod from nodes without free devices, or that follows the number
// of nodes in the message, most of which have no device at all.
func TestWhy(t *testing.T) {
	s := worked(t)
	f := func(name string, reason scheduler.Reason, want ...string) {
		t.Helper()
		p := s.find(t, name)
		if got := s.Reason(p); p.State.Waits() && got != reason {
			t.Errorf("%s waits for the reason %s, want %s", name, got, reason)
		}
		if diff := cmp.Diff(strings.Join(want, "\n"), strings.Join(s.Why(p), "\n")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	f("train-3", scheduler.CPU,
		"ml/train-3 has waited 1m 0s for 8 nvidia.com/gpu, 8 CPUs and 8 GiB of memory: the nodes with enough of them free have too little CPU.",
		"12 of 24 nvidia.com/gpu are free: gn3 (8 free) has 4 of 8 CPUs free; gn1 (3 free) has 3 of 8 nvidia.com/gpu free; gn2 (1 free) has 1 of 8 nvidia.com/gpu free.",
		"The scheduler says: 1 node: Insufficient cpu; 2 nodes: Insufficient nvidia.com/gpu. Eviction of others: 1 node: Preemption is not helpful for scheduling; 2 nodes: No preemption victims found for incoming pod.")
	f("gated-0", scheduler.Gated,
		"ml/gated-0 has waited 1m 0s for 1 nvidia.com/gpu, 1 CPU and 8 GiB of memory: its scheduling gates are closed.",
		"12 of 24 nvidia.com/gpu are free: gn3 (8 free) fits by its resources, taints and labels; gn1 (3 free) fits by its resources, taints and labels; gn2 (1 free) fits by its resources, taints and labels.",
		"Gates: example.com/admission. The scheduler ignores the pod until whoever set them removes them.")
	f("train-0", "", "ml/train-0 does not wait: it is running on gn2.")
}

// Each kind of obstacle, alone and beside others. Catches a pod that waits for its own pool and is reported as
// excluded by the taint of another.
func TestReasons(t *testing.T) {
	tainted := object{"spec": object{"taints": []any{object{"key": "team", "value": "a", "effect": "NoSchedule"}}}}
	cordoned := object{"spec": object{"unschedulable": true}}
	labeled := func(pool string) object { return object{"metadata": object{"labels": object{"pool": pool}}} }
	selects := func(pool string) object { return object{"spec": object{"nodeSelector": object{"pool": pool}}} }
	const gpuMessage = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
	f := func(name string, want scheduler.Reason, waiting object, nodes []object, pods ...object) {
		t.Helper()
		s := snapshot(t, nodes, append(pods, waiting))
		if got := s.Reason(s.find(t, "w")); got != want {
			t.Errorf("%s: the reason is %s, want %s\n%s", name, got, want, strings.Join(s.Why(s.find(t, "w")), "\n"))
		}
	}
	full := func(at string) object { return pod("full-"+at, at, 8, "1") }
	f("nothing was said", scheduler.New, pod("w", "", 1, "1"), []object{node("a", "64")})
	f("no such device", scheduler.Device, pod("w", "", 1, "1", refused(gpuMessage)), nil)
	f("all taken", scheduler.Device, pod("w", "", 1, "1", refused(gpuMessage)), []object{node("a", "64")}, full("a"))
	f("only a tainted node", scheduler.Taint, pod("w", "", 1, "1", refused("0/1 nodes are available: 1 node(s) had untolerated taint {team: a}.")), []object{node("a", "64", tainted)})
	f("its own pool is full", scheduler.Device, pod("w", "", 1, "1", refused(gpuMessage)), []object{node("a", "64", tainted), node("b", "64")}, full("b"))
	f("no node of its label", scheduler.Affinity, pod("w", "", 1, "1", selects("x"), refused("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.")), []object{node("a", "64", labeled("y"))})
	f("its label is full", scheduler.Device, pod("w", "", 1, "1", selects("x"), refused(gpuMessage)), []object{node("a", "64", labeled("x")), node("b", "64", labeled("y"))}, full("a"))
	f("room on a cordoned node", scheduler.Unavailable, pod("w", "", 1, "1", refused(gpuMessage)), []object{node("a", "64", cordoned), node("b", "64")}, full("b"))
	f("memory", scheduler.Memory, pod("w", "", 1, "1", refused("0/1 nodes are available: 1 Insufficient memory.")), []object{node("a", "64", object{"status": object{"allocatable": object{"memory": "4Gi"}}})})
	f("pods", scheduler.Slots, pod("w", "", 1, "1", refused("0/1 nodes are available: 1 Too many pods.")), []object{node("a", "64", object{"status": object{"allocatable": object{"pods": "0"}}})})
	f("a volume", scheduler.Volume, pod("w", "", 1, "1", refused(`0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.`)), []object{node("a", "64")}, full("a"))
	f("affinity to pods", scheduler.Affinity, pod("w", "", 1, "1", refused("0/9 nodes are available: 1 node(s) didn't match pod anti-affinity rules, 8 Insufficient nvidia.com/gpu.")), []object{node("a", "64")})
	f("another scheduler", scheduler.Gang, pod("w", "", 1, "1", refused("pod group is not ready, 1 Pending, 4 minAvailable")), []object{node("a", "64")})
	f("another scheduler has found a place", scheduler.Gang, pod("w", "", 1, "1", refused("Pod ml/quota-0 can possibly be assigned to a, once resource is released and minAvailable is satisfied")), []object{node("a", "64")})
	f("room was made", scheduler.Preempting, pod("w", "", 8, "1", object{"status": object{"nominatedNodeName": "a"}}, refused(gpuMessage)), []object{node("a", "64")}, full("a"))
	f("the pods without devices took the CPU", scheduler.CPU, pod("w", "", 1, "8", refused("0/1 nodes are available: 1 Insufficient cpu.")), []object{node("a", "8")}, pod("plain", "a", 0, "2"))
}

// Catches nodes that may not be read, which must not become nodes without devices.
func TestReasonWithoutNodes(t *testing.T) {
	c := NewCluster(vendors, "", nil)
	set(t, at(c, epoch), pod("w", "", 8, "8", refused(lacksGPUAndCPU)))
	s := c.Snapshot(epoch)
	p := s.find(t, "w")
	want := []string{
		"ml/w has waited 0s for 8 nvidia.com/gpu, 8 CPUs and 8 GiB of memory: no node where it may run has that many free.",
		"The scheduler says: 1 node: Insufficient cpu; 2 nodes: Insufficient nvidia.com/gpu. Eviction of others: 1 node: Preemption is not helpful for scheduling; 2 nodes: No preemption victims found for incoming pod.",
	}
	if diff := cmp.Diff(want, s.Why(p)); diff != "" || s.Reason(p) != scheduler.Device {
		t.Errorf("reason %s (-want +got):\n%s", s.Reason(p), diff)
	}
}

// Catches a message that is split at the comma of a taint, one without numbers, and one of another scheduler.
func TestMessage(t *testing.T) {
	f := func(text string, want Verdict) {
		t.Helper()
		if diff := cmp.Diff(want, parseMessage(text, vendors)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
	f(lacksGPUAndCPU, Verdict{
		3,
		[]Count{{1, scheduler.CPU, "Insufficient cpu"}, {2, scheduler.Device, "Insufficient nvidia.com/gpu"}},
		[]Count{{1, scheduler.Other, "Preemption is not helpful for scheduling"}, {2, scheduler.Other, "No preemption victims found for incoming pod"}},
	})
	f("0/4 nodes are available: 1 node(s) had untolerated taint {a: b, c}, 1 node(s) were unschedulable, 2 node(s) didn't match Pod's node affinity/selector.", Verdict{Nodes: 4, Causes: []Count{
		{1, scheduler.Taint, "node(s) had untolerated taint {a: b, c}"},
		{1, scheduler.Unavailable, "node(s) were unschedulable"},
		{2, scheduler.Affinity, "node(s) didn't match Pod's node affinity/selector"},
	}})
	f("0/2 nodes are available: 1 Insufficient example.com/fpga, 1 Insufficient ephemeral-storage, 1 node(s) had volume node affinity conflict.", Verdict{Nodes: 2, Causes: []Count{
		{1, scheduler.Resources, "Insufficient example.com/fpga"}, {1, scheduler.Storage, "Insufficient ephemeral-storage"}, {1, scheduler.Volume, "node(s) had volume node affinity conflict"},
	}})
	f(`persistentvolumeclaim "data" not found`, Verdict{Causes: []Count{{0, scheduler.Volume, `persistentvolumeclaim "data" not found`}}})
	f("0/2 nodes are available: 2 cannot allocate all claims. still not schedulable, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.", Verdict{
		2,
		[]Count{{2, scheduler.Claim, "cannot allocate all claims"}},
		[]Count{{2, scheduler.Other, "Preemption is not helpful for scheduling"}},
	})
	f("no nodes available to schedule pods", Verdict{Causes: []Count{{0, scheduler.Unavailable, "no nodes available to schedule pods"}}})
	f("", Verdict{})
	f("99999999999999999999/3 nodes are available: 99999999999999999999 Insufficient cpu.", Verdict{Nodes: 3, Causes: []Count{{0, scheduler.CPU, "Insufficient cpu"}}})
}

// Catches a message on which the parser hangs or loses the number of nodes.
func FuzzMessage(f *testing.F) {
	for _, s := range []string{lacksGPUAndCPU, "0/1 nodes are available: 1 node(s) had untolerated taint {a: b, c}.", "preemption: preemption: 1 x, 2 y", "{{{,}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v := parseMessage(text, vendors)
		if len(v.Causes) > maxCauses || len(v.Preemption) > maxCauses || v.Nodes < 0 {
			t.Errorf("%+v", v)
		}
		for _, c := range v.Causes {
			if c.Reason == "" || c.Text == "" || c.Nodes < 0 {
				t.Errorf("%+v", c)
			}
		}
	})
}

// What a pod takes from its node, by Kubernetes' own rule. Catches sidecars and init containers that are added to, or
// hidden by, the containers.
func TestRequests(t *testing.T) {
	container := func(cpu string, more ...object) object {
		return merge(object{"resources": object{"requests": object{"cpu": cpu}}}, more...)
	}
	sidecar := object{"restartPolicy": "Always"}
	f := func(name string, want Requests, spec object) {
		t.Helper()
		p, err := parsePod(raw(t, merge(object{"metadata": object{"uid": "u", "name": "n"}}, object{"spec": spec})), vendors, "")
		if diff := cmp.Diff(want, p.Requests); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	list := func(o ...any) []any { return o }
	f("a sum of containers", Requests{CPU: 3500}, object{"containers": list(container("1"), container("2500m"))})
	f("a larger init container", Requests{CPU: 5000}, object{"containers": list(container("1"), container("2")), "initContainers": list(container("5"), container("4"))})
	f("a sidecar beside the containers", Requests{CPU: 4000}, object{"containers": list(container("3")), "initContainers": list(container("1", sidecar))})
	f("a sidecar before an init container", Requests{CPU: 7000}, object{"containers": list(container("3")), "initContainers": list(container("1"), container("2", sidecar), container("5"))})
	f("a sidecar after an init container", Requests{CPU: 5000}, object{"containers": list(container("3")), "initContainers": list(container("5"), container("2", sidecar))})
	f("overhead", Requests{CPU: 1250, Memory: 1 << 20}, object{"containers": list(container("1")), "overhead": object{"cpu": "250m", "memory": "1Mi"}})
	f("resources of the whole pod", Requests{CPU: 6000}, object{"containers": list(container("1")), "resources": object{"requests": object{"cpu": "6"}}})
	f("a limit without a request", Requests{CPU: 1000, Devices: map[string]int64{gpu: 2}}, object{"containers": list(container("1", object{"resources": object{"limits": object{gpu: 2}}}))})
	f("devices of containers and parts", Requests{CPU: 2000, Devices: map[string]int64{gpu: 3, "nvidia.com/mig-1g.10gb": 1}}, object{"containers": list(
		container("1", object{"resources": object{"requests": object{gpu: "3"}}}), container("1", object{"resources": object{"requests": object{"nvidia.com/mig-1g.10gb": "1", "example.com/nic": "1"}}}))})
}

// Catches a state that counts devices of pods that have ended, or forgets those of pods that are about to.
func TestStates(t *testing.T) {
	deleted := object{"metadata": object{"deletionTimestamp": epoch.Format(time.RFC3339)}}
	phase := func(p string) object { return object{"status": object{"phase": p}} }
	f := func(want scheduler.State, o object) {
		t.Helper()
		p, err := parsePod(raw(t, o), vendors, "")
		if p.State != want || err != nil {
			t.Errorf("state %s, %v; want %s", p.State, err, want)
		}
	}
	f(scheduler.Pending, pod("a", "", 1, "1"))
	f(scheduler.Held, pod("a", "", 1, "1", gates("x")))
	f(scheduler.Starting, pod("a", "gn1", 1, "1", phase("Pending")))
	f(scheduler.Running, pod("a", "gn1", 1, "1"))
	f(scheduler.Stopping, pod("a", "gn1", 1, "1", deleted))
	f(scheduler.Finished, pod("a", "", 1, "1", deleted))
	f(scheduler.Finished, pod("a", "gn1", 1, "1", phase("Succeeded")))
	f(scheduler.Finished, pod("a", "gn1", 1, "1", phase("Failed"), deleted))
}

// Catches a rule about labels that is applied to a node without the label, or not at all.
func TestFits(t *testing.T) {
	n, err := parseNode(raw(t, node("gn1", "64", object{
		"metadata": object{"labels": object{"zone": "a", "generation": "9"}},
		"spec":     object{"taints": []any{object{"key": "k", "value": "v", "effect": "NoExecute"}}},
	})), vendors)
	if err != nil {
		t.Fatal(err)
	}
	rule := func(key, operator string, values ...any) object {
		return object{"key": key, "operator": operator, "values": values}
	}
	f := func(name string, want bool, tolerations []any, terms ...any) {
		t.Helper()
		spec := object{"tolerations": tolerations}
		if terms != nil {
			spec["affinity"] = object{"nodeAffinity": object{"requiredDuringSchedulingIgnoredDuringExecution": object{"nodeSelectorTerms": terms}}}
		}
		p, err := parsePod(raw(t, pod("a", "", 1, "1", object{"spec": spec})), vendors, "")
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Collect(p.Obstacles(&n)); (len(got) == 0) != want {
			t.Errorf("%s: obstacles %v", name, got)
		}
	}
	term := func(rules ...any) object { return object{"matchExpressions": rules} }
	all := []any{object{"operator": "Exists"}}
	f("no toleration", false, nil)
	f("any taint", true, all)
	f("the same value", true, []any{object{"key": "k", "value": "v"}})
	f("another value", false, []any{object{"key": "k", "operator": "Equal", "value": "w"}})
	f("another effect", false, []any{object{"key": "k", "operator": "Exists", "effect": "NoSchedule"}})
	f("in", true, all, term(rule("zone", "In", "b", "a")))
	f("not in", false, all, term(rule("zone", "NotIn", "a")))
	f("not in, without the label", true, all, term(rule("x", "NotIn", "a")))
	f("one of two terms", true, all, term(rule("x", "Exists")), term(rule("zone", "Exists"), rule("x", "DoesNotExist")))
	f("both rules", false, all, term(rule("zone", "Exists"), rule("x", "Exists")))
	f("greater", true, all, term(rule("generation", "Gt", "8")))
	f("less", false, all, term(rule("generation", "Lt", "9")))
	f("no number", false, all, term(rule("zone", "Gt", "1")))
	f("an empty term", false, all, object{})
	f("by name", true, all, object{"matchFields": []any{rule("metadata.name", "In", "gn1")}})
	f("by another name", false, all, object{"matchFields": []any{rule("metadata.name", "In", "gn2")}})
	f("an unknown rule", false, all, term(rule("zone", "Like", "a")))
}
