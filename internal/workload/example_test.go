package workload_test

import (
	"fmt"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// scheduler is a minimal Source: it allocated one of two replicas of a GPU to a pod.
type scheduler struct{ pod workload.Workload }

// Grants implements workload.Source.
func (s scheduler) Grants() []workload.Grant {
	return []workload.Grant{{
		Workload: s.pod,
		Device:   workload.Ref{Resource: "nvidia.com/gpu.shared", IDs: []string{"GPU-a"}},
		Held:     1, Replicas: 2,
	}}
}

// Process implements workload.Source.
func (s scheduler) Process(pid uint32) (workload.Workload, bool) { return s.pod, pid == 42 }

// Statuses implements workload.Source.
func (scheduler) Statuses() []workload.Status {
	return []workload.Status{{Source: "scheduler", Reason: workload.OK}}
}

// A Resolver matches what its sources allocated with the devices of the machine, by the
// names of the devices. A process on a device without an allocation is a holding, too, with
// part 0.
func ExampleResolver() {
	r := workload.Resolver{Sources: []workload.Source{
		scheduler{workload.Workload{ID: "pod/1/main", Kind: "deployment", Name: "chat-api"}},
	}}
	answer := r.Resolve(workload.Question{
		Devices: []workload.Device{
			{ID: device.ID{UUID: "GPU-a"}},
			{ID: device.ID{UUID: "GPU-b"}},
		},
		Processes: map[string][]uint32{"GPU-a": {42}, "GPU-b": {42}},
	})
	for _, h := range answer.Holdings {
		fmt.Println(h.Device, h.Workload.Name, h.Part, h.Evidence)
	}
	// Output:
	// GPU-a chat-api 0.5 device
	// GPU-b chat-api 0 process
}

// Device plugins hand out replicas of a device under ids of their own. Base returns the
// device behind such an id.
func ExampleBase() {
	plain, shared := device.Resource{}, device.Resource{Name: "gpu.intel.com/xe", Unit: device.Whole, Replica: "-"}
	fmt.Println(workload.Base(plain, "GPU-a::7"))      // time slicing and MPS
	fmt.Println(workload.Base(plain, "nvidia0/vgpu3")) // GKE
	fmt.Println(workload.Base(shared, "card0-3"))      // the separator that the resource declares
	fmt.Println(workload.Base(plain, "GPU-a"))         // not a replica
	// Output:
	// GPU-a
	// nvidia0
	// card0
	// GPU-a
}
