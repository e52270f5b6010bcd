package kubernetes

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/intel"
	"github.com/gpumeter/gpumeter/internal/device/nvidia"
	"github.com/gpumeter/gpumeter/internal/workload"
	"github.com/gpumeter/gpumeter/internal/workload/cgroup"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi"
	"github.com/gpumeter/gpumeter/internal/workload/kubelet"
)

// node is a machine whose kubelet, API server and processes report what is set here.
type node struct {
	kubelet.Snapshot
	answered bool
	err      error

	state  kubeapi.State
	pods   []kubeapi.Pod
	slices map[claimed][]string
	access map[string]kubeapi.Access // by claim

	processes map[uint32]cgroup.Container
	unread    map[uint32]error
	nested    bool
	logs      []logged
}

type logged struct{ namespace, pod, uid, container, id string }

func (n *node) Last() (kubelet.Snapshot, bool, error) { return n.Snapshot, n.answered, n.err }

func (n *node) find(is func(kubeapi.Pod) bool) (kubeapi.Pod, bool) {
	for _, p := range n.pods {
		if is(p) {
			return p, true
		}
	}
	return kubeapi.Pod{}, false
}

func (n *node) PodByUID(uid string) (kubeapi.Pod, bool) {
	return n.find(func(p kubeapi.Pod) bool { return p.UID == uid })
}

func (n *node) PodByName(namespace, name string) (kubeapi.Pod, bool) {
	return n.find(func(p kubeapi.Pod) bool { return p.Namespace == namespace && p.Name == name })
}

func (n *node) PodByContainer(id string) (kubeapi.Pod, bool) {
	return n.find(func(p kubeapi.Pod) bool { return p.ContainerIDs[id] != "" })
}

func (n *node) Claimed(driver, pool, device string) ([]string, bool) {
	ids, ok := n.slices[claimed{driver, pool, device}]
	return ids, ok
}

func (n *node) Access(_, claim, _, _, _ string) kubeapi.Access { return n.access[claim] }

func (n *node) State() kubeapi.State { return n.state }

func (n *node) HostPIDNamespace() (bool, error) { return !n.nested, nil }

// proc and logs are separate types because both have a method Container.
type proc struct{ *node }

func (p proc) Container(pid uint32) (cgroup.Container, bool, error) {
	c, ok := p.processes[pid]
	return c, ok, p.unread[pid]
}

type logs struct{ *node }

func (l logs) Pod(uid string) (kubelet.LogName, bool) {
	for _, g := range l.logs {
		if g.uid == uid {
			return kubelet.LogName{Namespace: g.namespace, Pod: g.pod}, true
		}
	}
	return kubelet.LogName{}, false
}

func (l logs) Container(id string) (kubelet.LogName, bool) {
	for _, g := range l.logs {
		if g.id == id {
			return kubelet.LogName{Namespace: g.namespace, Pod: g.pod, Container: g.container}, true
		}
	}
	return kubelet.LogName{}, false
}

func (l logs) UID(namespace, pod string) (string, bool) {
	for _, g := range l.logs {
		if g.namespace == namespace && g.pod == pod {
			return g.uid, true
		}
	}
	return "", false
}

// source returns the Source of a node, with its Config changed by the caller.
func (n *node) source(change ...func(*Config)) *Source {
	cfg := Config{Kubelet: n, API: n, Cgroups: proc{n}, Logs: logs{n}, Teams: map[string]string{"ml": "research"}, Vendors: device.Vendors{nvidia.Facts, intel.Facts}}
	for _, f := range change {
		f(&cfg)
	}
	return New(cfg)
}

func noAPI(c *Config)  { c.API = nil }
func noLogs(c *Config) { c.Logs = nil }

func gave(namespace, pod, container string, ids ...string) kubelet.Allocation {
	return kubelet.Allocation{Namespace: namespace, Pod: pod, Container: container, Resource: "nvidia.com/gpu", DeviceIDs: ids}
}

func claims(namespace, pod, container string, list ...kubelet.ClaimDevice) kubelet.Allocation {
	return kubelet.Allocation{Namespace: namespace, Pod: pod, Container: container, Resource: "gpu.nvidia.com", Claims: list}
}

func claim(name, device string) kubelet.ClaimDevice {
	return kubelet.ClaimDevice{ClaimNamespace: "ml", ClaimName: name, Driver: "gpu.nvidia.com", Pool: "node1", Device: device}
}

