package view

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/natural"
)

// teamRow is the usage and cost of a team, or of nobody, in the period.
type teamRow struct {
	Team      string `json:"team"`
	Allocated number `json:"allocated"`
	Active    number `json:"active"`
	Wasted    number `json:"wasted"`
	Energy    number `json:"energy"`
	CO2       number `json:"co2"`
	Cost      number `json:"cost"`
	IdleCost  number `json:"idleCost"`

	Unmeasured     number `json:"unmeasured"` // held, without activity data
	UnmeasuredCost number `json:"unmeasuredCost"`
}

type costAnswer struct {
	From      int64      `json:"from"`
	To        int64      `json:"to"`
	Currency  string     `json:"currency,omitempty"`
	Priced    bool       `json:"priced"`
	Total     teamRow    `json:"total"`
	Free      teamRow    `json:"free"`    // free hours
	Unknown   teamRow    `json:"unknown"` // hours of unknown owners
	Simulated simulation `json:"simulated"`
	Teams     []teamRow  `json:"teams"`
	Findings  []Finding  `json:"findings"`
	Quotas    []Quota    `json:"quotas"`
	Notes     []string   `json:"notes,omitempty"`
	Coverage  *Coverage  `json:"coverage,omitempty"` // absent for a team
}

type rowSums struct {
	allocated, active, wasted, energy, co2, cost, idleCost, unmeasured, unmeasuredCost sum
}

func (s *rowSums) add(b *BillRow) {
	s.allocated.add(b.Allocated)
	s.active.add(b.Active)
	s.wasted.add(b.Idle)
	s.energy.add(b.Energy)
	s.co2.add(b.CO2)
	s.cost.add(b.Cost)
	s.idleCost.add(b.IdleCost)
	s.unmeasured.add(b.Unmeasured)
	s.unmeasuredCost.add(b.UnmeasuredCost)
}

func (s *rowSums) row(team string) teamRow {
	return teamRow{
		Team: team, Allocated: s.allocated.value(), Active: s.active.value(), Wasted: s.wasted.value(),
		Energy: s.energy.value(), CO2: s.co2.value(), Cost: s.cost.value(), IdleCost: s.idleCost.value(),
		Unmeasured: s.unmeasured.value(), UnmeasuredCost: s.unmeasuredCost.value(),
	}
}

func (v *viewer) costPage(ctx context.Context, r request) (any, error) {
	bill, err := v.bill(ctx, r.from, r.to)
	if err != nil {
		return nil, err
	}
	var total, free, unknown rowSums
	teams := map[string]*rowSums{}
	for i := range bill.Rows {
		b := &bill.Rows[i]
		total.add(b)
		if b.Owner.ID == "" {
			free.add(b)
			continue
		}
		if !fleet.IsWorkload(b.Owner.Kind) {
			unknown.add(b)
			continue
		}
		if teams[b.Owner.Team] == nil {
			teams[b.Owner.Team] = &rowSums{}
		}
		teams[b.Owner.Team].add(b)
	}
	a := costAnswer{
		From: r.from.Unix(), To: r.to.Unix(), Currency: v.accounts.Currency, Priced: bill.Priced, Notes: slices.Concat(v.accounts.Notes, bill.Notes),
		Total: total.row(""), Free: free.row(""), Unknown: unknown.row(""), Simulated: simulationOf(nil, bill), Teams: []teamRow{}, Quotas: []Quota{},
	}
	for _, team := range slices.Sorted(maps.Keys(teams)) {
		a.Teams = append(a.Teams, teams[team].row(team))
	}
	slices.SortStableFunc(a.Teams, func(x, y teamRow) int {
		return cmp.Or(cmp.Compare(y.Cost, x.Cost), cmp.Compare(y.Allocated, x.Allocated))
	})
	if v.accounts.Cover != nil && bill.statement != nil {
		if a.Coverage, err = v.accounts.Cover(ctx, bill); err != nil {
			return nil, fmt.Errorf("cannot read the coverage: %w", err)
		}
	}
	if a.Findings, err = v.findings(ctx, r); err != nil {
		return nil, err
	}
	if v.accounts.Quotas != nil {
		quotas, err := v.accounts.Quotas(ctx, r.to.In(v.opts.Zone))
		if err != nil {
			return nil, fmt.Errorf("cannot read quotas: %w", err)
		}
		a.Quotas = append(a.Quotas, quotas...)
	}
	return a, nil
}

// pricesAnswer has the hub's prices.
type pricesAnswer struct {
	Currency string `json:"currency,omitempty"` // empty: the hub has no prices
	File     string `json:"file,omitempty"`
	Team     string `json:"team,omitempty"` // the only team that the caller sees
}

// pricesPage returns the price file. A team gets the currency only: the file may name others.
func (v *viewer) pricesPage(context.Context, request) (any, error) {
	a := pricesAnswer{Currency: v.accounts.Currency, File: v.accounts.Prices, Team: v.opts.Team}
	if v.opts.Team != "" {
		a.File = ""
	}
	return a, nil
}

// findings returns the waste in a period, most expensive first.
func (v *viewer) findings(ctx context.Context, r request) ([]Finding, error) {
	if v.accounts.Findings == nil {
		return []Finding{}, nil
	}
	list, err := v.found.get(ctx, span{r.from.Unix() / 60, r.to.Unix() / 60}, v.opts.Now(), 12*freshness, func(ctx context.Context) ([]Finding, error) {
		return v.accounts.Findings(ctx, r.from, r.to)
	})
	if err != nil {
		return nil, fmt.Errorf("cannot find waste: %w", err)
	}
	f, err := v.fleetAt(ctx, r.at)
	if err != nil {
		return nil, err
	}
	list = append([]Finding{}, list...)
	for i := range list {
		refs := slices.Clone(list[i].GPUs) // the cached list is shared between requests
		for j := range refs {
			if n, ok := f.Index[refs[j].UUID]; ok {
				refs[j].Name = fmt.Sprintf("%s · GPU %v", f.Devices[n].Node, float(f.Devices[n].Index))
			}
		}
		slices.SortFunc(refs, func(a, b GPURef) int { return cmp.Or(natural.Compare(a.Name, b.Name), cmp.Compare(a.UUID, b.UUID)) })
		list[i].GPUs = refs
	}
	slices.SortStableFunc(list, func(a, b Finding) int { return cmp.Compare(b.PerDay, a.PerDay) }) // NaN sorts last
	return list, nil
}
