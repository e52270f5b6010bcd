package queue

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Blocked is how long devices of a model were free in a period while jobs waited for as many of them.
type Blocked struct {
	Cluster, Scheduler, Model string
	Seconds                   float64 // of devices
}

// BlockedIn returns what was free while jobs waited in a period, the most first. It looks at some 500 moments.
func BlockedIn(ctx context.Context, store query.Store, from, to time.Time) ([]Blocked, error) {
	step := max(time.Minute, to.Sub(from)/500).Truncate(time.Second)
	by := "sum by (" + strings.Join([]string{LabelCluster, LabelScheduler, LabelModel}, ", ") + ") "
	undecided := LabelReason + `!~"` + strings.Join(decided, "|") + `"`
	type cell struct{ free, pending float64 }
	type key struct{ cluster, scheduler string }
	moments := map[key]map[int64]map[string]*cell{} // by time and model
	for _, ask := range []struct {
		expr string
		take func(*cell, float64)
	}{
		{fleet.Select(SeriesDevices, nil, fleet.Equals(LabelDeviceState, stateFree)), func(c *cell, v float64) { c.free = v }},
		{fleet.Select(SeriesPending, nil, undecided), func(c *cell, v float64) { c.pending = v }},
	} {
		list, err := store.Range(ctx, by+fleet.Once(ask.expr), from.Add(step), to, step)
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			k := key{s.Labels[LabelCluster], s.Labels[LabelScheduler]}
			if moments[k] == nil {
				moments[k] = map[int64]map[string]*cell{}
			}
			for _, p := range s.Points {
				at := moments[k][p.Time.Unix()]
				if at == nil {
					at = map[string]*cell{}
					moments[k][p.Time.Unix()] = at
				}
				model := s.Labels[LabelModel]
				if at[model] == nil {
					at[model] = &cell{}
				}
				ask.take(at[model], p.Value)
			}
		}
	}
	var out []Blocked
	for k, times := range moments {
		sums := map[string]float64{}
		for _, models := range times {
			c := Cluster{}
			for model, n := range models {
				c.Devices = append(c.Devices, Count{Key{Model: model, State: stateFree}, n.free})
				c.Pending = append(c.Pending, Count{Key{Model: model}, n.pending})
			}
			for _, p := range c.Pools() {
				sums[p.Model] += p.Blocked * step.Seconds()
			}
		}
		for model, n := range sums {
			if n > 0 {
				out = append(out, Blocked{k.cluster, k.scheduler, model, n})
			}
		}
	}
	slices.SortFunc(out, func(a, b Blocked) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Scheduler, b.Scheduler), cmp.Compare(a.Model, b.Model))
	})
	return out, nil
}
