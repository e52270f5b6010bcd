package slo

import (
	"context"
	"fmt"
	"math"
	"slices"
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
	a := ask(store, at)
	a.requests(ctx)
	places := map[key]int{}
	for i := range rows {
		places[key{rows[i].Model, whoseOf(&rows[i].Owner)}] = i
	}
	missed := map[key][]Objective{}
	var slow []*serving.Row // of which something has to be explained
	for i := range now {
		k, s := keyOfRow(&now[i]), &now[i]
		f := a.facts[k]
		if place, ok := places[k]; ok {
			missed[k] = append(missedIn(rows[place].Results), f.missedInFront(rows[place].Results)...)
		}
		if len(missed[k]) > 0 || f.Waits.Default(0) >= waitsLong {
			slow = append(slow, s)
		}
	}
	a.devices(ctx, slow)
	if a.err != nil {
		return rows, a.err
	}
	for _, s := range slow {
		k := keyOfRow(s)
		list := Limit(s, a.facts[k], missed[k])
		place, known := places[k]
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

func keyOfRow(s *serving.Row) key { return key{s.Model, whoseOf(&s.Owner)} }

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

// asking asks for what serving.Row does not have, until there is an error.
type asking struct {
	store query.Store
	at    time.Time
	facts map[key]Facts
	err   error

	counts   map[string]map[key]optional.Float // requests per second, by histogram
	clusters map[key]string
}

func ask(store query.Store, at time.Time) *asking {
	return &asking{store: store, at: at, facts: map[key]Facts{}, counts: map[string]map[key]optional.Float{}, clusters: map[key]string{}}
}

// requests asks for facts about requests.
func (a *asking) requests(ctx context.Context) {
	a.means(ctx)
	a.fronts(ctx)
	a.waiting(ctx)
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
			a.instant(ctx, expr, func(l query.Labels, v float64) {
				k := keyOf(l)
				to[k], a.clusters[k] = optional.Of(to[k].Default(0)+v), l[fleet.LabelCluster]
			})
		}
		for k, sum := range sums {
			f := a.facts[k]
			*field(&f) = sum.Ratio(counts[k])
			a.facts[k] = f
		}
		a.counts[histogram] = counts
	}
}

// minutes is a value by row or device, and minute.
type minutes[K comparable] map[K]map[int64]float64

func (m minutes[K]) put(k K, points []query.Point, merge func(a, b float64) float64) {
	if m[k] == nil {
		m[k] = map[int64]float64{}
	}
	for _, p := range points {
		at := p.Time.UnixMilli()
		if old, ok := m[k][at]; ok {
			m[k][at] = merge(old, p.Value)
		} else if !math.IsNaN(p.Value) {
			m[k][at] = p.Value
		}
	}
}

// each calls take with the values at each minute of the window.
func (a *asking) each(ctx context.Context, expr string, take func(l query.Labels, points []query.Point)) {
	if a.err != nil {
		return
	}
	list, err := a.store.Range(ctx, expr, a.at.Add(-hintWindow), a.at, time.Minute)
	if err != nil {
		a.err = fmt.Errorf("cannot read facts about engines: %w", err)
		return
	}
	for _, s := range list {
		take(s.Labels, s.Points)
	}
}

func add(a, b float64) float64 { return a + b }

// waiting compares, at each minute, the requests that wait with the use of the cache.
func (a *asking) waiting(ctx context.Context) {
	states, used := map[string]minutes[key]{fleet.StateWaiting: {}, fleet.StateRunning: {}}, minutes[key]{}
	requests := fleet.Select(fleet.SeriesRequests, nil, fleet.OfEngines, fleet.LabelState+`=~"`+fleet.StateWaiting+"|"+fleet.StateRunning+`"`)
	a.each(ctx, "sum by ("+fleet.LabelState+", "+rowLabels+") "+fleet.Once(requests), func(l query.Labels, points []query.Point) {
		states[l[fleet.LabelState]].put(keyOf(l), points, add)
	})
	cache := fleet.Select(fleet.SeriesKVCache, nil, fleet.Equals(fleet.LabelTier, fleet.TierGPU))
	a.each(ctx, "max by ("+rowLabels+") ("+cache+")", func(l query.Labels, points []query.Point) { used.put(keyOf(l), points, math.Max) })
	for k, waits := range states[fleet.StateWaiting] {
		f := a.facts[k]
		f.Waits, f.Full, f.Room = queued(waits, used[k])
		a.facts[k] = f
	}
	for k, running := range states[fleet.StateRunning] {
		f := a.facts[k]
		f.Running = ran(running, states[fleet.StateWaiting][k])
		a.facts[k] = f
	}
}

// ran returns how many requests ran on average at the moments at which any ran or waited.
func ran(running, waits map[int64]float64) optional.Float {
	var sum, n float64
	for at, v := range running {
		if v >= 1 || waits[at] >= 1 {
			sum, n = sum+v, n+1
		}
	}
	return optional.Of(sum).Ratio(optional.Of(n))
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
