package node

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Basis is what the shares of a device are derived from.
type Basis string

// The bases, most certain first.
const (
	Exclusive  Basis = "exclusive"  // one workload holds the whole device
	ByProcess  Basis = "process"    // per-process kernel time, or the compute units that each process occupies
	ByActivity Basis = "partition"  // per-partition activity
	ByLimit    Basis = "limit"      // the part that it may use
	ByGrant    Basis = "allocation" // allocation only
)

// share is one workload's part in one physical device at one moment. The shares of a
// device, including the unallocated rest, add up to the whole device.
type share struct {
	workload.Workload
	unit  string  // UUID of the device or partition
	alloc float64 // share of the device that it holds; the sum is 1
	share float64 // share of the device's work that it does; the sum is 1
	use   float64 // what share was derived from; 0: it does nothing
	basis Basis
	// memory is the bytes it uses, if known.
	memory  device.Value
	stale   bool
	limited bool // alloc is what it may use
	granted bool // by a scheduler
}

// cut is a physical device with its partitions, if any.
type cut struct {
	device     *Reading
	partitions []*Reading
}

// cuts groups readings by physical device. A partition whose parent is unknown is omitted.
func cuts(readings []Reading) []cut {
	var list []cut
	index := map[string]int{}
	for i := range readings {
		if r := &readings[i]; r.ID.Parent == "" {
			index[r.ID.UUID] = len(list)
			list = append(list, cut{device: r})
		}
	}
	for i := range readings {
		r := &readings[i]
		if at, ok := index[r.ID.Parent]; ok && r.ID.Parent != "" {
			list[at].partitions = append(list[at].partitions, r)
		}
	}
	return list
}

// portion is a unit that can be held: the device, or one of its partitions.
type portion struct {
	reading  *Reading
	size     float64 // share of the device
	activity device.Value
}

func (c cut) units() []portion {
	if len(c.partitions) == 0 {
		return []portion{{c.device, 1, c.device.Utilization.Compute}}
	}
	sum := 0.0
	list := make([]portion, 0, len(c.partitions))
	for _, p := range c.partitions {
		u := portion{p, p.Slice.Part(), activity(p)}
		sum += u.size
		list = append(list, u)
	}
	counted := slices.ContainsFunc(list, func(u portion) bool { return u.activity.OK() })
	for i := range list {
		// A partition without a reading yet counts as idle if others have one.
		if counted && !list[i].activity.OK() {
			list[i].activity = device.Of(0)
		}
		switch {
		case sum == 0: // their sizes are unknown
			list[i].size = 1 / float64(len(list))
		case sum > 1: // compute instances share the slices of their GPU instance
			list[i].size /= sum
		}
	}
	return list
}

// activity returns the compute activity of a partition, from 0 to 1.
func activity(p *Reading) device.Value {
	return p.Profile.SMActive.Or(p.Profile.EngineActive).Or(p.Utilization.Compute)
}

// busy returns Reading.Busy of the device. Unlike utilization, which divides a device
// among its workloads, it prefers the driver's reading for the whole device and does not
// count a partition without a reading as idle.
func (c cut) busy() device.Value {
	own := c.device.Utilization.Compute
	silent := func(p *Reading) bool { return !activity(p).OK() }
	if !c.device.Up || own.OK() || slices.ContainsFunc(c.partitions, silent) {
		return own
	}
	return c.utilization()
}

// utilization returns the utilization of the device, from 0 to 1. Drivers do not report it
// for a partitioned device, so it is derived from the partitions.
func (c cut) utilization() device.Value {
	if len(c.partitions) == 0 {
		return c.device.Utilization.Compute
	}
	sum, known := 0.0, false
	for _, u := range c.units() {
		if v, ok := u.activity.Get(); ok {
			sum, known = sum+v*u.size, true
		}
	}
	if !known {
		return c.device.Utilization.Compute
	}
	return device.Of(sum)
}

// owners is who uses the devices: the allocations, and the workload of each process.
type owners struct {
	holdings  []workload.Holding
	processes map[uint32]workload.Workload
}

// during returns who used the devices between two ticks: whoever held them at the first, and
// the processes that the second shows. A process shorter than a tick is known to one only.
func (o owners) during(after owners) owners {
	processes := maps.Clone(after.processes)
	for pid, w := range o.processes {
		if _, ok := processes[pid]; !ok { // it exited before its owner could be looked up again
			if processes == nil {
				processes = map[uint32]workload.Workload{}
			}
			processes[pid] = w
		}
	}
	return owners{holdings: o.holdings, processes: processes}
}

// of returns the holdings of a device or partition.
func (o owners) of(uuid string) []workload.Holding {
	var list []workload.Holding
	for _, h := range o.holdings {
		if h.Device == uuid {
			list = append(list, h)
		}
	}
	return list
}

