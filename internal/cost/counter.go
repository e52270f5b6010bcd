package cost

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/query"
)

// What the folding of counters goes by.
const (
	// fresh is how much a sum may have on it when it is first seen and still be counted
	// from zero. One with more began before the store knew it.
	fresh = Seconds(3600e6)
	// behind is for how long, and how far, one of several ways to a store may be behind
	// another.
	behind = 5 * time.Minute
	// back is how long before an edge samples are looked at.
	back = time.Hour
	// most is the highest sum that is believed, in seconds and in joules.
	most, mostJoules = 1e9, 1e13
)

// transport are labels of how a sample came to a store, not of what it is.
var transport = map[string]bool{
	"job": true, "instance": true, "pod": true, "container": true, "endpoint": true, "service": true, "service_name": true, "service_instance_id": true,
	"service_version": true, "prometheus": true, "prometheus_replica": true, "replica": true, "receive": true, "tenant_id": true,
	"gpu_index": true, "gpu_share_basis": true, "otel_scope_name": true, "otel_scope_version": true, "otel_scope_schema_url": true,
}

// Transport returns, in order, the labels of how a sample came to a store. Two series that
// differ in nothing else are one that came by two ways.
func Transport() []string { return slices.Sorted(maps.Keys(transport)) }

// described are labels that belong to a row but do not tell two sums apart: some come
// late, when the cloud or the API server answers.
func described(name string) bool {
	switch name {
	case "gpu_model", "gpu_vendor", "k8s_cluster_name", "k8s_node_name":
		return true
	}
	for _, prefix := range []string{"gpu_", "k8s_", "slurm_", "container_", "user_", "process_"} {
		if strings.HasPrefix(name, prefix) {
			return false
		}
	}
	return true
}

// rowLabels are the labels without how the sample came.
func rowLabels(l query.Labels) query.Labels {
	out := make(query.Labels, len(l))
	for name, value := range l {
		if value != "" && !transport[name] && !strings.HasPrefix(name, "__") {
			out[name] = value
		}
	}
	return out
}

// sumKey is the same for all series that are one sum of one agent. It is worked out for
// every series of every answer, so it takes what it needs only.
func sumKey(l query.Labels) string {
	names := make([]string, 0, 24)
	size := 0
	for name, value := range l {
		if value != "" && !described(name) && !transport[name] || name == "host_name" && l["gpu_uuid"] == "" {
			names = append(names, name)
			size += len(name) + len(value) + 2
		}
	}
	slices.Sort(names)
	key := make([]byte, 0, size)
	for _, name := range names {
		key = append(key, name...)
		key = append(key, 0xff) // in no name and, as it is no UTF-8, in no value
		key = append(key, l[name]...)
		key = append(key, 0xff)
	}
	return string(key)
}

// sums are what the counters of one workload on one device stand at.
type sums struct {
	held   Seconds
	active Seconds
	energy Energy
	// hasActive and hasEnergy: a device may not say.
	hasActive, hasEnergy bool
}

// with is a, with what b knows instead.
func (a sums) with(b sums) sums {
	if b.hasActive {
		a.active, a.hasActive = b.active, true
	}
	if b.hasEnergy {
		a.energy, a.hasEnergy = b.energy, true
	}
	return a
}

// below reports whether a counter of a stands lower than in b.
func (a sums) below(b sums) bool {
	return a.held < b.held || a.hasActive && b.hasActive && a.active < b.active || a.hasEnergy && b.hasEnergy && a.energy < b.energy
}

// micro is a counter of seconds.
func micro(v float64) (Seconds, bool) {
	if !(v >= 0 && v <= most) {
		return 0, false
	}
	return Seconds(math.Round(v * 1e6)), true
}

// milli is a counter of joules.
func milli(v float64) (Energy, bool) {
	if !(v >= 0 && v <= mostJoules) {
		return 0, false
	}
	return Energy(math.Round(v * 1e3)), true
}

