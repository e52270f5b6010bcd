package fleet

import (
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/query"
)

// edge has the values of counters at a moment, by name and series.
type edge map[string]query.Sample

// split sets the values of all counters at the ends of a period. Without it a counter would
// stand at its last sample before an edge, and a period would include up to one sampling
// interval from before its start: a day of 24 GPU-hours and a minute.
func (q *questions) split(ctx context.Context, from, to time.Time) error {
	edges := map[time.Time]edge{from: q.edges[from], to: q.edges[to]} // of the last period
	for _, at := range []time.Time{from, to} {
		if edges[at] != nil {
			continue
		}
		values, err := q.at(ctx, at)
		if err != nil {
			return err
		}
		edges[at] = values
	}
	q.edges = edges
	return nil
}

// at returns the values of the counters at a moment. The counters of an account move together:
// if one of them has no value, none has. An account with several series has none either,
// because the series may lag behind each other; it stands at its last sample.
func (q *questions) at(ctx context.Context, at time.Time) (edge, error) {
	values, without, series := edge{}, map[string]bool{}, map[string]string{}
	names := append(slices.Clone(q.hours.series), SeriesActiveTime, SeriesEnergy)
	for _, name := range names {
		list, err := q.store.Raw(ctx, q.hours.selector(name), at.Add(-2*near), at.Add(near))
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			account, one := Account(s.Labels), Way(s.Labels)
			v, ok := between(s.Points, at, name != SeriesEnergy)
			if before, known := series[account]; !ok || known && before != one {
				without[account] = true
			}
			series[account] = one
			values[name+one] = query.Sample{Labels: s.Labels, Value: v}
		}
	}
	maps.DeleteFunc(values, func(_ string, s query.Sample) bool { return without[Account(s.Labels)] })
	return values, nil
}

// between returns the value of a counter at a moment between two samples, on the straight line that connects them, or
// along which a lane grows that was read more often than it changed: see follower.take. ok is false if there is no sample on
// one side, the samples are too far apart, the counter was reset, or it counts seconds and has more of them than passed: then
// it continues another series.
func between(points []query.Point, at time.Time, seconds bool) (value float64, ok bool) {
	after := slices.IndexFunc(points, func(p query.Point) bool { return p.Time.After(at) })
	if after <= 0 {
		return 0, false
	}
	changed := points[0].Time
	for i := 1; i < after; i++ {
		if points[i].Value != points[i-1].Value {
			changed = points[i].Time
		}
	}
	for i := after; i < len(points); i++ {
		a, b := points[i-1], points[i]
		grown, from := b.Value-a.Value, a.Time
		if grown == 0 && b.Time.Sub(a.Time) <= near {
			continue // it grows later, perhaps since before the moment
		}
		since := a.Time.Add(-near)
		if changed.After(since) {
			since = changed
		}
		took := b.Time.Sub(since)
		switch {
		case grown >= 0 && b.Time.Sub(a.Time) <= near && !(seconds && grown > (took+took/8+time.Second).Seconds()): // NaN marks the end of a series
		case i > after:
			return a.Value, true
		default:
			return 0, false
		}
		if started := b.Time.Add(-time.Duration(math.Ceil(grown*1e3)) * time.Millisecond); seconds && started.Before(from) {
			from = started
			if since.After(from) {
				from = since
			}
		}
		if !at.After(from) {
			return a.Value, true
		}
		return a.Value + float64(at.Sub(from))/float64(b.Time.Sub(from))*grown, true
	}
	return points[len(points)-1].Value, true
}

// has reports whether the account of a series has a value.
func (e edge) has(l query.Labels) bool {
	one := Way(l)
	_, held := e[SeriesAllocatedTime+one]
	_, free := e[SeriesUnallocatedTime+one]
	return held || free
}

// move replaces the last samples before an edge by the values at the edge. A period that is
// shorter than the sampling interval may have no sample of its own: those series are added.
func (e edge) move(name string, list []query.Sample) []query.Sample {
	there := map[string]bool{}
	for i := range list {
		key := name + Way(list[i].Labels)
		if v, ok := e[key]; ok {
			list[i].Value, there[key] = v.Value, true
		}
	}
	for _, key := range slices.Sorted(maps.Keys(e)) {
		if !there[key] && e[key].Labels[LabelName] == name {
			list = append(list, e[key])
		}
	}
	return list
}
