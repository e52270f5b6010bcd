package fleet

import (
	"context"
	"maps"
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
		list, err := q.store.Raw(ctx, q.hours.selector(name), at.Add(-near), at.Add(near))
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

// between returns the value of a counter at a moment between two samples, on the straight line
// that connects them. ok is false if there is no sample on one side, the samples are too far
// apart, the counter was reset, or it counts seconds and has more of them than passed: then it
// continues another series.
func between(points []query.Point, at time.Time, seconds bool) (value float64, ok bool) {
	for i := range points {
		if !points[i].Time.After(at) {
			continue
		}
		if i == 0 {
			return 0, false
		}
		a, b := points[i-1], points[i]
		gap := b.Time.Sub(a.Time)
		if !(b.Value >= a.Value) || gap > near { // NaN marks the end of a series
			return 0, false
		}
		if seconds && b.Value-a.Value > (gap+gap/8+time.Second).Seconds() {
			return 0, false
		}
		part := float64(at.Sub(a.Time)) / float64(gap)
		return a.Value + part*(b.Value-a.Value), true
	}
	return 0, false
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
