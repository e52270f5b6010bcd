package kube

import (
	"iter"

	"github.com/gpumeter/gpumeter/internal/scheduler"
)

// Counts counts the pods that ask for accelerators. Its queues are namespaces.
func (s *Snapshot) Counts() scheduler.Counts {
	c := scheduler.Counts{}
	for p, g := range s.groups() {
		c.Add(g, 1, p.Whole(s.Vendors))
	}
	return c
}

// Waiting returns the pods that wait for accelerators.
func (s *Snapshot) Waiting() []scheduler.Waiting {
	var list []scheduler.Waiting
	for p, g := range s.groups() {
		if g.State.Waits() {
			list = append(list, scheduler.Waiting{Group: g, ID: p.UID, Name: p.Name, Devices: p.Whole(s.Vendors), Since: p.Created})
		}
	}
	return list
}

// groups returns the pods that ask for accelerators, and to which group each belongs.
func (s *Snapshot) groups() iter.Seq2[*Pod, scheduler.Group] {
	byName := make(map[string]*Node, len(s.Nodes))
	for _, n := range s.Nodes {
		byName[n.Name] = n
	}
	// Pods of a workload ask for the same: what is found out about the nodes for one holds for all.
	obstacles, models := map[string]scheduler.Reason{}, map[string]string{}
	return func(yield func(*Pod, scheduler.Group) bool) {
		for _, p := range s.Pods {
			g := scheduler.Group{Queue: p.Namespace, Team: p.Team, State: p.State}
			if at := byName[p.Node]; at != nil {
				g.Model = at.Model
			}
			if g.State.Waits() {
				key := p.key()
				g.Reason = s.reason(p, func() scheduler.Reason {
					return once(obstacles, key, func() scheduler.Reason { return s.obstacle(&p.Demand) })
				})
				g.Model = once(models, key, func() string { return s.model(&p.Demand) })
			}
			if !yield(p, g) {
				return
			}
		}
	}
}

// once returns the value of key, which it computes if it is missing.
func once[V any](m map[string]V, key string, compute func() V) V {
	v, ok := m[key]
	if !ok {
		v = compute()
		m[key] = v
	}
	return v
}

// model returns the only model of devices with which a demand can be met, empty if there are several.
func (s *Snapshot) model(d *Demand) string {
	model, found := "", false
	for _, n := range s.Nodes {
		if !d.offers(n) || !d.selects(n) {
			continue
		}
		if found && n.Model != model {
			return ""
		}
		model, found = n.Model, true
	}
	return model
}