// shares divides a device among its users.
func (c cut) shares(o owners) []share {
	var all []share
	units := c.units()
	held := 0.0
	whole := c.whole(o)
	for _, u := range units {
		all = append(all, u.shares(o, whole)...)
		held += u.size
	}
	if rest := 1 - held; rest > 1e-12 { // slices that belong to no partition
		all = append(all, restOf(workload.Unallocated, c.device.ID.UUID, rest))
	}
	all = join(all)
	c.divide(all)
	return all
}

// whole returns the holdings of a device that apply to every partition as well: a workload
// that was allocated the whole device was allocated each partition. A workload that only
// has a process on the device may be on any partition, unless it is known to be on one:
// drivers list a process on the device in addition to its partition.
func (c cut) whole(o owners) []workload.Holding {
	if len(c.partitions) == 0 {
		return nil
	}
	placed := map[string]bool{}
	for _, p := range c.partitions {
		for _, h := range o.of(p.ID.UUID) {
			placed[h.Workload.ID] = true
		}
	}
	return slices.DeleteFunc(o.of(c.device.ID.UUID), func(h workload.Holding) bool { return h.Part == 0 && placed[h.Workload.ID] })
}

// restOf returns a share that belongs to no workload.
func restOf(kind, unit string, alloc float64) share {
	return share{Workload: workload.Workload{ID: kind, Kind: kind}, unit: unit, alloc: alloc}
}

// shares divides one unit: first what was allocated; the rest among workloads that use it
// without an allocation, else unallocated.
func (u portion) shares(o owners, whole []workload.Holding) []share {
	uuid := u.reading.ID.UUID
	holdings := append(o.of(uuid), whole...)
	var list []share
	given := 0.0
	for _, h := range holdings {
		given += h.Part
	}
	scale := u.size / max(1, given) // the same unit may be allocated several times
	for _, h := range holdings {
		list = append(list, share{Workload: h.Workload, unit: uuid, alloc: h.Part * scale, stale: h.Stale, limited: h.Limited, granted: h.Part > 0})
	}
	named := o.named(holdings)
	ran := u.running(named)
	if _, nameless := ran.values[workload.Unattributed]; nameless {
		list = append(list, restOf(workload.Unattributed, uuid, 0))
	}
	uninvited := 0
	for _, s := range list {
		if s.alloc == 0 {
			uninvited++
		}
	}
	left := u.size - given*scale
	for i := range list {
		if list[i].alloc == 0 && left > 0 {
			list[i].alloc = left / float64(uninvited)
		}
	}
	if uninvited == 0 && left > 1e-12 {
		list = append(list, restOf(workload.Unallocated, uuid, left))
	}
	for _, w := range o.arrived(u, list, named) {
		list = append(list, share{Workload: w, unit: uuid})
	}
	u.use(list, ran)
	u.remember(list, named)
	// If the unit is busy without a visible user, something hidden uses it.
	nobody := !slices.ContainsFunc(list, func(s share) bool { return s.Kind != workload.Unallocated })
	if busy, _ := u.activity.Get(); busy > 0 && nobody {
		hidden := restOf(workload.Unattributed, uuid, 0)
		hidden.use = busy * u.size
		list = append(list, hidden)
	}
	return list
}

// join merges the unallocated and unattributed shares of all partitions, and a workload's
// shares in one unit.
func join(list []share) []share {
	for i := range list {
		if list[i].ID == workload.Unallocated || list[i].ID == workload.Unattributed {
			list[i].unit = "" // of the whole device
		}
	}
	slices.SortStableFunc(list, func(a, b share) int { return cmp.Or(cmp.Compare(a.unit, b.unit), cmp.Compare(a.ID, b.ID)) })
	out := list[:0]
	for _, s := range list {
		if n := len(out); n > 0 && out[n-1].unit == s.unit && out[n-1].ID == s.ID {
			out[n-1].alloc += s.alloc
			out[n-1].use += s.use
			out[n-1].memory = add(out[n-1].memory, s.memory)
			continue
		}
		out = append(out, s)
	}
	return out
}

func add(a, b device.Value) device.Value {
	x, ok := a.Get()
	y, also := b.Get()
	if !ok && !also {
		return device.Value{}
	}
	return device.Of(x + y)
}

// divide converts uses to shares of the device.
func (c cut) divide(all []share) {
	sum := 0.0
	for _, s := range all {
		sum += s.use
	}
	for i := range all {
		if sum > 0 {
			all[i].share = all[i].use / sum
		} else {
			all[i].share = all[i].alloc
		}
		if len(all) == 1 && all[i].Kind != workload.Unallocated && all[i].Kind != workload.Unattributed {
			all[i].basis = Exclusive
		} else if all[i].basis == "" || all[i].basis == ByGrant {
			all[i].basis = ByGrant
			if all[i].limited {
				all[i].basis = ByLimit
			}
		}
	}
}

// watts returns each share's part of total watts: idle power is divided by allocation,
// power above idle by share of the work.
func watts(all []share, total, idle float64) []float64 {
	idle = min(total, idle)
	list := make([]float64, len(all))
	for i, s := range all {
		list[i] = idle*s.alloc + (total-idle)*s.share
	}
	return list
}
