package workload

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/intel"
	"github.com/gpumeter/gpumeter/internal/device/nvidia"
)

// machine has a device of each vendor, under the names that its plugin uses.
func machine() []Device {
	gpu := func(vendor, uuid, pci string, aliases ...string) Device {
		return Device{ID: device.ID{Vendor: vendor, UUID: uuid, PCI: pci}, Aliases: aliases}
	}
	part := func(uuid, parent string, aliases ...string) Device {
		return Device{ID: device.ID{UUID: uuid, Parent: parent, PCI: "0000:10:00.0"}, Aliases: aliases}
	}
	return []Device{
		gpu("nvidia", "GPU-a", "0000:10:00.0", "nvidia0", "gpu-0"),
		gpu("nvidia", "GPU-b", "0000:18:00.0", "nvidia1", "gpu-1"),
		part("MIG-1", "GPU-a", "MIG-GPU-a/1/0", "nvidia0/gi1"),
		gpu("amd", "amd-1", "0000:19:00.0"),
		part("amd-1-xcp1", "amd-1", "amdgpu_xcp_1"),
		gpu("amd", "amd-2", "0000:1b:00.0", "gpu-9-128"),
		part("amd-2-xcp0", "amd-2", "0000:1b:00.0"),
		part("amd-2-xcp1", "amd-2", "amdgpu_xcp_2"),
		gpu("gaudi", "gaudi-1", "0000:0f:00.0", "AN12345678"),
		gpu("intel", "intel-1", "0000:03:00.0", "card0"),
		gpu("neuron", "neuron-1", "", "aws.amazon.com/neuron/0"),
		part("neuron-0-nc0", "neuron-0", "aws.amazon.com/neuroncore/0"),
		gpu("tenstorrent", "tt-1", "0000:04:00.0", "tt-3", "tenstorrent.com/3"),
		gpu("tpu", "tpu-1", "", "accel0"),
	}
}

// Each form of id that plugins and DRA drivers use must find its device, and a device that
// is not on this machine none: a wrong match bills the wrong team.
func TestMatch(t *testing.T) {
	n := newNames(machine())
	vendors := device.Vendors{intel.Facts, nvidia.Facts}
	f := func(resource, id, want string) {
		t.Helper()
		got, ok := n.match(Ref{resource, []string{Base(vendors.Resource(resource), id)}})
		if got != want || ok != (want != "") {
			t.Errorf("%s %s is %q, want %q", resource, id, got, want)
		}
	}
	f("nvidia.com/gpu", "GPU-a", "GPU-a")
	f("nvidia.com/gpu", "GPU-c", "")
	f("nvidia.com/gpu.shared", "GPU-b::7", "GPU-b") // time slicing and MPS
	f("nvidia.com/mig-1g.18gb", "MIG-1", "MIG-1")
	f("nvidia.com/mig-1g.18gb", "MIG-1::0", "MIG-1")
	f("nvidia.com/mig-1g.5gb", "MIG-GPU-a/1/0", "MIG-1") // drivers before R470
	f("nvidia.com/gpu", "nvidia1", "GPU-b")              // GKE
	f("nvidia.com/gpu", "nvidia1/vgpu3", "GPU-b")
	f("nvidia.com/gpu", "nvidia0/gi1", "MIG-1")
	f("nvidia.com/gpu", "nvidia0/gi1/vgpu0", "MIG-1")
	f("nvidia.com/gpu", "nvidia0/gi2", "")
	f("gpu.nvidia.com", "gpu-1", "GPU-b") // DRA, without the API
	f("amd.com/gpu", "0000:19:00.0", "amd-1")
	f("amd.com/cpx_nps4", "amdgpu_xcp_1", "amd-1-xcp1")
	f("amd.com/gpu", "0000:1b:00.0", "amd-2-xcp0") // of a partitioned GPU: its first partition
	f("amd.com/gpu", "amdgpu_xcp_2", "amd-2-xcp1")
	f("habana.ai/gaudi", "AN12345678", "gaudi-1")
	f("gaudi.intel.com", "0000:0F:00.0", "gaudi-1")
	f("amd.com/gpu", "00000000:19:00.0", "amd-1") // a domain of eight digits
	f("nvidia.com/gpu", "00000000:1B:00.0::2", "amd-2-xcp0")
	f("amd.com/gpu", "00010000:19:00.0", "") // another domain
	f("gpu.intel.com/i915", "card0-2", "intel-1")
	f("gpu.intel.com/i915_monitoring", "all", "")
	f("aws.amazon.com/neuron", "0", "neuron-1")
	f("aws.amazon.com/neuroncore", "0", "neuron-0-nc0") // another 0
	f("aws.amazon.com/neurondevice", "0", "")
	f("tenstorrent.com", "tt-3", "tt-1")
	f("tenstorrent.com/n150", "3", "tt-1")
	f("rdma/hca_shared_devices", "3", "") // a number of something else
	f("tpu.google.com", "accel0", "tpu-1")
	f("smarter-devices/fuse", "fuse", "")
	f("nvidia.com/gpu", "", "")

	if uuid, ok := n.match(Ref{"x", []string{"unknown", "GPU-b", "GPU-a"}}); !ok || uuid != "GPU-b" {
		t.Errorf("the first known name is %q", uuid)
	}
	// A name shared by two devices matches neither: a guess would be right half the time.
	twice := newNames([]Device{{ID: device.ID{UUID: "A"}, Aliases: []string{"x"}}, {ID: device.ID{UUID: "B"}, Aliases: []string{"x"}}})
	if uuid, ok := twice.match(Ref{"r", []string{"x"}}); ok {
		t.Errorf("an ambiguous name is %q", uuid)
	}
}

