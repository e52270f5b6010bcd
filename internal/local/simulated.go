//go:build linux

package local

import (
	"context"
	"time"

	"github.com/gpumeter/gpumeter/internal/device/sim"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// simulated is the workload source of a simulated node. Its tenants come and go by the
// node's clock.
type simulated struct {
	up        func() time.Duration // uptime of the node
	tenants   []tenant
	processes map[uint32]workload.Workload
}

type tenant struct {
	sim.Tenant
	grant workload.Grant
}

func newSimulated(cfg sim.Config) (*owners, error) {
	tenants, err := sim.Tenants(cfg)
	if err != nil {
		return nil, err
	}
	s := simulated{up: func() time.Duration { return cfg.Now().Sub(cfg.Start) }, processes: map[uint32]workload.Workload{}}
	for _, t := range tenants {
		w := podWorkload(t.Pod)
		if t.Job.ID != "" {
			w = jobWorkload(t.Job)
		}
		s.tenants = append(s.tenants, tenant{t, workload.Grant{Workload: w, Device: workload.Ref{Resource: "simulated", IDs: []string{t.Device}}, Held: 1, Replicas: 1}})
		s.processes[t.PID] = w
	}
	return &owners{Resolver: workload.Resolver{Sources: []workload.Source{s}}}, nil
}

func podWorkload(p sim.Pod) workload.Workload {
	return workload.Workload{
		ID: "pod/" + p.UID + "/" + p.Container, Kind: p.Kind, Name: p.Owner, Team: p.Team,
		Attributes: map[string]string{
			"k8s.namespace.name": p.Namespace, "k8s.pod.name": p.Name, "k8s.pod.uid": p.UID, "k8s.container.name": p.Container,
			"k8s." + p.Kind + ".name": p.Owner,
		},
	}
}

func jobWorkload(j sim.Job) workload.Workload {
	return workload.Workload{
		ID: "slurm/" + j.ID, Kind: "slurm_job", Name: j.Name, Team: j.Account,
		Attributes: map[string]string{
			"slurm.job.id": j.ID, "slurm.job.name": j.Name, "slurm.user": j.User, "slurm.account": j.Account, "slurm.partition": j.Partition, "slurm.cluster": j.Cluster,
			workload.KeyQueue: j.Partition,
		},
	}
}

// Grants implements workload.Source.
func (s simulated) Grants() []workload.Grant {
	up := s.up()
	var list []workload.Grant
	for _, t := range s.tenants {
		if !t.Stolen && t.There(up) {
			list = append(list, t.grant)
		}
	}
	return list
}

// Process implements workload.Source.
func (s simulated) Process(pid uint32) (workload.Workload, bool) {
	w, ok := s.processes[pid]
	return w, ok
}

// Statuses implements workload.Source.
func (simulated) Statuses() []workload.Status {
	return []workload.Status{{Source: "simulated", Reason: workload.OK}}
}

// whose returns the owners for this configuration, or nil if attribution is off.
func (c Config) whose() (*owners, error) {
	switch {
	case c.Workloads.Off:
		return nil, nil
	case c.simulated():
		return newSimulated(c.sim())
	}
	return c.owners(), nil
}

// learn returns the function that runs the owners' background work, or nil if there is
// none.
func (o *owners) learn() func(context.Context) {
	if o == nil || len(o.background) == 0 {
		return nil
	}
	return o.run
}
