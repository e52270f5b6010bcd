package slo

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/serving"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
)

// hintWindow is the time that the limits are about: long enough to be judged, short enough to be acted upon.
const hintWindow = time.Hour

// rowLabels tell rows apart.
var rowLabels = fleet.LabelServedModel + ", " + fleet.OwnerLabels()

// limits fills in which resource is the limit of each row, and adds rows for models without objectives whose requests wait.
func limits(ctx context.Context, store query.Store, at time.Time, rows []Row) ([]Row, error) {
	now, err := serving.At(ctx, store, at, hintWindow)
	if err != nil || len(now) == 0 {
		return rows, err
	}
	facts, err := factsOf(ctx, store, at, now)
	if err != nil {
		return rows, err
	}
	places := map[key]int{}
	for i := range rows {
		places[key{rows[i].Model, whoseOf(&rows[i].Owner)}] = i
	}
	for i := range now {
		s := &now[i]
		k := key{s.Model, whoseOf(&s.Owner)}
		place, known := places[k]
		var missed []Objective
		if known {
			missed = missedIn(rows[place].Results)
		}
		list := Limit(s, facts[k], missed)
		switch {
		case known:
			rows[place].Limits = list
		case list != nil:
			rows = append(rows, Row{Model: s.Model, Owner: s.Owner, Limits: list})
		}
	}
	slices.SortFunc(rows, order)
	return rows, nil
}

// missedIn returns the objectives that were missed in the last hour.
func missedIn(list []Result) []Objective {
	var out []Objective
	for i := range list {
		if burn, ok := list[i].Burn[oneHour].Get(); ok && burn > 1 {
			out = append(out, list[i].Objective)
		}
	}
	return out
}

// factsOf asks for what serving.Row does not have.
func factsOf(ctx context.Context, store query.Store, at time.Time, now []serving.Row) (map[key]Facts, error) {
	a := &asking{store: store, at: at, facts: map[key]Facts{}}
	a.means(ctx)
	a.waiting(ctx)
	a.devices(ctx, now)
	return a.facts, a.err
}

// asking asks for facts until there is an error.
type asking struct {
	store query.Store
	at    time.Time
	facts map[key]Facts
	err   error
}

// instant calls take with each value of an answer.
func (a *asking) instant(ctx context.Context, expr string, take func(l query.Labels, v float64)) {
	if a.err != nil {
		return
	}
	list, err := a.store.Instant(ctx, expr, a.at)
	if err != nil {
		a.err = fmt.Errorf("cannot read facts about engines: %w", err)
	}
	for _, x := range list {
		if !math.IsNaN(x.Value) && !math.IsInf(x.Value, 0) {
			take(x.Labels, x.Value)
		}
	}
}

// means asks for the mean durations of requests: buckets of engines are too coarse for short ones.
func (a *asking) means(ctx context.Context) {
	for histogram, field := range map[string]func(*Facts) *optional.Float{
		fleet.HistogramFirstToken: func(f *Facts) *optional.Float { return &f.FirstToken },
		fleet.HistogramQueue:      func(f *Facts) *optional.Float { return &f.Queue },
		fleet.HistogramPrefill:    func(f *Facts) *optional.Float { return &f.Prefill },
		fleet.HistogramRequest:    func(f *Facts) *optional.Float { return &f.Request },
	} {
		sums, counts := map[key]optional.Float{}, map[key]optional.Float{}
		for series, to := range map[string]map[key]optional.Float{fleet.HistogramSum(histogram): sums, fleet.HistogramCount(histogram): counts} {
			expr := "sum by (" + rowLabels + ") " + fleet.Once(over("rate", fleet.Select(series, nil, fleet.OfEngines), hintWindow))
			a.instant(ctx, expr, func(l query.Labels, v float64) { to[keyOf(l)] = optional.Of(to[keyOf(l)].Default(0) + v) })
		}
		for k, sum := range sums {
			f := a.facts[k]
			*field(&f) = sum.Ratio(counts[k])
			a.facts[k] = f
		}
	}
}