func FuzzBase(f *testing.F) {
	for _, seed := range []string{"GPU-a::1", "nvidia0/gi0/vgpu1", "card0-1", "::", "/vgpu", "-0", "a/vgpu0/vgpu1", "::x::"} {
		f.Add("-", seed)
		f.Add("", seed)
	}
	f.Fuzz(func(t *testing.T, separator, id string) {
		base := Base(device.Resource{Replica: separator}, id)
		if !strings.HasPrefix(id, base) {
			t.Errorf("%q is a replica of %q", id, base)
		}
	})
}

// source is a Source whose answers the test sets.
type source struct {
	grants    []Grant
	processes map[uint32]Workload
	statuses  []Status
}

func (s source) Grants() []Grant { return s.grants }
func (s source) Process(pid uint32) (Workload, bool) {
	w, ok := s.processes[pid]
	return w, ok
}
func (s source) Statuses() []Status { return s.statuses }

func pod(name string) Workload {
	return Workload{ID: "pod/" + name, Kind: "pod", Name: name, Attributes: map[string]string{"k8s.pod.name": name, "k8s.namespace.name": "ns"}}
}

func grant(w Workload, id string, held, of int) Grant {
	return Grant{Workload: w, Device: Ref{"nvidia.com/gpu", []string{id}}, Held: held, Replicas: of}
}

// A workload that was allocated a device holds it; one that runs on a device without an
// allocation is found and reported; none is counted twice.
func TestResolve(t *testing.T) {
	a, b, c, shell := pod("a"), pod("b"), pod("c"), Workload{ID: "process/7@1", Kind: "process", Name: "bash"}
	kubernetes := source{
		grants: []Grant{
			grant(a, "GPU-a", 1, 1), grant(b, "GPU-b", 1, 4), grant(c, "GPU-b", 2, 4), grant(c, "MIG-1", 1, 1),
			{Workload: c, Device: Ref{"nvidia.com/gpu", []string{"GPU-gone"}}, Held: 1, Replicas: 1},
		},
		processes: map[uint32]Workload{1: a, 2: b, 3: a},
		statuses:  []Status{{"kubelet", OK, ""}},
	}
	last := source{processes: map[uint32]Workload{1: shell, 7: shell}, statuses: []Status{{"cgroup", Absent, ""}}}
	r := Resolver{Sources: []Source{kubernetes, last}}
	got := r.Resolve(Question{
		Devices:   machine(),
		Processes: map[string][]uint32{"GPU-a": {1}, "GPU-b": {2, 3, 7, 99}, "MIG-1": {1}},
	})
	want := Answer{
		Holdings: []Holding{
			{Workload: a, Device: "GPU-a", Part: 1, Evidence: ByDevice},
			{Workload: a, Device: "GPU-b", Evidence: ByProcess},
			{Workload: b, Device: "GPU-b", Part: 0.25, Evidence: ByDevice},
			{Workload: c, Device: "GPU-b", Part: 0.5, Evidence: ByDevice},
			{Workload: shell, Device: "GPU-b", Evidence: ByProcess},
			{Workload: c, Device: "MIG-1", Part: 1, Evidence: ByPartition},
		},
		Processes: map[uint32]Workload{1: a, 2: b, 3: a, 7: shell},
		Statuses: []Status{
			{"cgroup", Absent, ""},
			{"kubelet", OK, ""},
			{"resolver", NoMatch, "1 processes on a device belong to no known workload"},
			{"resolver", NotRequested, "1 pods use a device that they did not request, such as ns/a"},
			{"resolver", ResourceUnknown, "1 allocated devices are unknown to every reader: resources [nvidia.com/gpu]"},
		},
		Unknown: []string{"nvidia.com/gpu GPU-gone"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
}

// A device that one pod got through two claims, or in two answers, is held once.
func TestMerge(t *testing.T) {
	a := pod("a")
	r := Resolver{Sources: []Source{
		source{grants: []Grant{grant(a, "GPU-a", 1, 1), grant(a, "GPU-a", 1, 1), grant(a, "GPU-b", 1, 4), grant(a, "GPU-b", 2, 4)}},
		source{processes: map[uint32]Workload{5: a}},
	}}
	got := r.Resolve(Question{Devices: machine(), Processes: map[string][]uint32{"GPU-a": {5}, "GPU-b": {5}}}).Holdings
	want := []Holding{
		{Workload: a, Device: "GPU-a", Part: 1, Evidence: ByDevice},
		{Workload: a, Device: "GPU-b", Part: 0.75, Evidence: ByDevice},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("holdings (-want +got):\n%s", diff)
	}
}

// A job on a GPU that Slurm allocated to another is reported, as a pod is; if Slurm
// allocates no GPUs at all, there is no violation.
func TestJobNotGiven(t *testing.T) {
	job := func(id string) Workload {
		return Workload{ID: "slurm/" + id, Kind: "slurm_job", Attributes: map[string]string{"slurm.job.id": id}}
	}
	f := func(grants []Grant, want ...Status) {
		t.Helper()
		r := Resolver{Sources: []Source{source{grants: grants, processes: map[uint32]Workload{1: job("7"), 2: job("8")}}}}
		got := r.Resolve(Question{Devices: machine()[:2], Processes: map[string][]uint32{"GPU-a": {1, 2}}})
		if diff := cmp.Diff(want, got.Statuses); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	f(nil)
	f([]Grant{{Workload: job("7"), Device: Ref{"gres/gpu", []string{"nvidia0"}}, Held: 1, Replicas: 1}},
		Status{"resolver", NotRequested, "1 jobs use a device that was not allocated to them, such as 8"})
}
