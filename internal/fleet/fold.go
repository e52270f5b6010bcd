package fleet

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/query"
)

// fold counts, sample by sample, the accounts that the edges of a period cannot explain: their
// counters were reset, changed labels, or have more than one series.
func (m *Meter) fold(ctx context.Context, keys []string, found map[string]*seen, silent map[string]bool, from, to time.Time) error {
	wanted := map[string]bool{}
	var gone, there []string // devices, by whether to search further back
	for _, key := range keys {
		wanted[key] = true
		if silent[key] {
			gone = append(gone, found[key].uuid)
		} else {
			there = append(there, found[key].uuid)
		}
	}
	for _, match := range AnyOf(LabelUUID, there) {
		all, err := m.samples(ctx, match, from.Add(-back), to, func(key string) bool { return wanted[key] && !silent[key] })
		if err != nil {
			return err
		}
		for _, key := range slices.Sorted(maps.Keys(all)) {
			m.follow(all[key], from)
		}
	}
	for _, match := range AnyOf(LabelUUID, gone) {
		if err := m.resume(ctx, match, func(key string) bool { return wanted[key] && silent[key] }, from, to); err != nil {
			return err
		}
	}
	return nil
}

// resume counts accounts that were silent before the period. It searches for their last values
// further and further back, up to Memory.
func (m *Meter) resume(ctx context.Context, match string, wanted func(string) bool, from, to time.Time) error {
	all, err := m.samples(ctx, match, from, to, wanted)
	if err != nil {
		return err
	}
	before := map[string][]reading{}
	end := from
	for d := back; end.After(from.Add(-m.o.Memory)) && len(before) < len(all); d *= 4 {
		begin := end.Add(-min(d, 24*time.Hour))
		if oldest := from.Add(-m.o.Memory); begin.Before(oldest) {
			begin = oldest
		}
		part, err := m.samples(ctx, match, begin, end, func(key string) bool { return wanted(key) && before[key] == nil })
		if err != nil {
			return err
		}
		for key, list := range part {
			if slices.ContainsFunc(list, func(r reading) bool { return r.hasHeld }) {
				before[key] = list
			}
		}
		end = begin
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		m.follow(append(before[key], all[key]...), from)
	}
	return nil
}

// samples reads the counters of the matching devices, by account.
func (m *Meter) samples(ctx context.Context, match string, from, to time.Time, wanted func(key string) bool) (map[string][]reading, error) {
	out := map[string][]reading{}
	for _, name := range append(m.heldSeries(), SeriesActiveTime, SeriesEnergy) {
		list, err := m.store.Raw(ctx, m.selector(name, match), from, to)
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			key := Account(s.Labels)
			if !wanted(key) {
				continue
			}
			row, series := m.row(Row(s.Labels)), way(s.Labels)
			points := s.Points
			for at, values := range m.edges {
				if v, ok := values[name+series]; ok && at.After(from) && !at.After(to) {
					points = append(points, query.Point{Time: at, Value: v.Value}) // timeline sorts
				}
			}
			for _, p := range points {
				r := reading{at: p.Time, row: row, series: series}
				var ok bool
				switch name {
				case SeriesActiveTime:
					r.Active, ok = micro(p.Value)
					r.HasActive = ok
				case SeriesEnergy:
					r.Energy, ok = milli(p.Value)
					r.HasEnergy = ok
				default:
					r.Held, ok = micro(p.Value)
					r.hasHeld = ok
				}
				if ok {
					out[key] = append(out[key], r)
				}
			}
		}
	}
	return out, nil
}

// way returns the key that distinguishes two series of one counter.
func way(l query.Labels) string {
	l = maps.Clone(l)
	maps.DeleteFunc(l, func(name, _ string) bool { return strings.HasPrefix(name, "__") }) // name, type and unit
	return l.Key()
}

// follow counts the readings of one account after from. Earlier readings provide the initial
// state of its counters.
func (m *Meter) follow(list []reading, from time.Time) {
	var r run
	for _, s := range timeline(list) {
		begin, end, older, ok := r.step(&s)
		if !s.at.After(from) {
			continue
		}
		if older > 0 {
			m.missed(r.row, older)
		}
		if ok {
			m.add(r.row, begin, end)
		}
	}
}

// reading has the counters of one account at one moment, one series each.
type reading struct {
	at     time.Time
	Sums          // as stored
	row    string // key of the row
	series string // key of the series
	// hasHeld reports whether the device time counter has a sample at this moment.
	hasHeld bool
}

// run follows one account over its samples. Each step depends only on the last sample, so the
// result does not depend on where reading begins.
type run struct {
	Sums
	last   time.Time // time of the newest reading of held time
	row    string
	series string
	any    bool
}

// step processes a reading. It returns the states between which usage counts, and false if none
// does; older is the device time of an account whose start the store missed.
func (r *run) step(s *reading) (from, to Sums, older Seconds, ok bool) {
	if !s.hasHeld {
		if !r.any {
			return // the account is not known yet
		}
		from, to = r.since(s.Sums), r.with(s.Sums)
		if to.below(from) {
			return // a reset also shows in the device time
		}
		r.Sums = to
		return from, to, 0, true
	}
	since := s.at.Sub(r.last)
	to = Sums{Held: s.Held, Active: r.Active, HasActive: r.HasActive, Energy: r.Energy, HasEnergy: r.HasEnergy}.with(s.Sums)
	switch {
	case !r.any && s.Held > fresh: // the store missed its start
		older, to = s.Held, s.Sums
	case !r.any:
		ok, to = true, s.Sums
	case !to.below(r.Sums):
		from, ok = r.since(s.Sums), true
	case s.Held.Duration() <= since: // the account may have restarted at zero
		ok, to = true, s.Sums
	case s.series != r.series && since <= behind && r.Held-s.Held <= Seconds(behind.Microseconds()):
		return Sums{}, Sums{}, 0, false // a lagging path repeats counted usage
	default: // a killed agent continues from its last state file
		to = s.Sums
	}
	r.Sums, r.any, r.last, r.row, r.series = to, true, s.at, s.row, s.series
	return from, to, older, ok
}

// since returns the state from which the next reading counts. A counter seen for the first time
// counts from its current value, unless the account has just started.
func (r *run) since(next Sums) Sums {
	from := r.Sums
	if next.HasActive && !from.HasActive {
		from.Active, from.HasActive = next.Active, true
	}
	if next.HasEnergy && !from.HasEnergy && from.Held > 0 {
		from.Energy, from.HasEnergy = next.Energy, true
	}
	return from
}

// timeline merges the samples of all series of one account in order of time. Among readings of
// the same moment, the most advanced comes last.
func timeline(list []reading) []reading {
	slices.SortStableFunc(list, func(a, b reading) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.series, b.series))
	})
	var out []reading
	for _, r := range list {
		if n := len(out); n > 0 && out[n-1].at.Equal(r.at) && out[n-1].series == r.series {
			p := &out[n-1]
			held := max(p.Held, r.Held)
			p.Sums = p.with(r.Sums)
			p.Held, p.hasHeld = held, p.hasHeld || r.hasHeld
			continue
		}
		out = append(out, r)
	}
	slices.SortStableFunc(out, func(a, b reading) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.Held, b.Held))
	})
	return out
}