func train() *node {
	return &node{
		answered: true,
		state:    kubeapi.State{Synced: true},
		Snapshot: kubelet.Snapshot{Time: time.Now(), Allocations: []kubelet.Allocation{gave("ml", "train-x", "main", "GPU-1")}},
		pods: []kubeapi.Pod{{
			UID: "u1", Namespace: "ml", Name: "train-x", Phase: "Running", Team: "vision", Labels: map[string]string{"app": "train"},
			Owner: kubeapi.Owner{Kind: "cronjob", Name: "train"}, Owners: []kubeapi.Owner{{Kind: "job", Name: "train-1"}, {Kind: "cronjob", Name: "train"}},
			Containers: []string{"main", "sidecar"}, ContainerIDs: map[string]string{"c1": "main"},
			Pages: []kubeapi.Page{{Port: 8000, Scheme: "http", Path: "/m"}},
		}},
		processes: map[uint32]cgroup.Container{7: {ID: "c1", PodUID: "u1"}},
		logs:      []logged{{"ml", "train-x", "u1", "main", "c1"}},
	}
}

// A process must resolve to the same workload as the grant, whatever is missing: with two
// IDs the container would seem to use a device that was not allocated to it.
func TestOneWorkload(t *testing.T) {
	f := func(name string, want workload.Workload, change ...func(*Config)) {
		t.Helper()
		s := train().source(change...)
		grants := s.Grants()
		if diff := cmp.Diff([]workload.Grant{{
			Workload: want, Device: workload.Ref{Resource: "nvidia.com/gpu", IDs: []string{"GPU-1"}}, Held: 1, Replicas: 1,
		}}, grants); diff != "" {
			t.Errorf("%s: grants (-want +got):\n%s", name, diff)
		}
		got, _ := s.Process(7)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: process (-want +got):\n%s", name, diff)
		}
	}
	full := workload.Workload{ID: "pod/u1/main", Kind: "cronjob", Name: "train", Team: "vision", Attributes: map[string]string{
		"k8s.namespace.name": "ml", "k8s.pod.name": "train-x", "k8s.pod.uid": "u1", "k8s.container.name": "main",
		"k8s.job.name": "train-1", "k8s.cronjob.name": "train", "k8s.pod.label.app": "train",
	}, Pages: []workload.Page{{Port: 8000, Scheme: "http", Path: "/m"}}}
	less := workload.Workload{ID: "pod/u1/main", Kind: "pod", Name: "train-x", Team: "research", Attributes: map[string]string{
		"k8s.namespace.name": "ml", "k8s.pod.name": "train-x", "k8s.pod.uid": "u1", "k8s.container.name": "main",
	}}
	f("everything", full)
	f("without logs", full, noLogs)
	f("without the API", less, noAPI)

	// Only the pod directories exist, not the container links.
	n := train()
	n.logs[0].id, n.logs[0].container = "", ""
	s := n.source(noAPI)
	if got, _ := s.Process(7); got.ID != "pod/u1/main" {
		t.Errorf("the process of the only container with a device is %q", got.ID)
	}
	n.Allocations = append(n.Allocations, gave("ml", "train-x", "other", "GPU-2"))
	n.Snapshot.Time = n.Snapshot.Time.Add(time.Second)
	if got, _ := s.Process(7); got.ID != "pod/u1/c1" {
		t.Errorf("a process of one of two containers with devices is %q", got.ID)
	}
}

