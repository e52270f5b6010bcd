package kube

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/scheduler"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube/dra"
)

const driver = "gpu.nvidia.com"

// claiming are vendors with a driver for claims.
var claiming = device.Vendors{
	{Name: "nvidia", Resources: []device.Resource{{Name: gpu, Unit: device.Whole}, {Name: driver, Unit: device.Claim, ModelAttribute: "productName"}}},
	{Name: "amd", Resources: []device.Resource{{Name: "amd.com/gpu", Unit: device.Whole}}},
}

// claims returns a pod that asks for nothing but claims, given as NAME=CLAIM.
func claims(name, node string, refs ...string) object {
	list := []any{}
	for _, r := range refs {
		name, claim, _ := strings.Cut(r, "=")
		list = append(list, object{"name": name, "resourceClaimName": claim})
	}
	return pod(name, node, 0, "1", object{"spec": object{"resourceClaims": list}})
}

// claim returns a claim for devices of the driver's class. devices are those of a node that it has, for the pods.
func claim(name string, count int, node string, devices []string, pods ...string) object {
	o := object{
		"metadata": object{"namespace": "ml", "name": name},
		"spec":     object{"devices": object{"requests": []any{object{"name": "r", "exactly": object{"deviceClassName": driver, "count": count}}}}},
	}
	if devices == nil {
		return o
	}
	var results, users []any
	for _, d := range devices {
		results = append(results, object{"request": "r", "driver": driver, "pool": node, "device": d})
	}
	for _, p := range pods {
		users = append(users, object{"resource": "pods", "uid": "uid-" + p})
	}
	o["status"] = object{"allocation": object{"devices": object{"results": results}}, "reservedFor": users}
	return o
}

// offered returns a slice with devices of a node, called 0, 1, 2 ...
func offered(node string, count int) object {
	list := []any{}
	for i := range count {
		list = append(list, object{"name": fmt.Sprint(i), "attributes": object{"productName": object{"string": "H100"}}})
	}
	return object{"metadata": object{"name": "slice-" + node}, "spec": object{"driver": driver, "nodeName": node, "pool": object{"name": node}, "devices": list}}
}

// bare returns a node without a device plugin.
func bare(name string) object {
	n := node(name, "64")
	status := n["status"].(object)
	for _, list := range []string{"capacity", "allocatable"} {
		delete(status[list].(object), gpu)
	}
	n["metadata"].(object)["labels"] = object{}
	return n
}

// claimed returns a cluster of objects, by kind.
func claimed(t testing.TB, nodes, pods []object, further map[string][]object) (*Cluster, *Snapshot) {
	t.Helper()
	c := NewCluster(claiming, "", nil)
	for _, k := range c.Kinds() {
		set(t, k.Sink, further[k.Kind]...)
	}
	set(t, NodeSink{c}, nodes...)
	set(t, at(c, epoch), pods...)
	s := c.Snapshot(epoch.Add(time.Minute))
	if s.Refused > 0 {
		t.Fatalf("%d objects were refused", s.Refused)
	}
	return c, s
}

var deviceClass = []object{{"metadata": object{"name": driver}, "spec": object{"selectors": []any{object{"cel": object{"expression": "device.driver == '" + driver + "'"}}}}}}

// shared is a cluster with 3 of 4 devices taken by claims, one of them shared by two running pods, and 3 pods that wait.
func shared(t testing.TB) (*Cluster, *Snapshot) {
	return claimed(t, []object{bare("gn1")}, []object{
		claims("a", "gn1", "g=shared"), claims("b", "gn1", "g=shared"), claims("c", "gn1", "g=two"),
		merge(claims("big", "", "g=big"), refused("0/1 nodes are available: 1 cannot allocate all claims. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.")),
		merge(claims("late", "", "g=shared"), refused("0/1 nodes are available: 1 Insufficient cpu.")),
		claims("new", "", "g="), claims("network", "", "n=net"),
	}, map[string][]object{
		"DeviceClass": deviceClass, "ResourceSlice": {offered("gn1", 4)},
		"ResourceClaim": {
			claim("shared", 1, "gn1", []string{"0"}, "a", "b"), claim("two", 2, "gn1", []string{"1", "2"}, "c"), claim("big", 2, "", nil),
			merge(claim("net", 1, "", nil), object{"spec": object{"devices": object{"requests": []any{object{"name": "r", "exactly": object{"deviceClassName": "nic", "count": 1}}}}}}),
		},
	})
}

