package fleet

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/query"
)

// questions compute usage of a store that is far away with few and short answers: the counters at
// both ends of a period. That is all there is to know about a device whose accounts have one series
// each, without resets and gaps, and do not overlap. The samples of all other devices are read.
type questions struct {
	store query.Store
	o     *MeterOptions
	hours Hours

	edges map[time.Time]edge
}

// known has the counters of an account at the start of a period.
type known struct {
	Sums
	series int
	labels query.Labels // of its last series
}

// seen has the counters of an account in a period.
type seen struct {
	Sums   // at the end
	low    Seconds
	labels query.Labels // of its last series
	series int
	resets bool
}

// usage returns the usage in (from, to].
func (q *questions) usage(ctx context.Context, from, to time.Time) (*Day, error) {
	out := &Day{}
	if !from.Before(to) {
		return out, nil
	}
	if err := q.split(ctx, from, to); err != nil {
		return nil, err
	}
	before, err := q.begin(ctx, from)
	if err != nil {
		return nil, err
	}
	out.Known = len(before) > 0
	found, err := q.look(ctx, from, to, &out.Refused)
	if err != nil {
		return nil, err
	}
	raw, err := q.unexplained(ctx, before, found, from, to)
	if err != nil {
		return nil, err
	}
	for _, key := range slices.Sorted(maps.Keys(found)) {
		s := found[key]
		if raw[DeviceKey(s.labels)] != "" {
			continue
		}
		var begin Sums
		if k := before[key]; k != nil {
			begin = k.Sums
		}
		labels := Row(s.labels)
		out.Add(DayRow{Key: KeyOf(labels), Labels: labels, Sums: begin.until(s.Sums)})
	}
	uuids := slices.Collect(maps.Values(raw))
	for _, match := range AnyOf(LabelUUID, uuids) {
		u, err := q.hours.Between(ctx, []string{match}, from, []time.Time{to})
		if err != nil {
			return nil, err
		}
		u.Devices = slices.DeleteFunc(u.Devices, func(d *UsedDevice) bool { return raw[d.Key] == "" })
		u.AddTo(out)
	}
	out.Sort()
	return out, nil
}

// until returns the growth of counters that were a and are b. A counter seen for the first time
// counts from its value, unless the account has just started.
func (a Sums) until(b Sums) Sums {
	out := Sums{Held: b.Held - a.Held, HasActive: b.HasActive, HasEnergy: b.HasEnergy}
	if a.HasActive || a.Held == 0 {
		out.Active = b.Active - a.Active
	}
	if a.HasEnergy || a.Held == 0 {
		out.Energy = b.Energy - a.Energy
	}
	if !b.HasActive {
		out.Unmeasured = out.Held
	}
	return out
}

// held asks for the device time counters.
func (q *questions) held(ctx context.Context, f string, d time.Duration, at time.Time) ([]query.Sample, error) {
	var out []query.Sample
	for _, name := range q.hours.series {
		list, err := q.over(ctx, f, name, d, at)
		if err != nil {
			return nil, err
		}
		out = append(out, list...)
	}
	return out, nil
}

// Over evaluates a function over the samples of a range that ends at a moment. The last value
// at an edge is the one between its samples.
func (q *questions) over(ctx context.Context, f, name string, d time.Duration, at time.Time) ([]query.Sample, error) {
	list, err := q.store.Instant(ctx, Over(f, q.hours.selector(name), query.Duration(d)), at)
	if err != nil || f != "last_over_time" {
		return list, err
	}
	return q.edges[at].move(name, list), nil
}

// begin reads the counters at an edge. It looks back further than the five minutes of an instant
// query: the series of ended workloads are stale by then.
func (q *questions) begin(ctx context.Context, at time.Time) (map[string]*known, error) {
	out := map[string]*known{}
	held, err := q.held(ctx, "last_over_time", back, at)
	if err != nil {
		return nil, err
	}
	for _, s := range held {
		if v, ok := micro(s.Value); ok {
			key := Account(s.Labels)
			if out[key] == nil {
				out[key] = &known{}
			}
			out[key].Held, out[key].labels = v, s.Labels
			out[key].series++
		}
	}
	others, err := q.others(ctx, "last_over_time", back, at)
	if err != nil {
		return nil, err
	}
	for key, k := range out {
		k.Sums = k.with(others[key])
	}
	return out, nil
}

// others asks for the counters other than device time.
func (q *questions) others(ctx context.Context, f string, d time.Duration, at time.Time) (map[string]Sums, error) {
	out := map[string]Sums{}
	active, err := q.over(ctx, f, SeriesActiveTime, d, at)
	if err != nil {
		return nil, err
	}
	for _, s := range active {
		if v, ok := micro(s.Value); ok {
			key := Account(s.Labels)
			out[key] = out[key].with(Sums{Active: v, HasActive: true})
		}
	}
	energy, err := q.over(ctx, f, SeriesEnergy, d, at)
	if err != nil {
		return nil, err
	}
	for _, s := range energy {
		if v, ok := milli(s.Value); ok {
			key := Account(s.Labels)
			out[key] = out[key].with(Sums{Energy: v, HasEnergy: true})
		}
	}
	return out, nil
}

// look reads what counters did between two edges.
func (q *questions) look(ctx context.Context, from, to time.Time, refused *int) (map[string]*seen, error) {
	d := to.Sub(from)
	last, err := q.held(ctx, "last_over_time", d, to)
	if err != nil {
		return nil, err
	}
	found := map[string]*seen{}
	for _, s := range last {
		v, ok := micro(s.Value)
		if !ok {
			*refused++
			continue
		}
		key := Account(s.Labels)
		if found[key] == nil {
			found[key] = &seen{low: v}
		}
		found[key].Held, found[key].labels = v, s.Labels
		found[key].series++
	}
	low, err := q.held(ctx, "min_over_time", d, to)
	if err != nil {
		return nil, err
	}
	for _, s := range low {
		if v, ok := micro(s.Value); ok {
			if f := found[Account(s.Labels)]; f != nil {
				f.low = min(f.low, v)
			}
		}
	}
	for _, name := range append(slices.Clone(q.hours.series), SeriesActiveTime, SeriesEnergy) {
		resets, err := q.over(ctx, "resets", name, d+back, to) // including resets across the edge
		if err != nil {
			return nil, err
		}
		for _, s := range resets {
			if f := found[Account(s.Labels)]; f != nil && s.Value > 0 {
				f.resets = true
			}
		}
	}
	others, err := q.others(ctx, "last_over_time", d, to)
	if err != nil {
		return nil, err
	}
	for key, f := range found {
		f.Sums = f.with(others[key])
	}
	return found, nil
}
