package kube

import (
	"cmp"
	"slices"

	"github.com/gpumeter/gpumeter/internal/scheduler"
)

// Reason returns why a pod waits. It is what keeps the pod from nodes that have enough free devices, among the
// nodes where it may run; if there is none, the devices are the reason. The scheduler's message alone cannot say: it
// counts every node, also those without devices. What the nodes do not explain is taken from the message.
func (s *Snapshot) Reason(p *Pod) scheduler.Reason {
	switch {
	case p.State == scheduler.Held, p.Condition == "SchedulingGated":
		return scheduler.Gated
	case p.Nominated != "":
		return scheduler.Preempting
	case p.Condition == "":
		return scheduler.New
	}
	verdict := parseMessage(p.Message, s.Vendors)
	for _, c := range verdict.Causes {
		if c.Nodes == 0 && c.Reason != scheduler.Other { // about the pod, whatever the nodes are
			return c.Reason
		}
	}
	if s.Nodes == nil {
		return said(verdict.Causes, func(scheduler.Reason) bool { return true })
	}
	if r := s.obstacle(p); r != "" {
		return r
	}
	// By its devices, CPU, memory, taints and labels the pod fits: the scheduler knows of something else.
	modeled := []scheduler.Reason{scheduler.Device, scheduler.CPU, scheduler.Memory, scheduler.Taint, scheduler.Slots, scheduler.Unavailable}
	return said(verdict.Causes, func(r scheduler.Reason) bool { return !slices.Contains(modeled, r) })
}

// obstacle returns what keeps a pod from the nodes with enough free devices, or nothing if it fits one.
func (s *Snapshot) obstacle(p *Pod) scheduler.Reason {
	var offer, selected, allowed, roomy, open int
	blocked := map[scheduler.Reason]int64{} // free devices of the nodes, by the first obstacle
	for _, n := range s.Nodes {
		if !p.offers(n) {
			continue
		}
		offer++
		if !p.selects(n) {
			continue
		}
		selected++
		if _, bad := p.untolerated(n); bad && n.Open() {
			continue
		}
		allowed++
		list := p.Obstacles(n)
		if slices.ContainsFunc(list, func(o Obstacle) bool { return o.Reason == scheduler.Device }) {
			continue
		}
		roomy++
		if !n.Open() {
			continue
		}
		open++
		if len(list) == 0 {
			return ""
		}
		for name := range p.Devices {
			blocked[list[0].Reason] += n.Free().Devices[name]
		}
	}
	switch {
	case offer == 0:
		return scheduler.Device
	case selected == 0:
		return scheduler.Affinity
	case allowed == 0:
		return scheduler.Taint
	case roomy == 0:
		return scheduler.Device
	case open == 0:
		return scheduler.Unavailable
	}
	most := scheduler.Other
	for _, r := range []scheduler.Reason{scheduler.CPU, scheduler.Memory, scheduler.Slots} {
		if blocked[r] > blocked[most] {
			most = r
		}
	}
	return most
}

// said returns the cause of the most nodes that keep accepts, or Other.
func said(causes []Count, keep func(scheduler.Reason) bool) scheduler.Reason {
	causes = slices.DeleteFunc(slices.Clone(causes), func(c Count) bool { return !keep(c.Reason) })
	if len(causes) == 0 {
		return scheduler.Other
	}
	return slices.MaxFunc(causes, func(a, b Count) int {
		return cmp.Or(cmp.Compare(a.Nodes, b.Nodes), cmp.Compare(b.Reason, a.Reason))
	}).Reason
}