// Amounts are device time, energy and money. Each is a sum of differences of one function
// of counters, so that they add up exactly however a period is cut.
type Amounts struct {
	Used Seconds `json:"used_seconds"`
	Idle Seconds `json:"idle_seconds"`
	// Unmeasured was held, and nobody knows if it was used.
	Unmeasured  Seconds `json:"unmeasured_seconds,omitempty"`
	Unallocated Seconds `json:"unallocated_seconds,omitempty"`
	Energy      Energy  `json:"energy_joules"`
	Carbon      Carbon  `json:"co2_grams"`

	UsedCost        Money `json:"used_cost"`
	IdleCost        Money `json:"idle_cost"`
	UnmeasuredCost  Money `json:"unmeasured_cost,omitempty"`
	UnallocatedCost Money `json:"unallocated_cost,omitempty"`
	EnergyCost      Money `json:"energy_cost"`

	// What has no price, and is in no sum of money above.
	Unpriced       Seconds `json:"unpriced_seconds,omitempty"`
	UnpricedEnergy Energy  `json:"unpriced_energy_joules,omitempty"` // of owned devices
	Uncounted      Energy  `json:"uncounted_energy_joules,omitempty"`
}

// Allocated is the time for which it was held.
func (a Amounts) Allocated() Seconds { return a.Used + a.Idle + a.Unmeasured }

// Time is all device time, held or not.
func (a Amounts) Time() Seconds { return a.Allocated() + a.Unallocated }

// AllocatedCost is what the time for which it was held costs.
func (a Amounts) AllocatedCost() Money { return a.UsedCost + a.IdleCost + a.UnmeasuredCost }

// Capacity is what all device time costs, without energy.
func (a Amounts) Capacity() Money { return a.AllocatedCost() + a.UnallocatedCost }

// Total is the whole bill: capacity and energy.
func (a Amounts) Total() Money { return a.Capacity() + a.EnergyCost }

// Priced reports whether any of it has a price. Nothing without one is free.
func (a Amounts) Priced() bool { return a.Unpriced < a.Time() }

// Add returns the sum of both.
func (a Amounts) Add(b Amounts) Amounts {
	a.Used += b.Used
	a.Idle += b.Idle
	a.Unmeasured += b.Unmeasured
	a.Unallocated += b.Unallocated
	a.Energy += b.Energy
	a.Carbon += b.Carbon
	a.UsedCost += b.UsedCost
	a.IdleCost += b.IdleCost
	a.UnmeasuredCost += b.UnmeasuredCost
	a.UnallocatedCost += b.UnallocatedCost
	a.EnergyCost += b.EnergyCost
	a.Unpriced += b.Unpriced
	a.UnpricedEnergy += b.UnpricedEnergy
	a.Uncounted += b.Uncounted
	return a
}

// neg returns a with all signs changed.
func (a Amounts) neg() Amounts {
	return Amounts{
		-a.Used, -a.Idle, -a.Unmeasured, -a.Unallocated, -a.Energy, -a.Carbon,
		-a.UsedCost, -a.IdleCost, -a.UnmeasuredCost, -a.UnallocatedCost, -a.EnergyCost,
		-a.Unpriced, -a.UnpricedEnergy, -a.Uncounted,
	}
}

// tariff is all that turns counters of one row into amounts while no price changes.
type tariff struct {
	price       Price
	priced      bool
	power       Power
	unallocated bool
}

