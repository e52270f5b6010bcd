package kube

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/scheduler"
)

var vendors = device.Vendors{
	{
		Name:        "nvidia",
		Resources:   []device.Resource{{Name: "nvidia.com/gpu", Unit: device.Whole}, {Name: "nvidia.com/mig-*", Unit: device.Part}},
		ModelLabels: []string{"nvidia.com/gpu.product"},
	},
	{Name: "amd", Resources: []device.Resource{{Name: "amd.com/gpu", Unit: device.Whole}}},
}

const gpu = "nvidia.com/gpu"

var epoch = time.Date(2026, 11, 19, 12, 0, 0, 0, time.UTC)

type object = map[string]any

// merge overwrites the fields of into, recursively, and returns it.
func merge(into object, more ...object) object {
	for _, from := range more {
		for k, v := range from {
			a, aok := into[k].(object)
			b, bok := v.(object)
			if aok && bok {
				merge(a, b)
			} else {
				into[k] = v
			}
		}
	}
	return into
}

// pod returns a pod of team ml that asks for GPUs, CPUs and 8 GiB of memory.
func pod(name, node string, gpus int, cpu string, more ...object) object {
	requests := object{"cpu": cpu, "memory": "8Gi"}
	if gpus > 0 {
		requests[gpu] = fmt.Sprint(gpus)
	}
	phase := "Pending"
	if node != "" {
		phase = "Running"
	}
	return merge(object{
		"metadata": object{"namespace": "ml", "name": name, "uid": "uid-" + name, "creationTimestamp": epoch.Format(time.RFC3339)},
		"spec":     object{"nodeName": node, "containers": []any{object{"name": "main", "resources": object{"requests": requests}}}},
		"status":   object{"phase": phase},
	}, more...)
}

// refused returns the status of a pod that the scheduler could not place.
func refused(message string) object {
	return object{"status": object{"conditions": []any{object{
		"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message, "lastTransitionTime": epoch.Format(time.RFC3339),
	}}}}
}

func gates(names ...string) object {
	list := make([]any, 0, len(names))
	for _, n := range names {
		list = append(list, object{"name": n})
	}
	return object{"spec": object{"schedulingGates": list}}
}

// node returns a ready node with 8 GPUs and 500 GiB.
func node(name, cpu string, more ...object) object {
	return merge(object{
		"metadata": object{"name": name, "labels": object{"nvidia.com/gpu.product": "H100", "kubernetes.io/hostname": name}},
		"spec":     object{},
		"status": object{
			"capacity":    object{"cpu": cpu, "memory": "512Gi", gpu: "8", "pods": "110"},
			"allocatable": object{"cpu": cpu, "memory": "500Gi", gpu: "8", "pods": "110"},
			"conditions":  []any{object{"type": "Ready", "status": "True"}},
		},
	}, more...)
}

