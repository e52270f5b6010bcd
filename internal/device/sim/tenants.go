package sim

import "fmt"

// Tenant is the container of a pod that a simulated device was given to.
type Tenant struct {
	Device string // UUID of the GPU or partition
	PID    uint32 // of its process there
	Pod    Pod
}

// Pod is a simulated pod.
type Pod struct {
	Namespace, Name, UID, Container string
	Kind, Owner                     string // what its users know it by
	Team                            string
}

// pods are who has the GPUs, by role of the GPU in its group of eight. The training job
// has three.
var pods = map[*role]Pod{
	roleTraining:    {Namespace: "research", Name: "llama-finetune-%d-x7k2p", Container: "trainer", Kind: "job", Owner: "llama-finetune", Team: "research"},
	roleInference:   {Namespace: "inference", Name: "chat-api-7d4b9c-%d2k4q", Container: "vllm", Kind: "deployment", Owner: "chat-api", Team: "product"},
	roleIdle:        {Namespace: "notebooks", Name: "alice-%d", Container: "jupyter", Kind: "statefulset", Owner: "alice", Team: "research"},
	roleOverheating: {Namespace: "chemistry", Name: "md-run-%d-q8w5r", Container: "gromacs", Kind: "job", Owner: "md-run", Team: "chemistry"},
	roleFailing:     {Namespace: "research", Name: "nightly-eval-%d-m3n4b", Container: "eval", Kind: "cronjob", Owner: "nightly-eval", Team: "research"},
	roleTuning:      {Namespace: "research", Name: "lora-%d-z9v8c", Container: "tuner", Kind: "job", Owner: "lora", Team: "research"},
}

// Tenants returns who has the devices of a simulated node.
func Tenants(cfg Config) ([]Tenant, error) {
	r, err := New(cfg)
	if err != nil {
		return nil, err
	}
	var list []Tenant
	for _, g := range r.(*node).gpus {
		if len(g.partitions) == 0 {
			number := g.id.Index
			if g.role == roleTraining { // one pod has three GPUs
				number -= number % len(roles)
			}
			list = append(list, Tenant{g.id.UUID, uint32(firstPID + 100*g.id.Index), podOf(g.role, number)})
		}
		for i, p := range g.partitions {
			list = append(list, Tenant{p.id.UUID, uint32(p.pid), podOf(p.role, 10*g.id.Index+i)})
		}
	}
	return list, nil
}

// podOf returns the pod of a role that has a number.
func podOf(r *role, number int) Pod {
	p := pods[r]
	p.Name = fmt.Sprintf(p.Name, number)
	p.UID = uuid(hash(uint64(number), 2))
	return p
}
