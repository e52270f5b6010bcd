package serving

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// tokenEdge has the routes of a counter around a moment, by counterKey.
type tokenEdge map[string]*edgeValue

type edgeValue struct {
	n      int64
	routes int
	ok     bool // n is the value at the edge
}

// within adds what a counter gained in (from, to], which is a part of a day.
func (r *TokenReader) within(ctx context.Context, from, to time.Time, sums func(*Tokens, query.Labels) []*Tally) error {
	a, ok := r.edges[r.name]
	if !ok {
		var err error
		if a, err = r.at(ctx, from); err != nil {
			return err
		}
	}
	b, err := r.at(ctx, to)
	if err != nil {
		return err
	}
	r.edges[r.name] = b
	// Resets include those between the samples around the edges. There is a value for every series, also
	// for one that has no sample in the period and goes on after it.
	list, err := r.store.Instant(ctx, fleet.Over("resets", r.selector(), query.Duration(to.Sub(from)+fleet.Near+fleet.Back)), to.Add(fleet.Back))
	if err != nil {
		return err
	}
	type seen struct {
		labels query.Labels
		series int
		resets bool
	}
	all := map[string]*seen{}
	for _, s := range list {
		key := counterKey(s.Labels)
		if all[key] == nil {
			all[key] = &seen{labels: s.Labels}
		}
		all[key].series++
		all[key].resets = all[key].resets || s.Value > 0
	}
	wanted := map[string]query.Labels{}
	for key, s := range all {
		x, y := a[key], b[key]
		if x == nil || y == nil || !x.ok || !y.ok || x.routes > 1 || y.routes > 1 || s.series > 1 || s.resets || y.n < x.n {
			wanted[key] = s.labels
			continue
		}
		r.add(s.labels, y.n-x.n, sums)
	}
	return r.raw(ctx, wanted, from, to, sums)
}

func (r *TokenReader) selector(more ...string) string {
	return fleet.Select(r.name, r.o.Match, slices.Concat(r.o.Matchers, more)...)
}

// at returns the counters at a moment.
func (r *TokenReader) at(ctx context.Context, at time.Time) (tokenEdge, error) {
	list, err := r.store.Raw(ctx, r.selector(), at.Add(-fleet.Near), at.Add(fleet.Near))
	if err != nil {
		return nil, err
	}
	out, open := tokenEdge{}, map[string]bool{}
	for _, s := range list {
		key := counterKey(s.Labels)
		if out[key] == nil {
			out[key] = &edgeValue{}
		}
		route, _ := newRoute(s) // what is refused is counted where the samples are read
		v := out[key]
		v.routes++
		v.n, open[key], v.ok = route.at(at)
	}
	// A counter without a sample after the moment stands at its last one, unless it goes on after a gap.
	later, err := r.store.Instant(ctx, fleet.Over("present_over_time", r.selector(), query.Duration(fleet.Back-fleet.Near)), at.Add(fleet.Back))
	if err != nil {
		return nil, err
	}
	for _, s := range later {
		if key := counterKey(s.Labels); open[key] {
			out[key].ok = false
		}
	}
	return out, nil
}

// raw adds what the samples of some counters say.
func (r *TokenReader) raw(ctx context.Context, wanted map[string]query.Labels, from, to time.Time, sums func(*Tokens, query.Labels) []*Tally) error {
	var engines []string
	for _, l := range wanted {
		engines = append(engines, l[fleet.LabelEngine])
	}
	for _, match := range fleet.AnyOf(fleet.LabelEngine, engines) {
		list, err := r.store.Raw(ctx, r.selector(match), from.Add(-fleet.Back), to.Add(fleet.Back))
		if err != nil {
			return err
		}
		routes := map[string][]*route{}
		for _, s := range list {
			key := counterKey(s.Labels)
			if wanted[key] == nil {
				continue
			}
			one, refused := newRoute(s)
			r.refused += refused
			routes[key] = append(routes[key], one)
		}
		tallies := map[string]*tally{}
		for key, list := range routes {
			tallies[key] = newTally(list)
		}
		if err := r.before(ctx, tallies, match, from); err != nil {
			return err
		}
		for _, key := range slices.Sorted(maps.Keys(tallies)) {
			r.count(tallies[key], from.UnixMilli(), to.UnixMilli(), sums)
		}
	}
	return nil
}

// before finds the last value of the counters that appear in a period and may have been known earlier.
func (r *TokenReader) before(ctx context.Context, tallies map[string]*tally, match string, from time.Time) error {
	appear := false
	for _, t := range tallies {
		appear = appear || t.first() > from.UnixMilli()
	}
	if !appear {
		return nil
	}
	at := from.Add(-fleet.Back)
	list, err := r.store.Instant(ctx, fleet.Over("last_over_time", r.selector(match), query.Duration(r.o.Memory-fleet.Back)), at)
	if err != nil {
		return err
	}
	for _, s := range list {
		t := tallies[counterKey(s.Labels)]
		n, ok := whole(s.Value)
		// Of several ways the one that is ahead has the last value.
		if t != nil && ok && t.first() > from.UnixMilli() && (t.before == nil || t.before.n < n) {
			t.before = &counted{at.UnixMilli(), n}
		}
	}
	return nil
}

// count adds the growth of a counter in (from, to].
func (r *TokenReader) count(t *tally, from, to int64, sums func(*Tokens, query.Labels) []*Tally) {
	for _, g := range t.growths() {
		if g.to > from && g.from < to { // also without growth: the counter is known
			r.add(g.labels, g.within(from, to), sums)
		}
	}
	if t.missed == nil || t.missed.at <= from || t.missed.at > to {
		return
	}
	r.missed++
}