// waiting compares, at each minute, the requests that wait with the use of the cache.
func (a *asking) waiting(ctx context.Context) {
	waits, used := map[key]map[int64]float64{}, map[key]map[int64]float64{}
	ask := func(expr string, to map[key]map[int64]float64, merge func(a, b float64) float64) {
		if a.err != nil {
			return
		}
		list, err := a.store.Range(ctx, expr, a.at.Add(-hintWindow), a.at, time.Minute)
		if err != nil {
			a.err = fmt.Errorf("cannot read the queues of engines: %w", err)
		}
		for _, s := range list {
			k := keyOf(s.Labels)
			if to[k] == nil {
				to[k] = map[int64]float64{}
			}
			for _, p := range s.Points {
				to[k][p.Time.UnixMilli()] = merge(to[k][p.Time.UnixMilli()], p.Value)
			}
		}
	}
	requests := fleet.Select(fleet.SeriesRequests, nil, fleet.OfEngines, fleet.Equals(fleet.LabelState, fleet.StateWaiting))
	ask("sum by ("+rowLabels+") "+fleet.Once(requests), waits, func(a, b float64) float64 { return a + b })
	cache := fleet.Select(fleet.SeriesKVCache, nil, fleet.Equals(fleet.LabelTier, fleet.TierGPU))
	ask("max by ("+rowLabels+") ("+cache+")", used, math.Max)
	for k, moments := range waits {
		f := a.facts[k]
		f.Waits, f.Full, f.Room = queued(moments, used[k])
		a.facts[k] = f
	}
}

// queued returns the part of the moments in which requests waited, and the parts of these in which the cache was full
// and had room. The last two are of the moments in which the use of the cache is known.
func queued(waits, used map[int64]float64) (part, full, room optional.Float) {
	var waited, known, isFull, hasRoom float64
	for at, n := range waits {
		if !(n >= 1) {
			continue
		}
		waited++
		switch v, ok := used[at]; {
		case !ok:
			continue
		case v >= fullCache:
			isFull++
		case v < roomCache:
			hasRoom++
		}
		known++
	}
	n := optional.Of(known)
	return optional.Of(waited).Ratio(optional.Of(float64(len(waits)))), optional.Of(isFull).Ratio(n), optional.Of(hasRoom).Ratio(n)
}

// unit is a device at its host.
type unit struct{ uuid, host string }

// devices asks what the whole devices of the rows do. Partitions have neither throttling nor clocks of their own.
func (a *asking) devices(ctx context.Context, now []serving.Row) {
	var uuids []string
	for i := range now {
		for _, d := range now[i].Devices {
			uuids = append(uuids, d.UUID)
		}
	}
	values := map[string]map[unit]float64{}
	ask := func(name, f, series string) {
		values[name] = map[unit]float64{}
		for _, match := range fleet.AnyOf(fleet.LabelUUID, uuids) {
			expr := "max by (" + strings.Join([]string{fleet.LabelUUID, fleet.LabelHost}, ", ") + ") (" + over(f, fleet.Select(series, nil, match), hintWindow) + ")"
			a.instant(ctx, expr, func(l query.Labels, v float64) { values[name][unit{l[fleet.LabelUUID], l[fleet.LabelHost]}] = v })
		}
	}
	ask("dram", "avg_over_time", fleet.SeriesDRAMActive)
	ask("power", "avg_over_time", fleet.SeriesThrottlePower)
	ask("thermal", "avg_over_time", fleet.SeriesThrottleThermal)
	ask("clock", "avg_over_time", fleet.SeriesClock)
	ask("highest", "max_over_time", fleet.SeriesClock)
	for i := range now {
		s := &now[i]
		mean := func(name string) optional.Float {
			sum, n := 0.0, 0.0
			for _, d := range s.Devices {
				if v, ok := values[name][unit{d.UUID, d.Host}]; ok && d.Partition == "" {
					sum, n = sum+v, n+1
				}
			}
			return optional.Of(sum).Ratio(optional.Of(n))
		}
		k := key{s.Model, whoseOf(&s.Owner)}
		f := a.facts[k]
		f.DRAM, f.Power, f.Thermal, f.Clock = mean("dram"), mean("power"), mean("thermal"), mean("clock").Ratio(mean("highest"))
		a.facts[k] = f
	}
}
