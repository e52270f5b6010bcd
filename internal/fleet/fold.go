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

// unexplained returns the instances whose usage the edges of a period do not explain. That includes
// an instance with a new account besides another one: the new account starts at zero if its agent
// closed the other one, and continues the other one if a label was added on the way to the store.
func (m *Meter) unexplained(found map[string]*seen, silent map[string]bool) map[string]bool {
	accounts := map[string]int{} // by instance
	for key, s := range found {
		if m.sums[key] == nil {
			accounts[s.instance]++
		}
	}
	for _, k := range m.sums {
		accounts[k.instance]++
	}
	raw := map[string]bool{}
	for key, s := range found {
		k := m.sums[key]
		if s.resets || s.series > 1 || silent[key] || k != nil && !k.leads(s) || (k == nil || k.Held == 0) && accounts[s.instance] > 1 {
			raw[s.instance] = true
		}
	}
	return raw
}

// fold counts, sample by sample, the instances that the edges of a period cannot explain: their
// counters were reset, changed labels, or have more than one series.
func (m *Meter) fold(ctx context.Context, raw map[string]bool, found map[string]*seen, silent map[string]bool, from, to time.Time) error {
	gone := map[string]bool{} // instances for which to search further back
	for key := range silent {
		gone[found[key].instance] = true
	}
	var near, far []string // devices
	for _, s := range found {
		switch {
		case !raw[s.instance]:
		case gone[s.instance]:
			far = append(far, s.uuid)
		default:
			near = append(near, s.uuid)
		}
	}
	for _, match := range AnyOf(LabelUUID, near) {
		all, err := m.samples(ctx, match, from.Add(-back), to, func(_, instance string) bool { return raw[instance] && !gone[instance] })
		if err != nil {
			return err
		}
		for _, instance := range slices.Sorted(maps.Keys(all)) {
			m.follow(all[instance], from)
		}
	}
	for _, match := range AnyOf(LabelUUID, far) {
		if err := m.resume(ctx, match, func(instance string) bool { return raw[instance] && gone[instance] }, silent, from, to); err != nil {
			return err
		}
	}
	return nil
}

// resume counts instances with an account that was silent before the period. It searches for the
// last values of such accounts further and further back, up to Memory.
func (m *Meter) resume(ctx context.Context, match string, wanted func(instance string) bool, silent map[string]bool, from, to time.Time) error {
	all, err := m.samples(ctx, match, from.Add(-back), to, func(_, instance string) bool { return wanted(instance) })
	if err != nil {
		return err
	}
	left := map[string]bool{} // silent accounts without an earlier value
	for _, list := range all {
		for i := range list {
			if silent[list[i].account] {
				left[list[i].account] = true
			}
		}
	}
	end := from.Add(-back)
	for d := back; end.After(from.Add(-m.o.Memory)) && len(left) > 0; d *= 4 {
		begin := end.Add(-min(d, 24*time.Hour))
		if oldest := from.Add(-m.o.Memory); begin.Before(oldest) {
			begin = oldest
		}
		part, err := m.samples(ctx, match, begin, end, func(account, _ string) bool { return left[account] })
		if err != nil {
			return err
		}
		for instance, list := range part {
			all[instance] = append(all[instance], list...)
			for i := range list {
				if list[i].hasHeld {
					delete(left, list[i].account)
				}
			}
		}
		end = begin
	}
	for _, instance := range slices.Sorted(maps.Keys(all)) {
		m.follow(all[instance], from)
	}
	return nil
}

// samples reads the counters of the matching devices, by instance.
func (m *Meter) samples(ctx context.Context, match string, from, to time.Time, wanted func(account, instance string) bool) (map[string][]reading, error) {
	out := map[string][]reading{}
	for _, name := range append(m.heldSeries(), SeriesActiveTime, SeriesEnergy) {
		list, err := m.store.Raw(ctx, m.selector(name, match), from, to)
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			account, instance := Account(s.Labels), Instance(s.Labels)
			if !wanted(account, instance) {
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
				r := reading{at: p.Time, row: row, series: series, account: account}
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
					out[instance] = append(out[instance], r)
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

// sameSeries reports whether way returns the same key for both. It allocates nothing.
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

// follow counts the readings of one instance after from. Earlier readings provide the initial
// state of its counters.
func (m *Meter) follow(list []reading, from time.Time) {
	runs := map[string]*run{} // by account
	for _, s := range timeline(list) {
		r := runs[s.account]
		if r == nil {
			r = &run{}
			runs[s.account] = r
		}
		if r.Held == 0 && s.Held > 0 {
			r.inherit(&s, runs)
		}
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

// inherit continues another account of the instance if s, the first time on r, shows that its
// counters do: r has at least as much as the other account had last, and more than could have
// accrued since. Otherwise the agent opened r at zero, and also exports what it closed.
func (r *run) inherit(s *reading, runs map[string]*run) {
	for _, o := range runs {
		since := s.at.Sub(o.last)
		if o != r && o.any && since > 0 && since <= back && s.Held.Duration() > since+since/8+time.Second && s.Held >= o.Held && o.Held > r.Held {
			r.Sums, r.last, r.any = o.Sums, o.last, true
		}
	}
}

// reading has the counters of one account at one moment, of one series each.
type reading struct {
	at     time.Time
	Sums          // as stored
	row    string // key of the row
	series string // key of the series
	// account is the key of the account.
	account string
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

// timeline merges the samples of all series of one instance in order of time. Among readings of
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
