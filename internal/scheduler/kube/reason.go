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
	return s.reason(p, func() scheduler.Reason { return s.obstacle(&p.Demand) })
}

// reason is Reason, with a function for what keeps the pod from nodes.
func (s *Snapshot) reason(p *Pod, obstacle func() scheduler.Reason) scheduler.Reason {
	switch {
	case p.State == scheduler.Held, p.Condition == "SchedulingGated":
		return s.held(p)
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
	if s.Nodes == nil || !p.accelerated() {
		return cmp.Or(said(verdict.Causes, func(scheduler.Reason) bool { return true }), scheduler.Other)
	}
	if r := obstacle(); r != "" {
		return r
	}
	// By its devices, CPU, memory, taints and labels the pod fits: the scheduler knows of something else, or it
	// has not looked since there is room.
	modeled := []scheduler.Reason{scheduler.Device, scheduler.CPU, scheduler.Memory, scheduler.Taint, scheduler.Slots, scheduler.Unavailable}
	r := cmp.Or(said(verdict.Causes, func(r scheduler.Reason) bool { return !slices.Contains(modeled, r) }), scheduler.New)
	if (r == scheduler.New || r == scheduler.Other) && s.waitsForOthers(p) {
		return scheduler.Gang // it fits alone, and others of its group do not fit beside it
	}
	return r
}

// obstacle returns what keeps pods of a demand from the nodes with enough free devices, or nothing if they fit one.
func (s *Snapshot) obstacle(d *Demand) scheduler.Reason {
	var offer, selected, allowed, roomy, open int
	blocked := map[scheduler.Reason]int64{} // free devices of the nodes, by the first obstacle
	for _, n := range s.Nodes {
		if !d.offers(n) {
			continue
		}
		offer++
		if !d.selects(n) {
			continue
		}
		selected++
		if _, bad := d.untolerated(n); bad && n.Open() {
			continue
		}
		allowed++
		first, full := scheduler.Reason(""), false
		for o := range d.Obstacles(n) {
			first = cmp.Or(first, o.Reason)
			full = full || o.Reason == scheduler.Device
		}
		if full {
			continue
		}
		roomy++
		if !n.Open() {
			continue
		}
		open++
		if first == "" {
			return ""
		}
		for name := range d.Devices {
			blocked[first] += n.Left.Devices[name]
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

// said returns the cause of the most nodes that keep accepts, or nothing.
func said(causes []Count, keep func(scheduler.Reason) bool) scheduler.Reason {
	causes = slices.DeleteFunc(slices.Clone(causes), func(c Count) bool { return !keep(c.Reason) })
	if len(causes) == 0 {
		return ""
	}
	return slices.MaxFunc(causes, func(a, b Count) int {
		return cmp.Or(cmp.Compare(a.Nodes, b.Nodes), cmp.Compare(b.Reason, a.Reason))
	}).Reason
}