// Catches pods that ask only by a claim and are not counted, a device that counts for each pod that shares it, and a claim
// for something else.
func TestClaims(t *testing.T) {
	_, s := shared(t)
	want := scheduler.Counts{}
	want.Add(scheduler.Group{Queue: "ml", Model: "H100", State: scheduler.Running}, 3, 3)
	want.Add(scheduler.Group{Queue: "ml", Model: "H100", State: scheduler.Pending, Reason: scheduler.Device}, 1, 2)
	want.Add(scheduler.Group{Queue: "ml", Model: "H100", State: scheduler.Pending, Reason: scheduler.New}, 1, 0)
	if diff := cmp.Diff(want, s.Counts()); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	pool := s.Room(s.Reference()).Pools["H100"]
	devices := map[scheduler.DeviceState]int64{scheduler.Allocated: 3, scheduler.Idle: 1, scheduler.Drained: 0, scheduler.Down: 0}
	if diff := cmp.Diff(devices, pool.Devices); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	groups := map[dra.Group]int64{{State: dra.Allocated, Class: driver, Driver: driver}: 2, {State: dra.Pending, Class: driver, Driver: driver}: 1}
	if diff := cmp.Diff(groups, s.Claims); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
	f := func(name string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(strings.Join(want, "\n"), strings.Join(s.Why(s.Pod("ml", name)), "\n")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	f("big", "ml/big has waited 1m 0s for 2 gpu.nvidia.com, 1 CPU and 8 GiB of memory: no node where it may run has that many free.",
		"1 of 4 gpu.nvidia.com is free: gn1 (1 free) has 1 of 2 gpu.nvidia.com free.",
		"Claims: big waits for 2 of gpu.nvidia.com.",
		"The scheduler says: 1 node: cannot allocate all claims. Eviction of others: 1 node: Preemption is not helpful for scheduling.")
	f("late", "ml/late has waited 1m 0s for its claims, 1 CPU and 8 GiB of memory: it fits now, and the scheduler has not looked at it since.",
		"Claims: shared is allocated on gn1 and reserved for 2 pods.",
		"The scheduler says: 1 node: Insufficient cpu.")
	f("new", "ml/new has waited 1m 0s for its claims, 1 CPU and 8 GiB of memory: the scheduler has not looked at it yet.",
		"Claims: g has not been created yet.", "The scheduler has said nothing about it.")
	if p := s.Pod("ml", "network"); p != nil {
		t.Errorf("a pod that claims a network card: %s", s.Why(p))
	}
}

// Catches a GPU that counts twice because a device plugin and a driver for claims offer it, one that a claim has and that
// seems free, and a pod that asks for a resource that is only there by a class.
func TestClaimsBesidePlugin(t *testing.T) {
	extended := merge(object{}, deviceClass[0], object{"spec": object{"extendedResourceName": "amd.com/gpu", "selectors": deviceClass[0]["spec"].(object)["selectors"]}})
	_, s := claimed(t, []object{node("both", "64"), bare("claims")}, []object{
		pod("plugin", "both", 3, "1"), claims("a", "both", "g=two"),
		pod("extended", "", 0, "1", object{"spec": object{"containers": []any{object{"resources": object{"requests": object{"amd.com/gpu": "2"}}}}}}, refused("0/2 nodes are available: 2 Insufficient amd.com/gpu.")),
	}, map[string][]object{
		"DeviceClass": {extended}, "ResourceSlice": {offered("both", 8), offered("claims", 2)},
		"ResourceClaim": {claim("two", 2, "both", []string{"0", "1"}, "a"), claim("one", 1, "claims", []string{"0"})},
	})
	devices := map[scheduler.DeviceState]int64{scheduler.Allocated: 5 + 1, scheduler.Idle: 3 + 1, scheduler.Drained: 0, scheduler.Down: 0}
	if diff := cmp.Diff(devices, s.Room(s.Reference()).Pools["H100"].Devices); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	if got := s.Why(s.Pod("ml", "extended"))[1]; got != "7 of 10 amd.com/gpu are free: both (6 free) fits by its resources, taints and labels; claims (1 free) has 1 of 2 amd.com/gpu free." {
		t.Error(got)
	}
}

// Catches a claim that is known later than its pod, a pod that ends and whose claim is gone first, and values that outlive
// a lost permission. Catches also parts of devices that count as whole ones, and pods that vanish, while one of the kinds is not
// known: claims alone do not say what they are for.
func TestClaimsChange(t *testing.T) {
	c, _ := shared(t)
	kinds := map[string]Kind{}
	for _, k := range c.Kinds() {
		kinds[k.Kind] = k
	}
	f := func(what string, wantPods int, wantDevices int64) {
		t.Helper()
		s := c.Snapshot(epoch)
		n := int64(0)
		for _, p := range s.Pods {
			n += p.Whole(claiming)
		}
		if len(s.Pods) != wantPods || n != wantDevices {
			t.Errorf("%s: %d pods with %d devices, want %d with %d", what, len(s.Pods), n, wantPods, wantDevices)
		}
	}
	f("at first", 5, 5)
	kinds["ResourceClaim"].Sink.Put(raw(t, claim("later", 1, "", nil)))
	at(c, epoch).Put(raw(t, claims("new", "", "g=later")))
	f("a claim was created", 6, 6)
	at(c, epoch).Put(raw(t, claims("newer", "", "g=even-later")))
	f("a pod whose claim is unknown", 6, 6)
	kinds["ResourceClaim"].Sink.Put(raw(t, claim("even-later", 2, "", nil)))
	f("its claim arrived", 7, 8)
	if n := len(c.Snapshot(epoch).Demands); n != 4 { // one device, one of another pod, two, and one that is there already
		t.Errorf("%d demands", n)
	}
	kinds["ResourceClaim"].Sink.Delete(raw(t, claim("two", 2, "", nil)))
	at(c, epoch).Put(raw(t, merge(claims("c", "gn1", "g=two"), object{"status": object{"phase": "Succeeded"}})))
	f("a pod ended, after its claim", 7, 8)
	at(c, epoch).Delete(raw(t, claims("a", "gn1", "g=shared")))
	f("one of two pods that share a device is gone", 6, 8)
	for _, kind := range []string{"ResourceClaim", "ResourceSlice", "DeviceClass"} {
		kinds[kind].Lost(true)
		f(kind+" is lost", 6, 8)
		if s := c.Snapshot(epoch); s.Claims != nil || len(s.Nodes) != 0 || s.Pod("ml", "network") == nil || len(s.Why(s.Pod("ml", "b"))) == 0 || len(s.Why(s.Pod("ml", "big"))) == 0 {
			t.Errorf("%s is not known, and there are %v and %d nodes", kind, s.Claims, len(s.Nodes))
		}
		kinds[kind].Lost(false)
		f(kind+" is known again", 6, 8)
	}
	set(t, kinds["ResourceSlice"].Sink)
	f("the driver has taken its slices away", 6, 8)
}

// Catches a wait that is lost because the claim of the pod was known later than the pod was scheduled, and one that counts
// again when the claim changes.
func TestClaimsWait(t *testing.T) {
	w := NewWaits(epoch)
	c := NewCluster(claiming, "", w)
	var claimSink Kind
	for _, k := range c.Kinds() {
		if set(t, k.Sink); k.Kind == "ResourceClaim" {
			claimSink = k
		}
	}
	now := epoch.Add(time.Minute)
	scheduled := object{"status": object{"conditions": []any{object{"type": "PodScheduled", "status": "True", "lastTransitionTime": now.Format(time.RFC3339)}}}}
	set(t, at(c, epoch))
	at(c, epoch).Put(raw(t, claims("a", "", "g=a")))
	at(c, now).Put(raw(t, merge(claims("a", "gn1", "g=a"), scheduled)))
	claimSink.Sink.Put(raw(t, claim("a", 1, "gn1", []string{"0"}, "a")))
	counted := func(when string) {
		t.Helper()
		c.Snapshot(now)
		if h := w.Totals().Scheduled["ml"]; h == nil || h.Count != 1 || h.Sum != 60 {
			t.Errorf("%s: %+v, want one wait of 60 s", when, h)
		}
	}
	counted("the claim is known")
	claimSink.Sink.Put(raw(t, claim("a", 1, "gn1", []string{"0"})))
	at(c, now).Put(raw(t, merge(claims("a", "gn1", "g=a"), scheduled)))
	counted("both have changed")
}

// Catches a part that counts as a whole device as long as its slice has not been listed, or may not be.
func TestClaimsWithoutSlices(t *testing.T) {
	c := NewCluster(claiming, "", nil)
	kinds := map[string]Kind{}
	for _, k := range c.Kinds() {
		kinds[k.Kind] = k
	}
	set(t, kinds["ResourceClaim"].Sink, claim("a", 1, "gn1", []string{"0"}, "a"))
	set(t, kinds["DeviceClass"].Sink, deviceClass...)
	set(t, at(c, epoch), claims("a", "gn1", "g=a"))
	if s := c.Snapshot(epoch); len(s.Pods) > 0 || s.Claimed != nil {
		t.Errorf("%d pods, %v", len(s.Pods), s.Claimed)
	}
	part := offered("gn1", 1)
	part["spec"].(object)["devices"].([]any)[0].(object)["attributes"].(object)["parentUUID"] = object{"string": "x"}
	set(t, kinds["ResourceSlice"].Sink, part)
	s := c.Snapshot(epoch)
	want := map[dra.Group]int64{{State: dra.Allocated, Class: driver, Driver: driver, Unit: dra.Part}: 1}
	if diff := cmp.Diff(want, s.Claimed); diff != "" || len(s.Pods) != 1 || s.Pods[0].Whole(claiming) != 0 {
		t.Errorf("%d pods; devices (-want +got):\n%s", len(s.Pods), diff)
	}
}

// Catches all pods with claims that count and are told as if they had been scheduled just now, by the first process that ever
// watches and by the next, because the claims were known later than the pods.
func TestClaimsKnownLate(t *testing.T) {
	w := NewWaits(epoch)
	old := merge(claims("a", "gn1", "g=a"), scheduled(-7200), ran(-7100), object{"metadata": object{"creationTimestamp": moment(-9000)}})
	watch := func(old object) {
		c := NewCluster(claiming, "", w)
		set(t, at(c, epoch), old)
		note, _ := w.Note(epoch)
		for _, k := range c.Kinds() {
			if set(t, k.Sink); k.Kind == "ResourceClaim" {
				k.Sink.Put(raw(t, claim("a", 1, "gn1", []string{"0"}, "a")))
			}
		}
		at(c, epoch).Put(raw(t, merge(claims("new", "gn1", "g=a"), scheduled(30))))
		at(c, epoch).Put(raw(t, old))
		if s := c.Snapshot(epoch); len(s.Pods) != 2 {
			t.Fatalf("%d pods", len(s.Pods))
		}
		if got, events := sums(w.Totals().Scheduled)["ml"], told(c); got != [2]float64{1, 30} || len(events) > 0 {
			t.Errorf("number and sum of waits: %v, told %q; want only the new one", got, events)
		}
		var err error
		if w, err = ContinueWaits(note, epoch); err != nil {
			t.Fatal(err)
		}
	}
	watch(merge(claims("a", "gn1", "g=a"), scheduled(-60), ran(-50), object{"metadata": object{"creationTimestamp": moment(-9000)}}))
	watch(old) // with the note of before the claims were known
}
