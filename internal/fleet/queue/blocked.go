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
	by := "sum by (" + strings.Join([]string{LabelCluster, LabelScheduler, LabelModel, LabelReason}, ", ") + ") "
	undecided := LabelReason + `!~"` + strings.Join(decided, "|") + `"`
	type key struct{ cluster, scheduler string }
	moments := map[key]map[int64]*Cluster{} // by time
	for _, ask := range []struct {
		expr string
		add  func(*Cluster, query.Labels, float64)
	}{
		{fleet.Select(SeriesDevices, nil, fleet.Equals(LabelDeviceState, stateFree)), func(c *Cluster, l query.Labels, n float64) {
			c.Devices = append(c.Devices, Count{Key{Model: l[LabelModel], State: stateFree}, n})
		}},
		{fleet.Select(SeriesPending, nil, undecided), func(c *Cluster, l query.Labels, n float64) {
			c.Pending = append(c.Pending, Count{Key{Model: l[LabelModel], Reason: l[LabelReason]}, n})
		}},
	} {
		list, err := store.Range(ctx, by+fleet.Once(ask.expr), from.Add(step), to, step)
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			k := key{s.Labels[LabelCluster], s.Labels[LabelScheduler]}
			if moments[k] == nil {
				moments[k] = map[int64]*Cluster{}
			}
			for _, p := range s.Points {
				at := moments[k][p.Time.Unix()]
				if at == nil {
					at = &Cluster{}
					moments[k][p.Time.Unix()] = at
				}
				ask.add(at, s.Labels, p.Value)
			}
		}
	}
	var out []Blocked
	for k, times := range moments {
		sums := map[string]float64{}
		for _, c := range times {
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
