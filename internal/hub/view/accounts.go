package view

import (
	"context"
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/fleet"
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
	// Findings returns the waste found in a period.
	Findings func(ctx context.Context, from, to time.Time) ([]Finding, error)
	// Quotas returns the teams' quotas and how much of each is used.
	Quotas func(ctx context.Context, at time.Time) ([]Quota, error)
}

// Bill is the usage and cost of a period.
type Bill struct {
	Rows   []BillRow
	Priced bool     // at least one row has a price
	Notes  []string // what the bill leaves out, and why

	statement *cost.Statement
}

// Coverage is how much device time of a period is known, in seconds.
type Coverage struct {
	Known   number       `json:"known"`
	Unknown number       `json:"unknown"`
	AtMost  number       `json:"atMost"` // cost of the unknown time without energy; null without a price
	GPUs    []CoveredGPU `json:"gpus"`   // that lack device time, the worst first
	More    int          `json:"more,omitempty"`
}

// CoveredGPU is a device that lacks device time.
type CoveredGPU struct {
	UUID    string   `json:"uuid"`
	Node    string   `json:"node"`
	Index   string   `json:"index"`
	Known   number   `json:"known"`
	Unknown number   `json:"unknown"`
	Why     []string `json:"why"` // such as not_seen_since, the longest first
	AtMost  number   `json:"atMost"`
}

// BillRow is the cost of one workload on one device. Owner.ID is empty for device time that
// nobody held.
type BillRow struct {
	Owner fleet.Owner
	GPU   string // UUID
	Model string
	Node  string
	// Simulated is set for a device that does not exist.
	Simulated bool

	// Seconds of a whole device. Free time counts as Allocated in the row without an owner.
	// Unmeasured is held time without activity data; if all of the time is unmeasured,
	// Active and Idle are NaN.
	Allocated, Active, Idle, Unmeasured float64
	Energy                              float64 // joules
	CO2                                 float64 // grams, NaN if unknown
	Cost, IdleCost, UnmeasuredCost      float64 // in the currency, NaN if unknown
}

// rest returns a note about the time whose owner is unknown: it belongs to no workload.
func (b *Bill) rest(currency string) []string {
	var seconds, cost sum
	for i := range b.Rows {
		if r := &b.Rows[i]; r.Owner.ID != "" && !fleet.IsWorkload(r.Owner.Kind) {
			seconds.add(r.Allocated)
			cost.add(r.Cost)
		}
	}
	if seconds.total == 0 {
		return nil
	}
	note := fmt.Sprintf("%.1f GPU-hours belong to no workload above: they were used by processes of unknown owners", seconds.total/3600)
	if cost.n > 0 {
		note += fmt.Sprintf(", for %.2f %s", cost.total, currency)
	}
	return []string{note + "."}
}

// simulation says how much of an answer is about simulated devices: "", "some" or "all".
type simulation string

// simulationOf looks at the devices of a fleet and of a bill, each of which may be absent.
func simulationOf(f *fleet.Fleet, b *Bill) simulation {
	fake, genuine := 0, 0
	count := func(simulated bool) {
		if simulated {
			fake++
		} else {
			genuine++
		}
	}
	if f != nil {
		for i := range f.Devices {
			count(f.Devices[i].Simulated)
		}
	}
	if b != nil {
		for i := range b.Rows {
			count(b.Rows[i].Simulated)
		}
	}
	switch {
	case fake == 0:
		return ""
	case genuine == 0:
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
