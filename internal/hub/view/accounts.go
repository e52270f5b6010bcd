package view

import (
	"context"
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/sizing"
)

// Accounts computes the money side of the page. A nil function means that the hub does not
// provide that part: a hub without prices shows only hours and energy.
type Accounts struct {
	Currency string // ISO 4217 code, such as USD; empty without prices
	// Prices is the price file, for reports elsewhere; empty if there is none.
	Prices string
	// Notes are about the prices.
	Notes []string
	// Price returns what an hour costs under the labels of a row of the bill.
	Price fleet.Pricer
	// Bill returns the usage and cost of a period.
	Bill func(ctx context.Context, from, to time.Time) (*Bill, error)
	// Cover returns how much device time a bill lacks. It is nil for a team: the rest of its
	// devices' time is somebody else's.
	Cover func(ctx context.Context, b *Bill) (*Coverage, error)
	// Findings returns the waste in a bill.
	Findings func(ctx context.Context, b *Bill, facts sizing.Facts) ([]Finding, error)
	// Quotas returns the teams' quotas and how much of each is used.
	Quotas func(ctx context.Context, at time.Time) ([]Quota, error)
}

// Bill is the usage and cost of a period, as in a report.
type Bill struct {
	cost.Statement

	Notes []string // what the bill leaves out, and why
}

// Coverage is how much device time of a period is known, in seconds.
type Coverage struct {
	Known   number       `json:"known"`
	Unknown number       `json:"unknown"`
	Cost    number       `json:"cost"` // of the unknown time, without energy; null without a price
	GPUs    []CoveredGPU `json:"gpus"` // that lack device time, the worst first
	More    int          `json:"more,omitempty"`
	// NotSeen is the unknown time of GPUs: a row beside the bill, and in none of its sums.
	NotSeen notSeen `json:"notSeen"`
}

// notSeen is device time that nobody saw.
type notSeen struct {
	Devices int    `json:"devices"`
	Time    number `json:"time"` // device seconds
	Cost    number `json:"cost"` // without energy; null without a price
}

// CoveredGPU is a device that lacks device time.
type CoveredGPU struct {
	UUID    string   `json:"uuid"`
	Node    string   `json:"node"`
	Index   string   `json:"index"`
	Known   number   `json:"known"`
	Unknown number   `json:"unknown"`
	Why     []string `json:"why"` // such as not_seen_since, the longest first
	Cost    number   `json:"cost"`
}

// taken is device time, energy and money in the words of a report: held time is used, idle or, on
// devices that do not report activity, unmeasured; the rest is free. Costs add up to cost.
type taken struct {
	Time           number `json:"time"`     // device seconds, held or free
	HeldTime       number `json:"heldTime"` // used, idle and unmeasured
	UsedTime       number `json:"usedTime"` // null if all of the held time is unmeasured; likewise idle
	IdleTime       number `json:"idleTime"`
	UnmeasuredTime number `json:"unmeasuredTime"`
	FreeTime       number `json:"freeTime"`
	Energy         number `json:"energy"` // joules
	CO2            number `json:"co2"`    // grams, null if unknown

	// Money is null without a price.
	Cost           number `json:"cost"`
	UsedCost       number `json:"usedCost"`
	IdleCost       number `json:"idleCost"`
	UnmeasuredCost number `json:"unmeasuredCost"`
	FreeCost       number `json:"freeCost"`
	EnergyCost     number `json:"energyCost"`
}

// takenOf converts the amounts of a bill.
func takenOf(a cost.Amounts) taken {
	seconds := func(s cost.Seconds) number { return number(s.Float()) }
	t := taken{
		Time: seconds(a.Time()), HeldTime: seconds(a.Allocated()), UsedTime: seconds(a.Used), IdleTime: seconds(a.Idle),
		UnmeasuredTime: seconds(a.Unmeasured), FreeTime: seconds(a.Unallocated), Energy: number(a.Energy.Joules()), CO2: number(absent),
	}
	if a.Energy > 0 && a.Uncounted < a.Energy {
		t.CO2 = number(float64(a.Carbon) / 1e3)
	}
	amount := func(m cost.Money) number {
		if !a.Priced() {
			return number(absent)
		}
		return number(money(m))
	}
	t.Cost, t.UsedCost, t.IdleCost = amount(a.Total()), amount(a.UsedCost), amount(a.IdleCost)
	t.UnmeasuredCost, t.FreeCost, t.EnergyCost = amount(a.UnmeasuredCost), amount(a.UnallocatedCost), amount(a.EnergyCost)
	if a.Unmeasured > 0 && a.Unmeasured == a.Allocated() { // no activity data: unknown, not fully used
		t.UsedTime, t.IdleTime, t.UsedCost, t.IdleCost = number(absent), number(absent), number(absent), number(absent)
	}
	return t
}

// unknownTaken returns the amounts of what no bill has.
func unknownTaken() taken {
	n := number(absent)
	return taken{n, n, n, n, n, n, n, n, n, n, n, n, n, n}
}

// rest returns a note about the held time that belongs to no workload.
func (b *Bill) rest() []string {
	a := b.Unattributed.Add(b.Other)
	if a.Allocated() == 0 {
		return nil
	}
	note := fmt.Sprintf("%.1f GPU-hours belong to no workload above: they were held by processes of unknown owners, or by workloads beyond the limit of an agent", a.Allocated().Hours())
	if a.Priced() {
		note += fmt.Sprintf(", for %s %s", a.Total(), b.Currency)
	}
	return []string{note + "."}
}

// simulation says how much of an answer is about simulated devices: "", "some" or "all".
type simulation string

// simulationOf looks at the devices of a fleet and of a bill, each of which may be absent.
func simulationOf(f *fleet.Fleet, b *Bill) simulation {
	fake, genuine := false, false
	if f != nil {
		for i := range f.Devices {
			fake, genuine = fake || f.Devices[i].Simulated, genuine || !f.Devices[i].Simulated
		}
	}
	if b != nil && len(b.Rows) > 0 {
		part := b.Statement.Simulated()
		fake, genuine = fake || part != "", genuine || part != "all"
	}
	switch {
	case !fake:
		return ""
	case !genuine:
		return "all"
	}
	return "some"
}

// Finding is a way to save money.
type Finding struct {
	Rule   string       `json:"rule"`
	Title  string       `json:"title"`  // the problem in one line
	Detail string       `json:"detail"` // the numbers and the remedy
	Owner  *fleet.Owner `json:"owner,omitempty"`
	GPUs   []GPURef     `json:"gpus,omitempty"`
	PerDay number       `json:"perDay"` // money wasted per day, null without a price
}

// GPURef identifies a device. Name is empty if the fleet does not list the device, such as a
// partition.
type GPURef struct {
	UUID string `json:"uuid"`
	Name string `json:"name,omitempty"`
}

// Quota is one limit of a team and how much of it is used.
type Quota struct {
	Team   string `json:"team"`
	What   string `json:"what"` // the limited resource: GPUs, GPU-hours, money
	Money  bool   `json:"money,omitempty"`
	Source string `json:"source"` // origin of the limit: a file, a ResourceQuota, Slurm
	Used   number `json:"used"`
	Limit  number `json:"limit"`
	Over   bool   `json:"over"`
}
