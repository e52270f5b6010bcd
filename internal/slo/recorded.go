package slo

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Recorded returns how objectives were met at a moment of the past, from the series of the hub that judged them then. These have
// neither the bounds around thresholds nor the goodput.
func (f *File) Recorded(ctx context.Context, store query.Store, at time.Time) (*Report, error) {
	r := &Report{At: at, Window: f.Window}
	names := strings.Join([]string{fleet.SeriesBurnRate, fleet.SeriesBudgetLeft, fleet.SeriesObjective, fleet.SeriesThreshold}, "|")
	list, err := store.Instant(ctx, "{"+fleet.LabelName+`=~"`+names+`",`+fleet.LabelServedModel+`!=""}`, at)
	if err != nil {
		return nil, fmt.Errorf("cannot read the recorded objectives: %w", err)
	}
	rows, results := map[key]*Row{}, map[key]map[string]*Result{}
	for _, s := range list {
		k, l := keyOf(s.Labels), ownerOf(s.Labels)
		if rows[k] == nil {
			rows[k], results[k] = &Row{Model: k.model, Labels: l}, map[string]*Result{}
			rows[k].Owner, _ = fleet.OwnerOf(l)
		}
		name := s.Labels[fleet.LabelObjective]
		if results[k][name] == nil {
			kind, _, _ := strings.Cut(name, "_")
			results[k][name] = &Result{Objective: Objective{Name: name, Kind: Kind(kind)}}
		}
		results[k][name].recorded(s)
	}
	for k, row := range rows {
		for _, x := range results[k] {
			if x.Target <= 0 || x.Target >= 1 { // the hub always writes it, so these are the series of somebody else
				continue
			}
			x.Allowed = part(100 - 100*x.Target)
			if left, ok := x.Budget.Get(); ok {
				x.Bad = tally{total: 1, bad: (1 - left) * x.Allowed, least: math.NaN(), most: math.NaN()}
			}
			row.Results = append(row.Results, *x)
		}
		if len(row.Results) == 0 {
			continue
		}
		slices.SortFunc(row.Results, func(a, b Result) int {
			rank := func(x *Result) int { return slices.Index(entryKeys, string(x.Kind)) }
			return cmp.Or(cmp.Compare(rank(&a), rank(&b)), cmp.Compare(a.Target, b.Target))
		})
		r.Rows = append(r.Rows, *row)
	}
	slices.SortFunc(r.Rows, order)
	r.Rows, err = limits(ctx, store, at, r.Rows)
	return r, err
}

// recorded takes a value of a series about the result.
func (r *Result) recorded(s query.Sample) {
	switch s.Labels[fleet.LabelName] {
	case fleet.SeriesBurnRate:
		if w := slices.Index(windowNames, s.Labels[fleet.LabelBurnWindow]); w >= 0 {
			r.Burn[w] = optional.Of(s.Value)
		}
	case fleet.SeriesBudgetLeft:
		r.Budget = optional.Of(s.Value)
	case fleet.SeriesObjective:
		r.Target = s.Value
	case fleet.SeriesThreshold:
		r.Threshold = time.Duration(s.Value * float64(time.Second)).Round(time.Microsecond)
	}
}
