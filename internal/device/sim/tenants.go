package sim

import "fmt"

// Tenant is a pod's container, or a job, that holds a simulated device.
type Tenant struct {
	Device string // UUID of the GPU or partition
	PID    uint32 // its process on the device
	Stay
	// Stolen: the tenant uses the device without having been allocated it.
	Stolen bool
}

// Pod is a simulated pod.
type Pod struct {
	Namespace, Name, UID, Container string
	Kind, Owner                     string // the workload that owns the pod
	Team                            string
}

// pods are the tenants of the devices, by role. Name is the suffix to the owner's name;
// training jobs hold several devices.
var pods = map[*role]Pod{
	roleTraining:    {Namespace: "research", Name: "-%d-x7k2p", Container: "trainer", Kind: "job", Team: "research"},
	roleInference:   {Namespace: "inference", Name: "-7d4b9c-%d2k4q", Container: "vllm", Kind: "deployment", Owner: "chat-api", Team: "product"},
	roleIdle:        {Namespace: "notebooks", Name: "-%d", Container: "jupyter", Kind: "statefulset", Owner: "alice", Team: "research"},
	roleOverheating: {Namespace: "chemistry", Name: "-%d-q8w5r", Container: "gromacs", Kind: "job", Owner: "md-run", Team: "chemistry"},
	roleFailing:     {Namespace: "research", Name: "-%d-m3n4b", Container: "eval", Kind: "cronjob", Owner: "nightly-eval", Team: "research"},
	roleTuning:      {Namespace: "research", Name: "-%d-z9v8c", Container: "tuner", Kind: "job", Owner: "lora", Team: "research"},
}

// trainings are the names of the training jobs, by vendor.
var trainings = map[string]string{
	"nvidia": "llama-finetune", "amd": "qwen-finetune", "gaudi": "mistral-finetune", "intel": "climate-model",
	"neuron": "titan-finetune", "tenstorrent": "falcon-finetune", "tpu": "gemma-finetune",
}

// Tenants returns the tenants of a simulated node's devices.
func Tenants(cfg Config) ([]Tenant, error) {
	r, err := New(cfg)
	if err != nil {
		return nil, err
	}
	var list []Tenant
	for _, g := range r.(*node).gpus {
		if g.spans != nil {
			for i, s := range g.stays {
				list = append(list, Tenant{Device: g.id.UUID, PID: uint32(g.pid() + i), Stay: s})
			}
			if g.thief != nil {
				list = append(list, Tenant{Device: g.id.UUID, PID: uint32(g.pid() + thiefPID), Stay: *g.thief, Stolen: true})
			}
			continue
		}
		if !g.shared() {
			number := g.slot
			if g.role == roleTraining { // one pod holds all devices of a job
				number = g.job
			}
			list = append(list, Tenant{Device: g.id.UUID, PID: uint32(g.pid()), Stay: Stay{Pod: podOf(g.role, g.id.Vendor, number)}})
			continue
		}
		for i, p := range g.partitions {
			list = append(list, Tenant{Device: p.id.UUID, PID: uint32(p.pid()), Stay: Stay{Pod: podOf(p.role, g.id.Vendor, 10*g.slot+i)}})
		}
	}
	return list, nil
}

// podOf returns the pod with a number for a role.
func podOf(r *role, vendor string, number int) Pod {
	p := pods[r]
	if r == roleTraining {
		p.Owner = trainings[vendor]
	}
	p.Name = p.Owner + fmt.Sprintf(p.Name, number)
	p.UID = uuid(hash(uint64(number), 2))
	return p
}
