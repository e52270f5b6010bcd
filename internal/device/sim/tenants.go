package sim

import "fmt"

// Tenant is the container of a pod, or the job, that a simulated device was given to.
type Tenant struct {
	Device string // UUID of the GPU or partition
	PID    uint32 // of its process there
	Stay
	// Stolen: it was not given the device.
	Stolen bool
}

// Pod is a simulated pod.
type Pod struct {
	Namespace, Name, UID, Container string
	Kind, Owner                     string // what its users know it by
	Team                            string
}

// pods are who has the devices, by role of the device. Name is what follows the owner's;
// the training jobs have several devices.
var pods = map[*role]Pod{
	roleTraining:    {Namespace: "research", Name: "-%d-x7k2p", Container: "trainer", Kind: "job", Team: "research"},
	roleInference:   {Namespace: "inference", Name: "-7d4b9c-%d2k4q", Container: "vllm", Kind: "deployment", Owner: "chat-api", Team: "product"},
	roleIdle:        {Namespace: "notebooks", Name: "-%d", Container: "jupyter", Kind: "statefulset", Owner: "alice", Team: "research"},
	roleOverheating: {Namespace: "chemistry", Name: "-%d-q8w5r", Container: "gromacs", Kind: "job", Owner: "md-run", Team: "chemistry"},
	roleFailing:     {Namespace: "research", Name: "-%d-m3n4b", Container: "eval", Kind: "cronjob", Owner: "nightly-eval", Team: "research"},
	roleTuning:      {Namespace: "research", Name: "-%d-z9v8c", Container: "tuner", Kind: "job", Owner: "lora", Team: "research"},
}

// trainings are the training jobs, by vendor.
var trainings = map[string]string{
	"nvidia": "llama-finetune", "amd": "qwen-finetune", "gaudi": "mistral-finetune", "intel": "climate-model",
	"neuron": "titan-finetune", "tenstorrent": "falcon-finetune", "tpu": "gemma-finetune",
}

// Tenants returns who has the devices of a simulated node.
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
			if g.role == roleTraining { // one pod has all devices of a job
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

// podOf returns the pod of a role that has a number.
func podOf(r *role, vendor string, number int) Pod {
	p := pods[r]
	if r == roleTraining {
		p.Owner = trainings[vendor]
	}
	p.Name = p.Owner + fmt.Sprintf(p.Name, number)
	p.UID = uuid(hash(uint64(number), 2))
	return p
}
