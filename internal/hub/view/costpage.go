package view

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/natural"
)

// teamRow is the usage and cost of a team in the period. What belongs to no team has the names of a
// report: (unallocated), (unattributed), (other) and (none).
type teamRow struct {
	Team string `json:"team"`
	taken
}

type costAnswer struct {
	From      int64      `json:"from"`
	To        int64      `json:"to"`
	Currency  string     `json:"currency,omitempty"`
	Priced    bool       `json:"priced"`
	TimeZone  string     `json:"timeZone"`
	Total     taken      `json:"total"` // of what is known
	Simulated simulation `json:"simulated"`
	Teams     []teamRow  `json:"teams"`
	Quotas    []Quota    `json:"quotas"`
	Notes     []string   `json:"notes,omitempty"`
	Coverage  *Coverage  `json:"coverage,omitempty"` // absent for a team
}

func (v *viewer) costPage(ctx context.Context, r request) (any, error) {
	bill, err := v.bill(ctx, r.from, r.to)
	if err != nil {
		return nil, err
	}
	a := costAnswer{
		From: r.from.Unix(), To: r.to.Unix(), Currency: v.accounts.Currency, TimeZone: v.opts.Zone.String(), Priced: bill.Total.Priced() && bill.Total.Time() > 0,
		Notes: slices.Concat(v.accounts.Notes, bill.Notes), Total: takenOf(bill.Total), Simulated: simulationOf(nil, bill), Teams: []teamRow{}, Quotas: []Quota{},
	}
	team, _ := cost.DimensionOf("team")
	for _, g := range bill.Sums(team) {
		a.Teams = append(a.Teams, teamRow{g.Name, takenOf(g.Amounts)})
	}
	if v.accounts.Cover != nil {
		if a.Coverage, err = v.accounts.Cover(ctx, bill); err != nil {
			return nil, fmt.Errorf("cannot read the coverage: %w", err)
		}
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

// wasteAnswer is apart from the cost: it takes longer, and nobody should wait for it.
type wasteAnswer struct {
	Currency string    `json:"currency,omitempty"`
	Findings []Finding `json:"findings"`
}

func (v *viewer) wastePage(ctx context.Context, r request) (any, error) {
	list, err := v.findings(ctx, r)
	return wasteAnswer{v.accounts.Currency, list}, err
}

// findings returns the waste in a period, most expensive first.
func (v *viewer) findings(ctx context.Context, r request) ([]Finding, error) {
	if v.accounts.Findings == nil {
		return []Finding{}, nil
	}
	list, err := v.found.get(ctx, span{r.from.Unix() / 60, r.to.Unix() / 60}, v.opts.Now(), 12*freshness, func(ctx context.Context) ([]Finding, error) {
		bill, err := v.bill(ctx, r.from, r.to)
		if err != nil {
			return nil, err
		}
		return v.accounts.Findings(ctx, bill, v.opts.Facts)
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
			if n, ok := f.ByUUID(refs[j].UUID); ok {
				refs[j].Name = fmt.Sprintf("%s · GPU %v", f.Devices[n].Node, float(f.Devices[n].Index))
			}
		}
		slices.SortFunc(refs, func(a, b GPURef) int { return cmp.Or(natural.Compare(a.Name, b.Name), cmp.Compare(a.UUID, b.UUID)) })
		list[i].GPUs = refs
	}
	slices.SortStableFunc(list, func(a, b Finding) int { return cmp.Compare(b.PerDay, a.PerDay) }) // NaN sorts last
	return list, nil
}
