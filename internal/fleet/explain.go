package fleet

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/query"
)

// unexplained returns the devices, by key, whose usage the edges of a period do not explain, and
// their UUIDs.
func (q *questions) unexplained(ctx context.Context, before map[string]*known, found map[string]*seen, from, to time.Time) (map[string]string, error) {
	raw := map[string]string{}
	mark := func(l query.Labels) { raw[DeviceKey(l)] = l[LabelUUID] }
	accounts := map[string]int{} // by instance
	for key, s := range found {
		if before[key] == nil {
			accounts[Instance(s.labels)]++
		}
	}
	for _, k := range before {
		accounts[Instance(k.labels)]++
	}
	grown := map[string]Seconds{} // by device
	for key, s := range found {
		k := before[key]
		begin := Seconds(0)
		if k != nil {
			begin = k.Held
		}
		grown[DeviceKey(s.labels)] += s.Held - begin
		switch {
		case s.resets, s.series > 1:
			mark(s.labels)
		case k == nil && s.low > Seconds(near.Microseconds()): // silent before, not seen to begin, or begun before the period
			mark(s.labels)
		case k != nil && (!k.leads(s) || s.Held > k.Held && !q.edges[from].has(k.labels)):
			mark(s.labels)
		// A new account starts at zero if its agent closed the other one, and continues the other
		// one if a label was added on the way to the store.
		case (k == nil || k.Held == 0) && accounts[Instance(s.labels)] > 1:
			mark(s.labels)
		}
	}
	for _, s := range found {
		if grown[DeviceKey(s.labels)] > span(to.Sub(from).Milliseconds()) {
			mark(s.labels)
		}
	}
	if err := q.silent(ctx, before, found, from, mark); err != nil {
		return nil, err
	}
	if err := q.later(ctx, before, found, to, mark); err != nil {
		return nil, err
	}
	if err := q.gaps(ctx, from, to, mark); err != nil {
		return nil, err
	}
	return raw, q.crowded(ctx, from, to, mark)
}

// gaps marks the accounts that grew a lot where they have no samples for an hour: not all of that
// growth counts.
func (q *questions) gaps(ctx context.Context, from, to time.Time, mark func(query.Labels)) error {
	const step = back / 2 // a gap of an hour has no sample in at least one step
	for _, name := range q.hours.series {
		list, err := q.store.Range(ctx, Over("last_over_time", q.hours.selector(name), query.Duration(step)), from.Add(step), to, step)
		if err != nil {
			return err
		}
		for _, s := range list {
			for i, p := range s.Points[min(1, len(s.Points)):] {
				if before := s.Points[i]; p.Time.Sub(before.Time) > step && p.Value-before.Value > step.Seconds() {
					mark(s.Labels)
				}
			}
		}
	}
	return nil
}

// leads reports whether the edges of a period fully explain an account: it has one series, the same
// as before, was not reset, and has the same counters as before. Between two series no function of
// PromQL sees a reset.
func (k *known) leads(s *seen) bool {
	return k.series == 1 && sameSeries(k.labels, s.labels) && s.low >= k.Held && !s.below(k.Sums) && (k.HasActive || !s.HasActive) && (k.HasEnergy || !s.HasEnergy)
}

// sameSeries reports whether two label sets have the same way. It allocates nothing.
func sameSeries(a, b query.Labels) bool {
	within := func(a, b query.Labels) bool {
		for name, value := range a {
			if b[name] != value && !strings.HasPrefix(name, "__") {
				return false
			}
		}
		return true
	}
	return within(a, b) && within(b, a)
}

// silent marks the accounts that are unknown at the edge although the store knew them before.
func (q *questions) silent(ctx context.Context, before map[string]*known, found map[string]*seen, at time.Time, mark func(query.Labels)) error {
	wanted := wants{}
	for key, s := range found {
		if before[key] == nil && s.low > 0 {
			wanted[key] = s.labels
		}
	}
	if err := q.hours.exist(ctx, wanted, at, q.o.Memory); err != nil {
		return err
	}
	for _, l := range wanted {
		mark(l)
	}
	return nil
}

// later marks the accounts that grow across the end of the period without a sample near it.
func (q *questions) later(ctx context.Context, before map[string]*known, found map[string]*seen, to time.Time, mark func(query.Labels)) error {
	// As far as samples are read: to an hour after the hour.
	end := to.Add(time.Hour - 1).Truncate(time.Hour).Add(back)
	list, err := q.held(ctx, "min_over_time", end.Sub(to), end)
	if err != nil {
		return err
	}
	doubtful := map[string]bool{}
	for _, s := range list {
		v, ok := micro(s.Value)
		if !ok || q.edges[to].has(s.Labels) {
			continue
		}
		last, key := Seconds(0), Account(s.Labels)
		switch {
		case found[key] != nil:
			last = found[key].Held
		case before[key] != nil:
			last = before[key].Held
		}
		if v == last {
			doubtful[key] = true
		} else { // it grew, or began again, perhaps before the end
			mark(s.Labels)
		}
	}
	if len(doubtful) == 0 {
		return nil
	}
	// The least value is the first one, unless the counter was reset meanwhile: then nobody knows.
	resets, err := q.held(ctx, "resets", end.Sub(to), end)
	if err != nil {
		return err
	}
	for _, s := range resets {
		if s.Value > 0 && doubtful[Account(s.Labels)] {
			mark(s.Labels)
		}
	}
	return nil
}

// crowded marks the devices whose accounts together grow faster than time passes: more than one
// agent reports the device.
func (q *questions) crowded(ctx context.Context, from, to time.Time, mark func(query.Labels)) error {
	names := make([]string, len(q.hours.series))
	for i, name := range q.hours.series {
		names[i] = "sum by (" + LabelUUID + ", " + LabelVendor + ", " + LabelHost + ") (rate(" + q.hours.selector(name) + "[" + query.Duration(near) + "]))"
	}
	sums := map[string]map[time.Time]float64{}
	labels := map[string]query.Labels{}
	for _, expr := range names {
		list, err := q.store.Range(ctx, expr, from, to, near)
		if err != nil {
			return err
		}
		for _, s := range list {
			key := DeviceKey(s.Labels)
			if sums[key] == nil {
				sums[key], labels[key] = map[time.Time]float64{}, s.Labels
			}
			for _, p := range s.Points {
				sums[key][p.Time] += p.Value
			}
		}
	}
	for key, at := range sums {
		if slices.Max(slices.Collect(maps.Values(at))) > 1.05 { // rate extrapolates
			mark(labels[key])
		}
	}
	return nil
}