// at is what counters that stand at s are worth in all.
func (t tariff) at(s sums) Amounts {
	var a Amounts
	used := min(s.active, s.held)
	switch {
	case t.unallocated:
		a.Unallocated = s.held
	case s.hasActive:
		a.Used, a.Idle = used, s.held-used
	default:
		a.Unmeasured = s.held
	}
	if s.hasEnergy {
		a.Energy = s.energy
		if t.power.Emits {
			a.Carbon = Carbon(muldiv(int64(s.energy), t.power.Milligrams, 3600e6))
		} else {
			a.Uncounted = s.energy
		}
	}
	if !t.priced {
		a.Unpriced = a.Time()
		return a
	}
	a.UsedCost = t.price.PerHour.Capacity(a.Used)
	a.IdleCost = t.price.PerHour.Capacity(a.Idle)
	a.UnmeasuredCost = t.price.PerHour.Capacity(a.Unmeasured)
	a.UnallocatedCost = t.price.PerHour.Capacity(a.Unallocated)
	if t.price.Kind == Owned && t.power.Priced {
		a.EnergyCost = t.price.PerKWh.Energy(a.Energy)
	} else if t.price.Kind == Owned {
		a.UnpricedEnergy = a.Energy
	}
	return a
}

// between is what was used from one state of the counters to another.
func (t tariff) between(from, to sums) Amounts { return t.at(to).Add(t.at(from).neg()) }

// reading is one moment of the counters of one workload on one device.
type reading struct {
	at     time.Time
	sums          // as they were written
	row    string // of its labels
	series string // the way it came
	// hasHeld: the counter of time has a sample then.
	hasHeld bool
}

// run follows one sum over its samples. What it does next depends on the last sample
// only, so that it does not matter where one begins to look.
type run struct {
	sums
	last   time.Time // of the newest reading of held time
	row    string
	series string
	any    bool
}

// step takes in a reading. It returns from where to where it counts, and false if it
// counts nothing; older is what was on a sum that the store did not see begin.
func (r *run) step(s *reading) (from, to sums, older Seconds, ok bool) {
	if !s.hasHeld {
		if !r.any {
			return // what it is part of is not known yet
		}
		from, to = r.since(s.sums), r.with(s.sums)
		if to.below(from) {
			return // a counter alone does not go back
		}
		r.sums = to
		return from, to, 0, true
	}
	since := s.at.Sub(r.last)
	to = sums{held: s.held, active: r.active, hasActive: r.hasActive, energy: r.energy, hasEnergy: r.hasEnergy}.with(s.sums)
	switch {
	case !r.any && s.held > fresh: // the store does not know its beginning
		older, to = s.held, s.sums
	case !r.any:
		ok, to = true, s.sums
	case !to.below(r.sums):
		from, ok = r.since(s.sums), true
	case s.held.Duration() <= since: // it can have begun anew
		ok, to = true, s.sums
	case s.series != r.series && since <= behind && r.held-s.held <= Seconds(behind.Microseconds()):
		return sums{}, sums{}, 0, false // what it shows was counted
	default: // an agent that was killed goes on from what it last wrote
		to = s.sums
	}
	r.sums, r.any, r.last, r.row, r.series = to, true, s.at, s.row, s.series
	return from, to, older, ok
}

// since is where the run stands for what comes next. A counter that it does not know yet
// counts from where it is first seen, unless the sum has just begun.
func (r *run) since(next sums) sums {
	from := r.sums
	if next.hasActive && !from.hasActive {
		from.active, from.hasActive = next.active, true
	}
	if next.hasEnergy && !from.hasEnergy && from.held > 0 {
		from.energy, from.hasEnergy = next.energy, true
	}
	return from
}

// timeline puts the samples of one sum from all its series in order. Of one moment the
// reading that is ahead comes last.
func timeline(list []reading) []reading {
	slices.SortStableFunc(list, func(a, b reading) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.series, b.series))
	})
	var out []reading
	for _, r := range list {
		if n := len(out); n > 0 && out[n-1].at.Equal(r.at) && out[n-1].series == r.series {
			p := &out[n-1]
			held := max(p.held, r.held)
			p.sums = p.with(r.sums)
			p.held, p.hasHeld = held, p.hasHeld || r.hasHeld
			continue
		}
		out = append(out, r)
	}
	slices.SortStableFunc(out, func(a, b reading) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.held, b.held))
	})
	return out
}
