package view

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/sizing"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Cost returns the accounts of a store under these prices and quotas. Without prices the
// accounts have hours and energy, but no money.
func Cost(store query.Store, prices cost.Prices, quotas []cost.Quota) Accounts {
	a := Accounts{Currency: prices.Currency}
	a.Bill = func(ctx context.Context, from, to time.Time) (*Bill, error) {
		s, err := cost.Bill(ctx, store, prices, from, to, cost.Options{})
		if err != nil {
			return nil, err
		}
		return billOf(s), nil
	}
	a.Cover = func(ctx context.Context, b *Bill) (*Coverage, error) {
		c, err := cost.Cover(ctx, store, prices, &b.Statement, nil)
		if err != nil {
			return nil, err
		}
		return coverageOf(c), nil
	}
	a.Findings = func(ctx context.Context, b *Bill, facts sizing.Facts) ([]Finding, error) {
		list, err := cost.FindingsIn(ctx, store, prices, b.Statement, cost.Rules{Facts: facts}, cost.Options{})
		if err != nil {
			return nil, err
		}
		out := make([]Finding, len(list))
		for i := range list {
			out[i] = findingOf(&list[i])
		}
		return out, nil
	}
	if len(quotas) > 0 {
		a.Quotas = func(ctx context.Context, at time.Time) ([]Quota, error) {
			return usesOf(ctx, store, prices, quotas, at)
		}
	}
	if prices.Empty() {
		return a
	}
	a.Price, a.Prices = prices.Hourly, string(prices.Text())
	return a
}

func billOf(s cost.Statement) *Bill {
	b := &Bill{Statement: s}
	if s.Total.Priced() && s.Total.Time() > 0 {
		for _, model := range slices.Sorted(maps.Keys(s.Missing.NoPrice)) {
			b.Notes = append(b.Notes, fmt.Sprintf("%s has no price: %.1f GPU-hours are not included in the cost.", model, s.Missing.NoPrice[model].Hours()))
		}
	}
	if note := s.Missing.TwiceNote(); note != "" {
		b.Notes = append(b.Notes, note)
	}
	for _, c := range s.Commitments {
		if note := c.Note(s.Currency); note != "" {
			b.Notes = append(b.Notes, note)
		}
	}
	if !s.Since.IsZero() {
		b.Notes = append(b.Notes, "This store has no data before "+s.Since.UTC().Format("2 January 2006 15:04 MST")+".")
	}
	return b
}

// maxCovered bounds the devices that the page lists.
const maxCovered = 100

func coverageOf(c *cost.Coverage) *Coverage {
	amount := func(m cost.Money, priced bool) number {
		if !priced {
			return number(absent)
		}
		return number(money(m))
	}
	list := c.Incomplete()
	out := &Coverage{
		Known: number(c.Known.Float()), Unknown: number(c.Unknown.Float()), Cost: amount(c.Cost, c.Unpriced < c.Unknown),
		GPUs: []CoveredGPU{}, More: max(0, len(list)-maxCovered),
	}
	_, sum := c.NotSeen()
	out.NotSeen = notSeen{Devices: sum.Devices, Time: number(sum.NotSeen.Float()), Cost: amount(sum.NotSeenCost, sum.Priced())}
	for _, g := range list[:min(len(list), maxCovered)] {
		x := CoveredGPU{UUID: g.UUID, Node: g.Node, Index: g.GPU, Known: number(g.Known.Float()), Unknown: number(g.Unknown.Float()), Cost: amount(g.Cost, g.Priced())}
		for _, u := range g.Why {
			x.Why = append(x.Why, u.Why)
		}
		out.GPUs = append(out.GPUs, x)
	}
	return out
}

// limits are the display names of the limits of a quota.
var limits = map[string]string{"gpus": "GPUs", "gpu_hours": "GPU-hours this month", "money": "spend this month"}

// usesOf compares quotas with the cost of the month so far, in the time zone of at, and with current
// holdings.
func usesOf(ctx context.Context, store query.Store, prices cost.Prices, quotas []cost.Quota, at time.Time) ([]Quota, error) {
	at = at.Truncate(time.Minute)
	month := cost.MonthOf(at)
	var bill cost.Statement
	if month.Before(at) {
		var err error
		if bill, err = cost.Bill(ctx, store, prices, month, at, cost.Options{}); err != nil {
			return nil, err
		}
	}
	held, err := fleet.Held(ctx, store, at, nil)
	if err != nil {
		return nil, err
	}
	var out []Quota
	for _, u := range cost.Check(quotas, bill, held) {
		out = append(out, Quota{
			Team: u.Quota, What: cmp.Or(limits[u.What], u.What), Money: u.What == "money", Source: u.Source,
			Used: number(u.Used), Limit: number(u.Limit), Over: u.Over,
		})
	}
	return out, nil
}

// findingTitles are the display names of the rules.
var findingTitles = map[string]string{
	cost.IdleHolder:  "Held and idle",
	cost.NeverUsed:   "Never used",
	cost.PartlyUsed:  "More GPUs than used",
	cost.BarelyUsed:  "Active but barely used",
	cost.FitsSmaller: "Fits a smaller GPU",
	cost.HostBound:   "Waiting for input",
}

func findingOf(f *cost.Finding) Finding {
	x := Finding{Rule: f.Rule, Title: cmp.Or(findingTitles[f.Rule], f.Rule), Detail: f.Summary, PerDay: number(absent)}
	if o, ok := fleet.OwnerOf(f.Labels); ok {
		x.Owner = &o
	}
	for _, uuid := range f.Devices {
		x.GPUs = append(x.GPUs, GPURef{UUID: uuid})
	}
	if f.Priced {
		x.PerDay = number(money(f.PerDay))
	}
	return x
}

func money(m cost.Money) float64 { return float64(m) / 1e6 }