func raw(t testing.TB, o object) []byte {
	t.Helper()
	b, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sink is the methods of PodSink and NodeSink.
type sink interface {
	Begin() (add func([]byte), commit func())
}

// set replaces all pods or nodes.
func set(t testing.TB, to sink, objects ...object) {
	add, commit := to.Begin()
	for _, o := range objects {
		add(raw(t, o))
	}
	commit()
}

// at returns a sink of pods at a moment.
func at(c *Cluster, now time.Time) PodSink {
	return PodSink{c, func() time.Time { return now }}
}

// snapshot returns the cluster of these objects a minute after its pods were created.
func snapshot(t testing.TB, nodes, pods []object) *Snapshot {
	t.Helper()
	c := NewCluster(vendors, "team", nil)
	set(t, NodeSink{c}, nodes...)
	set(t, at(c, epoch), pods...)
	s := c.Snapshot(epoch.Add(time.Minute))
	if s.Refused > 0 {
		t.Fatalf("%d objects were refused", s.Refused)
	}
	return s
}

// find returns a pod by name.
func (s *Snapshot) find(t testing.TB, name string) *Pod {
	t.Helper()
	i := slices.IndexFunc(s.Pods, func(p *Pod) bool { return p.Name == name })
	if i < 0 {
		t.Fatalf("no pod %s", name)
	}
	return s.Pods[i]
}

const lacksGPUAndCPU = "0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient nvidia.com/gpu. no new claims to deallocate, preemption: 0/3 nodes are available: 1 Preemption is not helpful for scheduling, 2 No preemption victims found for incoming pod."

// worked is a cluster with 12 of 24 GPUs free, where 21 are pending.
func worked(t testing.TB) *Snapshot {
	return snapshot(t,
		[]object{node("gn1", "64"), node("gn2", "64"), node("gn3", "4")},
		[]object{
			pod("train-0", "gn2", 6, "8"), pod("train-1", "gn1", 5, "8"), pod("small-0", "gn2", 1, "4"),
			pod("cpuheavy-0", "", 2, "60", refused("0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 3 Insufficient cpu.")),
			pod("train-2", "", 4, "8", refused(lacksGPUAndCPU)), pod("train-3", "", 8, "8", refused(lacksGPUAndCPU)),
			pod("nocpu-0", "", 2, "100", refused("0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 3 Insufficient cpu.")),
			pod("gated-0", "", 1, "1", gates("example.com/admission")), pod("urgent-0", "", 4, "8", refused(lacksGPUAndCPU)),
		})
}

var near = cmpopts.EquateApprox(0, 0.005)

// Catches a formula of fragmentation that differs from the published one, and devices that are counted
// twice or not at all.
func TestWorkedExample(t *testing.T) { checkWorked(t, worked(t)) }

func checkWorked(t *testing.T, s *Snapshot) {
	t.Helper()
	reference := Reference{CPU: 8000}
	r := s.Room(reference)
	rate, _ := r.Unusable.Get()
	perNode, stranded := map[string]float64{}, map[string]int64{}
	for _, n := range s.Nodes {
		perNode[n.Name] = s.Unusable(n)
		stranded[n.Name], _ = s.stranded(n, n.Left.Whole(vendors), reference)
	}
	type numbers struct {
		Rate      float64
		PerNode   map[string]float64
		Fragments map[int64]float64
		Placeable map[int64]int64
		Stranded  map[string]int64
		ByCause   map[scheduler.Cause]int64
		Devices   map[scheduler.DeviceState]int64
	}
	pool := r.Pools[s.Nodes[0].Model]
	got := numbers{rate, perNode, map[int64]float64{}, map[int64]int64{}, stranded, pool.Stranded, pool.Devices}
	for _, k := range scheduler.Sizes() {
		got.Fragments[k], _ = pool.Free.Fragmentation(k)
		got.Placeable[k] = pool.Free.Placeable(k)
	}
	want := numbers{
		Rate: 0.778, PerNode: map[string]float64{"gn1": 2.33, "gn2": 0.78, "gn3": 6.22},
		Fragments: map[int64]float64{1: 0, 2: 0.167, 4: 0.333, 8: 0.333, 16: 1},
		Placeable: map[int64]int64{1: 12, 2: 5, 4: 2, 8: 1, 16: 0},
		Stranded:  map[string]int64{"gn1": 0, "gn2": 0, "gn3": 8},
		ByCause:   map[scheduler.Cause]int64{scheduler.LacksCPU: 8, scheduler.Unhealthy: 0, scheduler.LacksMemory: 0, scheduler.NotReady: 0, scheduler.Cordoned: 0, scheduler.Tainted: 0},
		Devices:   map[scheduler.DeviceState]int64{scheduler.Allocated: 12, scheduler.Idle: 12, scheduler.Drained: 0, scheduler.Down: 0},
	}
	if diff := cmp.Diff(want, got, near); diff != "" {
		t.Errorf("room (-want +got):\n%s", diff)
	}
}

// Catches objects of a real API server and scheduler that are understood differently from ours.
func TestRealCapture(t *testing.T) {
	folder := "../../../../shared/fixtures/schedulers/kube-scheduler/1.34.4-gpu-fragmentation"
	if _, err := os.Stat(folder); err != nil {
		t.Skip("no captures here")
	}
	c := NewCluster(vendors, "", nil)
	for file, to := range map[string]sink{"nodes.json": NodeSink{c}, "pods.json": at(c, epoch)} {
		b, err := os.ReadFile(filepath.Join(folder, file))
		if err != nil {
			t.Fatal(err)
		}
		var l struct{ Items []object }
		if err := json.Unmarshal(b, &l); err != nil {
			t.Fatal(err)
		}
		set(t, to, l.Items...)
	}
	s := c.Snapshot(epoch)
	checkWorked(t, s)
	got := map[string]scheduler.Reason{}
	for _, p := range s.Pods {
		if p.State.Waits() {
			got[p.Name] = s.Reason(p)
		}
	}
	want := map[string]scheduler.Reason{
		"cpuheavy-0": scheduler.CPU, "gated-0": scheduler.Gated, "nocpu-0": scheduler.CPU,
		"train-2": scheduler.CPU, "train-3": scheduler.CPU, "urgent-0": scheduler.Preempting,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
}

// Catches a median that ignores how many pods ask for it, and stranding by a reference that nobody set.
func TestReference(t *testing.T) {
	if diff := cmp.Diff(Reference{CPU: 2000, Memory: 2 << 30}, worked(t).Reference()); diff != "" {
		t.Errorf("reference (-want +got):\n%s", diff)
	}
	empty := snapshot(t, []object{node("gn1", "64")}, nil)
	if diff := cmp.Diff(Reference{}, empty.Reference()); diff != "" {
		t.Errorf("reference without pods (-want +got):\n%s", diff)
	}
	if r := empty.Room(empty.Reference()); r.Unusable.OK() {
		t.Error("nobody asked for anything, and something is unusable")
	}
}

// Catches free devices that are reported as usable although no pod can get them, and a taint that GPU nodes
// usually have reported as an obstacle.
func TestStrandedCauses(t *testing.T) {
	tainted := func(key string) object {
		return object{"spec": object{"taints": []any{object{"key": key, "value": "yes", "effect": "NoSchedule"}}}}
	}
	s := snapshot(t, []object{
		node("cordoned", "64", object{"spec": object{"unschedulable": true, "taints": []any{object{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}}}}),
		node("down", "64", object{"status": object{"conditions": []any{object{"type": "Ready", "status": "Unknown"}}}}),
		node("lonely", "64", tainted("team")), node("usual", "64", tainted(gpu)), node("tolerated", "64", tainted("known")),
		node("memory", "64", object{"status": object{"allocatable": object{"memory": "32Gi"}}}),
		node("broken", "64", object{"status": object{"allocatable": object{gpu: "6"}}}),
		node("soft", "64", object{"spec": object{"taints": []any{object{"key": "x", "effect": "PreferNoSchedule"}}}}),
	}, []object{
		pod("a", "down", 1, "8"),
		pod("b", "tolerated", 1, "8", object{"spec": object{"tolerations": []any{object{"key": "known", "operator": "Exists"}}}}),
	})
	r := s.Room(s.Reference())
	want := map[string]*scheduler.Pool{"H100": {
		Devices: map[scheduler.DeviceState]int64{scheduler.Allocated: 2, scheduler.Idle: 8 + 8 + 7 + 8 + 6 + 8, scheduler.Drained: 8, scheduler.Down: 7 + 2},
		Free:    scheduler.Free{6, 8, 8, 7, 8}, // in the order of their names
		Stranded: map[scheduler.Cause]int64{
			scheduler.Unhealthy: 2, scheduler.NotReady: 7, scheduler.Cordoned: 8, scheduler.Tainted: 8, scheduler.LacksMemory: 4, scheduler.LacksCPU: 0,
		},
	}}
	if diff := cmp.Diff(want, r.Pools); diff != "" {
		t.Errorf("pools (-want +got):\n%s", diff)
	}
}

// Catches a demand of the last day that is forgotten with its pod, counted at each event, or kept forever.
func TestHistory(t *testing.T) {
	c := NewCluster(vendors, "", nil)
	count := func(now time.Time) (n int64) {
		for _, d := range c.Snapshot(now).Demands {
			n += d.Pods
		}
		return n
	}
	f := func(name string, now time.Time, want int64) {
		t.Helper()
		if got := count(now); got != want {
			t.Errorf("%s: %d pods of the last day, want %d", name, got, want)
		}
	}
	a, done := raw(t, pod("a", "", 1, "1")), raw(t, pod("a", "gn1", 1, "1", object{"status": object{"phase": "Succeeded"}}))
	set(t, at(c, epoch))
	at(c, epoch).Put(a)
	at(c, epoch).Put(a)
	at(c, epoch).Put(raw(t, pod("a", "gn1", 1, "1")))
	f("one pod, seen three times", epoch, 1)
	at(c, epoch).Put(done)
	at(c, epoch).Put(done)
	at(c, epoch).Delete(done)
	f("it ended and was removed", epoch, 1)
	at(c, epoch).Put(raw(t, pod("b", "", 1, "1")))
	set(t, at(c, epoch), pod("c", "", 2, "1"))
	f("another list", epoch, 3)
	f("a day later", epoch.Add(23*time.Hour), 3)
	f("more than a day later", epoch.Add(26*time.Hour), 1)
	late := epoch.Add(26 * time.Hour)
	at(c, late).Delete(raw(t, pod("c", "", 2, "1")))
	f("the last one was deleted while it waited", late, 1)
	f("a day after that", late.Add(26*time.Hour), 0)
	set(t, at(c, late), pod("c", "", 2, "1"))
	set(t, at(c, epoch.Add(26*time.Hour)), pod("old", "gn1", 1, "1", object{"status": object{"phase": "Failed"}}))
	f("a pod that ended before it was seen", epoch.Add(26*time.Hour), 1)
}

// Catches memory that grows with the number of different pods.
func TestHistoryIsBounded(t *testing.T) {
	c := NewCluster(vendors, "", nil)
	for i := range maxDemands + 5 {
		at(c, epoch).Put(raw(t, pod(fmt.Sprint("p", i), "", 1, fmt.Sprint(i+1))))
	}
	if s := c.Snapshot(epoch); len(s.Demands) != maxDemands || s.Refused != 5 {
		t.Errorf("%d demands and %d refused, want %d and 5", len(s.Demands), s.Refused, maxDemands)
	}
}

// Catches a quantity that is read with another factor, and one that is rounded down.
func TestQuantity(t *testing.T) {
	f := func(text string, scale, want int64) {
		t.Helper()
		if got, err := quantity(text).in(scale); err != nil || got != want {
			t.Errorf("%q times %d is %d, %v; want %d", text, scale, got, err, want)
		}
	}
	f("4", milli, 4000)
	f("100m", milli, 100)
	f("1.5", milli, 1500)
	f("0.0001", milli, 1)
	f("100n", milli, 1)
	f("8Gi", ones, 8<<30)
	f("1.5Ki", ones, 1536)
	f("128974848", ones, 128974848)
	f("129e6", ones, 129e6)
	f("129M", ones, 129e6)
	f("2E", ones, 2e18)
	f("1Ei", ones, 1<<60)
	f("9Ei", ones, math.MaxInt64)
	f("9223372036854775807", milli, math.MaxInt64)
	for _, bad := range []string{"", "x", "-1", "1.2.3", "0x10", "1/2", "1_000", "1e99999", "Gi", "1 Gi", "1kB", "٣"} {
		if got, err := quantity(bad).in(ones); err == nil {
			t.Errorf("%q is %d", bad, got)
		}
	}
}
