package kube

import (
	"cmp"
	"slices"

	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/scheduler"
)

// Reference is what one device usually needs besides itself.
type Reference struct {
	CPU    int64 // thousandths of a CPU; 0: nothing
	Memory int64 // bytes; 0: nothing
}

// Reference returns the medians of what the pods of the last day ask for per device.
func (s *Snapshot) Reference() Reference {
	type sample struct{ value, pods int64 }
	var cpu, memory []sample
	all := int64(0)
	for i := range s.Demands {
		d := &s.Demands[i]
		if n := d.Whole(s.Vendors); n > 0 {
			cpu, memory = append(cpu, sample{d.CPU / n, d.Pods}), append(memory, sample{d.Memory / n, d.Pods})
			all += d.Pods
		}
	}
	median := func(list []sample) int64 {
		slices.SortFunc(list, func(a, b sample) int { return cmp.Compare(a.value, b.value) })
		before := int64(0)
		for _, x := range list {
			if before += x.pods; 2*before >= all {
				return x.value
			}
		}
		return 0
	}
	return Reference{median(cpu), median(memory)}
}

// Room returns where there is room for pods that ask for whole devices. ref says what a device needs beside itself, so as
// not to be stranded.
func (s *Snapshot) Room(ref Reference) scheduler.Room {
	r := scheduler.Room{Pools: map[string]*scheduler.Pool{}}
	unusable, free := 0.0, int64(0)
	for _, n := range s.Nodes {
		all, left := n.whole, n.free
		if all == 0 && n.Broken == 0 {
			continue // it has parts of devices only
		}
		pool := r.Pools[n.Model]
		if pool == nil {
			pool = scheduler.NewPool(scheduler.Unhealthy, scheduler.NotReady, scheduler.Cordoned, scheduler.Tainted, scheduler.LacksCPU, scheduler.LacksMemory)
			r.Pools[n.Model] = pool
		}
		pool.Devices[scheduler.Allocated] += all - left
		pool.Devices[n.rest()] += left
		pool.Devices[scheduler.Down] += n.Broken
		pool.Stranded[scheduler.Unhealthy] += n.Broken
		lost, cause := s.stranded(n, left, ref)
		if lost > 0 {
			pool.Stranded[cause] += lost
		}
		if n.Open() && cause != scheduler.Tainted {
			pool.Free = append(pool.Free, left)
			unusable += s.Unusable(n)
			free += left
		}
	}
	if free > 0 && s.asked() > 0 {
		r.Unusable = optional.Of(unusable / float64(free))
	}
	return r
}

// rest returns the state of the devices that no pod has.
func (n *Node) rest() scheduler.DeviceState {
	switch {
	case !n.Ready:
		return scheduler.Down
	case n.Cordoned:
		return scheduler.Drained
	}
	return scheduler.Idle
}

// stranded returns how many of the free devices of a node nobody can use, and why.
func (s *Snapshot) stranded(n *Node, free int64, ref Reference) (int64, scheduler.Cause) {
	switch {
	case !n.Ready:
		return free, scheduler.NotReady
	case n.Cordoned:
		return free, scheduler.Cordoned
	case !s.tolerated(n):
		return free, scheduler.Tainted
	}
	usable, cause := free, scheduler.Cause("")
	if ref.CPU > 0 {
		if fits := n.Left.CPU / ref.CPU; fits < usable {
			usable, cause = fits, scheduler.LacksCPU
		}
	}
	if ref.Memory > 0 {
		if fits := n.Left.Memory / ref.Memory; fits < usable {
			usable, cause = fits, scheduler.LacksMemory
		}
	}
	return free - usable, cause
}

// tolerated reports whether a pod of the last day tolerates the taints of a node. Taints that are named after the
// resource of its devices keep other pods away; Kubernetes adds the toleration to those that ask for it.
func (s *Snapshot) tolerated(n *Node) bool {
	named := func(t Taint) bool { return accelerator(s.Vendors, t.Key) }
	if !slices.ContainsFunc(n.Taints, func(t Taint) bool { return !named(t) }) {
		return true
	}
	return slices.ContainsFunc(s.Demands, func(w Weighted) bool {
		_, bad := w.untolerated(n)
		return !bad
	})
}

// asked returns how many pods of the last day asked for whole devices.
func (s *Snapshot) asked() int64 {
	n := int64(0)
	for i := range s.Demands {
		if s.Demands[i].Whole(s.Vendors) > 0 {
			n += s.Demands[i].Pods
		}
	}
	return n
}

// Unusable returns how many of the free devices of a node a demand of the last day cannot use, averaged over those
// demands: all of them if it does not fit, otherwise none, as only whole devices are counted.
//
// "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX ATC 2023.
func (s *Snapshot) Unusable(n *Node) float64 {
	free := n.free
	all, unfit := int64(0), int64(0)
	for i := range s.Demands {
		d := &s.Demands[i]
		if d.Whole(s.Vendors) == 0 {
			continue
		}
		all += d.Pods
		if !d.fits(n) {
			unfit += d.Pods
		}
	}
	if all == 0 {
		return 0
	}
	return float64(free) * float64(unfit) / float64(all)
}
