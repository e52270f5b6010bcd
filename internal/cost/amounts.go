package cost

import (
	"math/bits"
	"slices"

	"github.com/gpumeter/gpumeter/internal/fleet"
)

// Amounts are device time, energy and money. Each amount is a difference of one function of
// counters, so amounts add up exactly however a period is divided.
type Amounts struct {
	Used Seconds `json:"used_seconds"`
	Idle Seconds `json:"idle_seconds"`
	// Unmeasured time was held, but has no activity data.
	Unmeasured  Seconds `json:"unmeasured_seconds,omitempty"`
	Unallocated Seconds `json:"unallocated_seconds,omitempty"`
	Energy      Energy  `json:"energy_joules"`
	Carbon      Carbon  `json:"co2_grams"`

	UsedCost        Money `json:"used_cost"`
	IdleCost        Money `json:"idle_cost"`
	UnmeasuredCost  Money `json:"unmeasured_cost,omitempty"`
	UnallocatedCost Money `json:"unallocated_cost,omitempty"`
	EnergyCost      Money `json:"energy_cost"`

	// NotSeen is device time that nobody saw, and NotSeenCost what it would cost. Neither is part of
	// Time or Total: they are of what is known.
	NotSeen     Seconds `json:"not_seen_seconds,omitempty"`
	NotSeenCost Money   `json:"not_seen_cost,omitempty"`

	// Device time and energy without a price. No cost above includes them.
	Unpriced       Seconds `json:"unpriced_seconds,omitempty"`
	UnpricedEnergy Energy  `json:"unpriced_energy_joules,omitempty"` // of owned devices only
	Uncounted      Energy  `json:"uncounted_energy_joules,omitempty"`
}

// Allocated returns the time for which the device was held.
func (a Amounts) Allocated() Seconds { return a.Used + a.Idle + a.Unmeasured }

// Time returns all device time, held or free.
func (a Amounts) Time() Seconds { return a.Allocated() + a.Unallocated }

// AllocatedCost returns the cost of the held time.
func (a Amounts) AllocatedCost() Money { return a.UsedCost + a.IdleCost + a.UnmeasuredCost }

// Capacity returns the cost of all device time, without energy.
func (a Amounts) Capacity() Money { return a.AllocatedCost() + a.UnallocatedCost }

// Total returns the whole cost: capacity and energy.
func (a Amounts) Total() Money { return a.Capacity() + a.EnergyCost }

// Priced reports whether any of the time, or energy without held time, has a price. An unpriced
// amount is unknown, not free.
func (a Amounts) Priced() bool { return a.Unpriced < a.Time()+a.NotSeen || a.EnergyCost > 0 }

// Add returns a + b.
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
	a.NotSeen += b.NotSeen
	a.NotSeenCost += b.NotSeenCost
	a.Unpriced += b.Unpriced
	a.UnpricedEnergy += b.UnpricedEnergy
	a.Uncounted += b.Uncounted
	return a
}

// neg returns -a.
func (a Amounts) neg() Amounts {
	return Amounts{
		-a.Used, -a.Idle, -a.Unmeasured, -a.Unallocated, -a.Energy, -a.Carbon,
		-a.UsedCost, -a.IdleCost, -a.UnmeasuredCost, -a.UnallocatedCost, -a.EnergyCost,
		-a.NotSeen, -a.NotSeenCost, -a.Unpriced, -a.UnpricedEnergy, -a.Uncounted,
	}
}

// Divide divides amounts in proportion to weights, equally if all are 0. The parts add up to the amounts
// exactly.
func (a Amounts) Divide(weights []uint64) []Amounts {
	var all uint64
	for _, w := range weights {
		all += w
	}
	if all == 0 {
		weights = slices.Repeat([]uint64{1}, len(weights))
		all = uint64(len(weights))
	}
	out := make([]Amounts, len(weights))
	var upto uint64
	before := Amounts{}
	for i, w := range weights {
		upto += w
		now := a.portion(upto, all)
		out[i], before = now.Add(before.neg()), now
	}
	return out
}

// portion returns a*part/all, each amount rounded toward 0; part is at most all.
func (a Amounts) portion(part, all uint64) Amounts {
	return Amounts{
		portion(a.Used, part, all), portion(a.Idle, part, all), portion(a.Unmeasured, part, all), portion(a.Unallocated, part, all),
		portion(a.Energy, part, all), portion(a.Carbon, part, all),
		portion(a.UsedCost, part, all), portion(a.IdleCost, part, all), portion(a.UnmeasuredCost, part, all), portion(a.UnallocatedCost, part, all), portion(a.EnergyCost, part, all),
		portion(a.NotSeen, part, all), portion(a.NotSeenCost, part, all), portion(a.Unpriced, part, all), portion(a.UnpricedEnergy, part, all), portion(a.Uncounted, part, all),
	}
}

func portion[T ~int64](v T, part, all uint64) T {
	if v < 0 { // floating-point counters can make idle time a little negative
		return -portion(-v, part, all)
	}
	hi, lo := bits.Mul64(uint64(v), part)
	q, _ := bits.Div64(hi, lo, all)
	return T(q)
}

// tariff converts the counters of one row to amounts between two price changes.
type tariff struct {
	price       Price
	priced      bool
	power       Power
	unallocated bool
}

// at returns the amounts for counters that start at zero and stand at s.
func (t tariff) at(s fleet.Sums) Amounts {
	var a Amounts
	if t.unallocated {
		a.Unallocated = s.Held
	} else {
		a.Used = min(s.Active, s.Held-s.Unmeasured)
		a.Idle, a.Unmeasured = s.Held-s.Unmeasured-a.Used, s.Unmeasured
	}
	if s.HasEnergy {
		a.Energy = s.Energy
		if t.power.Emits {
			a.Carbon = Carbon(muldiv(int64(s.Energy), t.power.Milligrams, 3600e6))
		} else {
			a.Uncounted = s.Energy
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
