package gpureceiver

import (
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// perHolder is the number of points of a workload on a device.
const perHolder = 8

// fold limits the workloads that have series of their own. The other workloads of a device are exported
// together, with the kind other, so that no sum loses anything. A workload stays where it began:
// otherwise its sums would be counted in both places.
type fold struct {
	began  time.Time // time of the first tick
	single map[holderID]bool
	pools  map[string]*pool // by UUID of the device
	// base has the sums at the first tick of workloads that an earlier process may have exported elsewhere.
	// They restart at 0.
	base map[holderID]node.Holder
}

// holderID identifies a workload on a device. After a change of labels or a restart of its sums, a
// workload is another one.
type holderID struct {
	device, partition, workload string
	since                       int64 // Unix time in ns
}

func idOf(r *node.Reading, h *node.Holder) holderID {
	return holderID{r.ID.UUID, h.Partition, h.ID, h.Since.UnixNano()}
}

// pool adds up the workloads of a device that have no series of their own.
type pool struct {
	total node.Holder
	last  map[holderID]node.Holder // members at the last tick
}

// candidate is a workload that may get series of its own.
type candidate struct {
	id    holderID
	since time.Time
}

// apply returns t with at most room workloads that have series of their own, unless more already had them.
// room is called only if it may matter.
func (f *fold) apply(t node.Tick, few int, room func() int) node.Tick {
	if f.began.IsZero() {
		f.begin(t, few)
	}
	t = f.rebase(t)
	single := map[holderID]bool{}
	var fresh []candidate
	for i := range t.Readings {
		r := &t.Readings[i]
		for j := range r.Holders {
			h := &r.Holders[j]
			switch id := idOf(r, h); {
			case isRest(h) || h.Kind == workload.Other || f.pooled(id):
			case f.single[id]:
				single[id] = true
			default:
				fresh = append(fresh, candidate{id, h.Since})
			}
		}
	}
	limit := few
	if len(single)+len(fresh) > few {
		limit = max(few, room())
	}
	slices.SortStableFunc(fresh, func(a, b candidate) int { return a.since.Compare(b.since) })
	for _, c := range fresh[:max(0, min(len(fresh), limit-len(single)))] {
		single[c.id] = true
	}
	if f.single = single; len(f.pools) == 0 && len(fresh)+len(single) <= limit {
		return t
	}
	t.Readings = slices.Clone(t.Readings)
	for i := range t.Readings {
		t.Readings[i].Holders = f.holders(&t.Readings[i])
	}
	return t
}

// begin records the sums of the first tick if there are so many workloads that an earlier process may have
// folded some: which is not known.
func (f *fold) begin(t node.Tick, few int) {
	f.began = t.Time
	base := map[holderID]node.Holder{}
	for i := range t.Readings {
		r := &t.Readings[i]
		for _, h := range r.Holders {
			if !isRest(&h) && h.Since.Before(t.Time) {
				base[idOf(r, &h)] = h
			}
		}
	}
	if len(base) > few {
		f.base = base
	}
}

// rebase returns t with sums since the first tick for workloads in base.
func (f *fold) rebase(t node.Tick) node.Tick {
	if f.base == nil {
		return t
	}
	t.Readings = slices.Clone(t.Readings)
	for i := range t.Readings {
		r := &t.Readings[i]
		r.Holders = slices.Clone(r.Holders)
		for j := range r.Holders {
			h := &r.Holders[j]
			if b, ok := f.base[idOf(r, h)]; ok {
				h.Since = f.began
				h.Allocated -= b.Allocated
				h.Energy, h.Active = plus(device.Value{}, h.Energy, b.Energy), plus(device.Value{}, h.Active, b.Active)
			}
		}
	}
	return t
}

func (f *fold) pooled(id holderID) bool {
	p := f.pools[id.device]
	if p == nil {
		return false
	}
	_, ok := p.last[id]
	return ok
}

// holders returns the holders of a device, with those in its pool as one.
func (f *fold) holders(r *node.Reading) []node.Holder {
	var kept, members []node.Holder
	others := 0
	for i := range r.Holders {
		h := r.Holders[i]
		switch {
		case h.Kind == workload.Other:
			members = append(members, h)
			others++
		case isRest(&h) || f.single[idOf(r, &h)]:
			kept = append(kept, h)
		default:
			members = append(members, h)
		}
	}
	p := f.pools[r.ID.UUID]
	if p == nil && others == len(members) {
		return r.Holders
	}
	if p == nil {
		p = &pool{total: node.Holder{Workload: workload.Workload{ID: workload.Other, Kind: workload.Other}, Since: f.began}}
		if f.pools == nil {
			f.pools = map[string]*pool{}
		}
		f.pools[r.ID.UUID] = p
	}
	return append(kept, p.add(r, members))
}

// add adds what the members used since the last tick, and returns the pool as a holder.
func (p *pool) add(r *node.Reading, members []node.Holder) node.Holder {
	last := make(map[holderID]node.Holder, len(members))
	now := node.Holder{Workload: p.total.Workload, Ended: true}
	for _, h := range members {
		id := idOf(r, &h)
		last[id] = h
		before := p.last[id]
		if p.last == nil && h.Kind == workload.Other { // has been exported under the same labels
			p.total.Since = h.Since
		}
		p.total.Allocated += h.Allocated - before.Allocated
		p.total.Energy = plus(p.total.Energy, h.Energy, before.Energy)
		p.total.Active = plus(p.total.Active, h.Active, before.Active)
		if h.Ended {
			continue
		}
		now.Ended, now.Basis = false, node.ByGrant
		now.Stale = now.Stale || h.Stale
		now.Allocation += h.Allocation
		now.Share += h.Share
		now.Utilization = plus(now.Utilization, h.Utilization, device.Value{})
		now.MemoryUsed = plus(now.MemoryUsed, h.MemoryUsed, device.Value{})
		now.Power = plus(now.Power, h.Power, device.Value{})
	}
	p.last = last
	now.Since, now.Allocated, now.Energy, now.Active = p.total.Since, p.total.Allocated, p.total.Energy, p.total.Active
	return now
}

// plus returns sum plus the growth of a value, absent if neither is known.
func plus(sum, now, before device.Value) device.Value {
	v, ok := now.Get()
	if !ok {
		return sum
	}
	was, _ := before.Get()
	s, _ := sum.Get()
	return device.Of(s + v - was)
}