// Without the API and the logs a process has no name, and a grant has no UID. Neither may
// get a wrong one.
func TestNoNames(t *testing.T) {
	s := train().source(noAPI, noLogs)
	got, _ := s.Process(7)
	want := workload.Workload{ID: "pod/u1/c1", Kind: "pod", Name: "u1", Attributes: map[string]string{"k8s.pod.uid": "u1", "container.id": "c1"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("process (-want +got):\n%s", diff)
	}
	if id := s.Grants()[0].Workload.ID; id != "pod/ml/train-x/main" {
		t.Errorf("ID of the grant = %q", id)
	}
}

// Processes that need a fallback to be found.
func TestProcess(t *testing.T) {
	f := func(name string, c cgroup.Container, want string, change func(*node)) {
		t.Helper()
		n := train()
		n.processes[7] = c
		if change != nil {
			change(n)
		}
		if got, ok := n.source().Process(7); got.ID != want || ok != (want != "") {
			t.Errorf("%s: %q, want %q", name, got.ID, want)
		}
	}
	f("the path has no pod", cgroup.Container{ID: "c1"}, "pod/u1/main", nil)
	f("a container of docker", cgroup.Container{ID: "d1"}, "", nil)
	f("only the logs have it", cgroup.Container{ID: "c1"}, "pod/u1/main", func(n *node) { n.pods = nil })
	f("the status is behind", cgroup.Container{ID: "c1", PodUID: "u1"}, "pod/u1/main", func(n *node) { n.pods[0].ContainerIDs = nil })
	f("its only container", cgroup.Container{ID: "c9", PodUID: "u1"}, "pod/u1/main", func(n *node) { n.pods[0].Containers = []string{"main"} })
	f("one of two containers", cgroup.Container{ID: "c9", PodUID: "u1"}, "pod/u1/c9", nil)
	f("a pod that nobody knows", cgroup.Container{ID: "c9", PodUID: "u9"}, "pod/u9/c9", nil)
	f("gone", cgroup.Container{}, "", func(n *node) { n.unread = map[uint32]error{7: fs.ErrNotExist} })
	if _, ok := train().source().Process(8); ok {
		t.Error("a process outside any container is of a pod")
	}
}

// Replicas of a device are shares of it. Together they never exceed it.
func TestReplicas(t *testing.T) {
	f := func(name string, offered []string, want map[string][2]int, list ...kubelet.Allocation) {
		t.Helper()
		n := &node{answered: true, Snapshot: kubelet.Snapshot{Time: time.Now(), Allocations: list}}
		if offered != nil {
			n.Offered = map[string][]string{"nvidia.com/gpu": offered, "other": {"GPU-1"}}
		}
		got := map[string][2]int{}
		for _, g := range n.source(noAPI).Grants() {
			got[g.Workload.Attributes["k8s.pod.name"]+" "+g.Device.IDs[0]] = [2]int{g.Held, g.Replicas}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	four := []string{"GPU-1::0", "GPU-1::1", "GPU-1::2", "GPU-1::3", "GPU-2::0"}
	f("time slicing", four, map[string][2]int{"a GPU-1": {2, 4}, "b GPU-1": {1, 4}, "b GPU-2": {1, 1}},
		gave("ml", "a", "c", "GPU-1::0", "GPU-1::3"), gave("ml", "b", "c", "GPU-1::1", "GPU-2::0"))
	shared, watch := gave("ml", "a", "c", "card0-1", "card1-0"), gave("ml", "b", "c", "all")
	shared.Resource, watch.Resource = "gpu.intel.com/xe", "gpu.intel.com/xe_monitoring"
	f("the vendor's own separator, and a monitoring resource, which is not a device", nil, map[string][2]int{"a card0": {1, 1}, "a card1": {1, 1}}, shared, watch)
	f("whole", []string{"GPU-1", "GPU-2"}, map[string][2]int{"a GPU-1": {1, 1}, "a GPU-2": {1, 1}}, gave("ml", "a", "c", "GPU-1", "GPU-2"))
	f("offered is not known", nil, map[string][2]int{"a GPU-1": {1, 2}, "b GPU-1": {1, 2}},
		gave("ml", "a", "c", "GPU-1::0"), gave("ml", "b", "c", "GPU-1::1"))
	f("a replica is no longer offered", []string{"GPU-1::0"}, map[string][2]int{"a GPU-1": {1, 2}, "b GPU-1": {1, 2}},
		gave("ml", "a", "c", "GPU-1::0"), gave("ml", "b", "c", "GPU-1::1"))
}

// Claims: matched by the names in the ResourceSlice, in equal parts if several share one,
// and not with admin access.
func TestClaims(t *testing.T) {
	n := &node{answered: true, state: kubeapi.State{Synced: true}}
	cdi := claim("train", "gpu-3")
	cdi.CDI = []string{"nvidia.com/gpu=3", "nvidia.com/gpu=GPU-3", "broken"}
	channel := claim("train", "channel-0")
	channel.Driver = "compute-domain.nvidia.com"
	n.Allocations = []kubelet.Allocation{
		claims("ml", "a", "c", claim("shared", "gpu-0"), claim("shared", "gpu-0")),
		claims("ml", "b", "c", claim("shared", "gpu-0")),
		claims("ml", "b", "d", claim("shared", "gpu-0"), channel),
		claims("ml", "exporter", "c", claim("admin", "gpu-0"), claim("admin", "gpu-1")),
		claims("ml", "new", "c", claim("pending", "gpu-1")),
		claims("ml", "offline", "c", cdi),
	}
	n.Time = time.Now()
	n.slices = map[claimed][]string{{"gpu.nvidia.com", "node1", "gpu-0"}: {"GPU-0", "gpu-0"}, {"gpu.nvidia.com", "node1", "gpu-1"}: {"GPU-1", "gpu-1"}}
	n.access = map[string]kubeapi.Access{
		"shared": kubeapi.AccessHolder, "admin": kubeapi.AccessAdmin, "pending": kubeapi.AccessPending, "train": kubeapi.AccessUnknown,
	}
	list := func(s *Source) (got []string) {
		for _, g := range s.Grants() {
			got = append(got, fmt.Sprint(g.Workload.ID, " ", g.Device.Resource, g.Device.IDs, g.Held, "/", g.Replicas))
		}
		return got
	}
	s := n.source(noLogs)
	want := []string{
		"pod/ml/a/c gpu.nvidia.com[GPU-0 gpu-0] 1/3",
		"pod/ml/b/c gpu.nvidia.com[GPU-0 gpu-0] 1/3",
		"pod/ml/b/d gpu.nvidia.com[GPU-0 gpu-0] 1/3",
		"pod/ml/offline/c gpu.nvidia.com[GPU-3 gpu-3] 1/1",
	}
	if diff := cmp.Diff(want, list(s)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	n.access["pending"] = kubeapi.AccessHolder // the generation does not change, but the answer was pending
	if got := list(s); len(got) != 5 || got[3] != "pod/ml/new/c gpu.nvidia.com[GPU-1 gpu-1] 1/1" {
		t.Errorf("after the answer: %v", got)
	}
}

// A pod that has ended holds nothing, although the kubelet still lists it.
func TestEnded(t *testing.T) {
	for phase, want := range map[string]int{"Succeeded": 0, "Failed": 0, "Running": 1, "Pending": 1, "": 1} {
		n := train()
		n.pods[0].Phase = phase
		if got := len(n.source().Grants()); got != want {
			t.Errorf("%q: %d grants, want %d", phase, got, want)
		}
	}
}

// While the API server is unreachable, a pod may be replaced by another of the same name.
func TestReplacedWhileAway(t *testing.T) {
	n := train()
	n.state.Problems = []kubeapi.Problem{{Part: kubeapi.Pods, Since: time.Now(), Err: errors.New("no route")}}
	if got := n.source().Grants()[0].Workload; got.ID != "pod/u1/main" || got.Kind != "cronjob" {
		t.Errorf("the same pod: %+v", got)
	}
	if got := n.source(noLogs).Grants()[0].Workload; got.ID != "pod/u1/main" || got.Kind != "cronjob" {
		t.Errorf("without contradicting logs: %+v", got)
	}
	n.logs[0].uid = "u2"
	if got := n.source().Grants()[0].Workload; got.ID != "pod/u2/main" || got.Kind != "pod" {
		t.Errorf("another pod: %+v", got)
	}
}

// A kubelet that stops answering: its last answer is used and marked as stale, dropped
// after the configured time, and replaced when it is back.
func TestStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := train()
		s := n.source()
		check := func(step string, grants int, stale bool, want workload.Reason) {
			t.Helper()
			got := s.Grants()
			if len(got) != grants || grants > 0 && got[0].Stale != stale {
				t.Errorf("%s: %+v, want %d, stale %v", step, got, grants, stale)
			}
			for _, st := range s.Statuses() {
				if st.Source == "kubelet" && st.Reason != want {
					t.Errorf("%s: status %v, want %v", step, st, want)
				}
			}
		}
		check("fresh", 1, false, workload.OK)
		n.err = syscall.ECONNREFUSED
		check("down", 1, true, workload.Stale)
		time.Sleep(5 * time.Minute)
		check("just before", 1, true, workload.Stale)
		time.Sleep(time.Second)
		check("after 5 minutes", 0, false, workload.Expired)
		n.err, n.Time = nil, time.Now()
		check("back", 1, false, workload.OK)
	})
}

// The same for the API server: names are kept, then dropped, then back.
func TestAPIStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := train()
		s := n.source()
		check := func(step, kind string, want workload.Reason) {
			t.Helper()
			n.Time = time.Now()
			if g := s.Grants(); len(g) != 1 || g[0].Workload.Kind != kind || g[0].Workload.ID != "pod/u1/main" {
				t.Errorf("%s: %+v, want a %s", step, g, kind)
			}
			if w, ok := s.Process(7); !ok || w.Kind != kind || w.ID != "pod/u1/main" {
				t.Errorf("%s: %+v, want a %s", step, w, kind)
			}
			for _, st := range s.Statuses() {
				if st.Source == "kubernetes_api" && st.Reason != want {
					t.Errorf("%s: status %v, want %v", step, st, want)
				}
			}
		}
		check("fresh", "cronjob", workload.OK)
		n.state.Problems = []kubeapi.Problem{{Part: kubeapi.Pods, Since: time.Now(), Err: errors.New("no route")}}
		check("down", "cronjob", workload.Stale)
		time.Sleep(30*time.Minute + time.Second)
		check("after 30 minutes", "pod", workload.Expired)
		n.state.Problems = nil
		check("back", "cronjob", workload.OK)
	})
}

// A result is recomputed only if something changed.
func TestGrantsAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := train()
		s := n.source()
		first := s.Grants()
		if again := s.Grants(); &first[0] != &again[0] {
			t.Error("recomputed without a change")
		}
		n.pods[0].Owner.Name = "other"
		n.state.Generation++
		if got := s.Grants()[0].Workload.Name; got != "other" {
			t.Errorf("name = %q after a change", got)
		}
		if n := testing.AllocsPerRun(100, func() { s.Grants() }); n > 0 {
			t.Errorf("%v allocations without a change", n)
		}
	})
}
