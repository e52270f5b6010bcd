package view

import (
	"context"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Accounts is what money says. A function that is nil is not known here: a hub without
// prices shows hours and energy alone.
type Accounts struct {
	Currency string // its code, such as USD
	// Rate is the price of an hour of the device with these labels that draws so many watts.
	Rate func(l query.Labels, at time.Time, watts optional.Float) optional.Float
	// Bill is what a period cost, and what was used in it.
	Bill func(ctx context.Context, from, to time.Time) (*Bill, error)
	// Findings are what is wasted.
	Findings func(ctx context.Context, from, to time.Time) ([]Finding, error)
	// Quotas are what teams may use, and do.
	Quotas func(ctx context.Context, at time.Time) ([]Quota, error)
}

// Bill is what a period cost.
type Bill struct {
	Rows   []BillRow
	Priced bool     // some of it has a price
	Notes  []string // what is not in it, and why
}

// BillRow is what one workload cost on one device. Owner has no ID for hours of a device that
// nobody held.
type BillRow struct {
	Owner fleet.Owner
	GPU   string // its UUID
	Model string
	Node  string

	// Seconds of a whole device. Those that nobody held are allocated, to nobody; some were
	// held, and nobody knows if they were used: if all were, active and idle are NaN.
	Allocated, Active, Idle, Unmeasured float64
	Energy                              float64 // joules
	CO2                                 float64 // grams, NaN if not known
	Cost, IdleCost, UnmeasuredCost      float64 // in the currency, NaN if not known
}

// Finding is something that costs more than it must.
type Finding struct {
	Rule   string       `json:"rule"`
	Title  string       `json:"title"`  // one line: what is the matter
	Detail string       `json:"detail"` // the numbers, and what to do
	Owner  *fleet.Owner `json:"owner,omitempty"`
	GPUs   []GPURef     `json:"gpus,omitempty"`
	PerDay number       `json:"perDay"` // money that it costs a day, null if there is no price
}

// GPURef is a device by its name. One that is not in the fleet, such as a partition, has none.
type GPURef struct {
	UUID string `json:"uuid"`
	Name string `json:"name,omitempty"`
}

// Quota is how much a team may have.
type Quota struct {
	Team   string `json:"team"`
	What   string `json:"what"` // what is limited: GPUs, GPU-hours, money
	Money  bool   `json:"money,omitempty"`
	Source string `json:"source"` // who says so: a file, a ResourceQuota, Slurm
	Used   number `json:"used"`
	Limit  number `json:"limit"`
	Over   bool   `json:"over"`
}
