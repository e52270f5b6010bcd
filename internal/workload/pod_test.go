package workload

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// container returns a container of a pod. Without the API server and the logs either the UID
// or the name is unknown.
func container(uid, name, container string) Workload {
	w := Workload{ID: "pod/" + uid + "/" + container, Kind: "pod", Name: name, Attributes: map[string]string{"k8s.container.name": container}}
	if uid != "" {
		w.Attributes["k8s.pod.uid"] = uid
	} else {
		w.ID = "pod/ns/" + name + "/" + container
	}
	if name != "" {
		w.Attributes["k8s.pod.name"], w.Attributes["k8s.namespace.name"] = name, "ns"
	}
	return w
}

// Catches a pod that holds its GPU twice: as its grant names it, and as the control group of
// its processes does. That raised not_requested for every init container, and without the API
// server and the log directories gave each pod a second holder with a made-up name.
func TestProcessOfPod(t *testing.T) {
	main, init, sidecar := container("u1", "train", "main"), container("u1", "train", "init"), container("u1", "train", "sidecar")
	thief := container("u9", "thief", "main")
	a, b := container("", "a", "main"), container("", "b", "main") // no UID
	u1, u2 := container("u1", "", "c1"), container("u2", "", "c2") // no name
	holding := func(w Workload, part float64) Holding {
		h := Holding{Workload: w, Device: "GPU-a", Part: part, Evidence: ByDevice}
		if part == 0 {
			h.Evidence = ByProcess
		}
		return h
	}
	f := func(name string, grants []Grant, processes map[uint32]Workload, want Answer) {
		t.Helper()
		r := Resolver{Sources: []Source{source{grants: grants, processes: processes}}}
		got := r.Resolve(Question{Devices: machine()[:1], Processes: map[string][]uint32{"GPU-a": {1, 2}}})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	f("init container", []Grant{grant(main, "GPU-a", 1, 1)}, map[uint32]Workload{1: init, 2: init}, Answer{
		Holdings: []Holding{holding(main, 1)}, Processes: map[uint32]Workload{1: main, 2: main},
	})
	f("init container of a pod that shares with itself", []Grant{grant(main, "GPU-a", 1, 2), grant(sidecar, "GPU-a", 1, 2)}, map[uint32]Workload{1: init, 2: main}, Answer{
		Holdings: []Holding{holding(init, 0), holding(main, 0.5), holding(sidecar, 0.5)}, Processes: map[uint32]Workload{1: init, 2: main},
	})
	f("a thief beside an init container", []Grant{grant(main, "GPU-a", 1, 1)}, map[uint32]Workload{1: init, 2: thief}, Answer{
		Holdings: []Holding{holding(main, 1), holding(thief, 0)}, Processes: map[uint32]Workload{1: main, 2: thief},
		Statuses: []Status{{"resolver", NotRequested, "1 pods use a device that they did not request, such as ns/thief"}},
	})
	f("no names", []Grant{grant(a, "GPU-a", 1, 1)}, map[uint32]Workload{1: u1, 2: u1}, Answer{
		Holdings: []Holding{holding(a, 1)}, Processes: map[uint32]Workload{1: a, 2: a},
	})
	f("no names, and nobody has the device", nil, map[uint32]Workload{1: u1, 2: u1}, Answer{
		Holdings: []Holding{holding(u1, 0)}, Processes: map[uint32]Workload{1: u1, 2: u1},
	})
	f("no names, and two have the device", []Grant{grant(a, "GPU-a", 1, 2), grant(b, "GPU-a", 1, 2)}, map[uint32]Workload{1: u1, 2: u2}, Answer{
		Holdings: []Holding{holding(a, 0.5), holding(b, 0.5)}, Processes: map[uint32]Workload{},
		Statuses: []Status{{"resolver", NoMatch, "2 processes on a device belong to no known workload"}},
	})
	f("no names, and a thief with one", []Grant{grant(a, "GPU-a", 1, 1)}, map[uint32]Workload{1: u1, 2: thief}, Answer{
		Holdings: []Holding{holding(a, 1), holding(thief, 0)}, Processes: map[uint32]Workload{1: a, 2: thief},
		Statuses: []Status{{"resolver", NotRequested, "1 pods use a device that they did not request, such as ns/thief"}},
	})
}
