//go:build linux

package local

import (
	"context"

	"github.com/gpumeter/gpumeter/internal/device/sim"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// simulated is the source of the workloads of a simulated node.
type simulated struct {
	grants    []workload.Grant
	processes map[uint32]workload.Workload
}

func newSimulated(cfg sim.Config) (*owners, error) {
	tenants, err := sim.Tenants(cfg)
	if err != nil {
		return nil, err
	}
	s := simulated{processes: map[uint32]workload.Workload{}}
	for _, t := range tenants {
		p := t.Pod
		w := workload.Workload{
			ID: "pod/" + p.UID + "/" + p.Container, Kind: p.Kind, Name: p.Owner, Team: p.Team,
			Attributes: map[string]string{
				"k8s.namespace.name": p.Namespace, "k8s.pod.name": p.Name, "k8s.pod.uid": p.UID, "k8s.container.name": p.Container,
				"k8s." + p.Kind + ".name": p.Owner,
			},
		}
		s.grants = append(s.grants, workload.Grant{Workload: w, Device: workload.Ref{Resource: "simulated", IDs: []string{t.Device}}, Held: 1, Replicas: 1})
		s.processes[t.PID] = w
	}
	return &owners{Resolver: workload.Resolver{Sources: []workload.Source{s}}}, nil
}

// Grants implements workload.Source.
func (s simulated) Grants() []workload.Grant { return s.grants }

// Process implements workload.Source.
func (s simulated) Process(pid uint32) (workload.Workload, bool) {
	w, ok := s.processes[pid]
	return w, ok
}

// Statuses implements workload.Source.
func (simulated) Statuses() []workload.Status {
	return []workload.Status{{Source: "simulated", Reason: workload.OK}}
}

// whose returns who knows whose work is on the devices, nil if nobody is to be asked.
func (c Config) whose() (*owners, error) {
	switch {
	case c.Workloads.Off:
		return nil, nil
	case c.Simulate != "":
		return newSimulated(c.sim())
	}
	return c.owners(), nil
}

// learn runs what the owners learn by, if there are any.
func (o *owners) learn() func(context.Context) {
	if o == nil || len(o.background) == 0 {
		return nil
	}
	return o.run
}
