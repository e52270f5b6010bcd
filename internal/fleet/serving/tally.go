package serving

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/quantity"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Tally is an exact number of things that an engine counts: tokens, requests. It is unknown if nothing
// counts them.
type Tally struct {
	N     int64
	Known bool
}

// TallyOf returns a known Tally.
func TallyOf(n int64) Tally { return Tally{n, true} }

// Plus returns the sum of what is known.
func (t Tally) Plus(o Tally) Tally { return Tally{t.N + o.N, t.Known || o.Known} }

// MarshalJSON encodes an unknown number as null.
func (t Tally) MarshalJSON() ([]byte, error) {
	if !t.Known {
		return []byte("null"), nil
	}
	return strconv.AppendInt(nil, t.N, 10), nil
}

// mostCounted is the highest plausible value of a counter of tokens or requests.
const mostCounted = 1e15

// whole converts a value of such a counter.
func whole(v float64) (int64, bool) {
	if !(v >= 0 && v <= mostCounted) {
		return 0, false
	}
	return int64(math.Round(v)), true
}

// Counters of things grow in bursts, so unlike those of device time nothing says how much they can have
// grown. The rules of the fold are otherwise those of device time, see lane.go:
//
//   - growth between two readings is spread evenly, but over an hour at most: nobody saw what came before;
//   - a counter that fell began anew, at zero;
//   - a counter that the store sees for the first time counts from its first value. A hub writes the zero
//     of a counter whose start its agent saw.
//
// A counter that reaches the store on several ways is followed as one, because each of them has all of the
// growth: a reading counts only beyond the highest one so far, whatever way that came.

// counted is a reading of a counter.
type counted struct {
	at int64 // ms
	n  int64
}

// route has the readings of a counter on one way to the store.
type route struct {
	key      string // see way
	labels   query.Labels
	readings []counted // in order of time
}

// newRoute returns the route of a series, and how many of its values no counter can have.
func newRoute(s query.Series) (r *route, refused int) {
	r = &route{key: fleet.Way(s.Labels), labels: s.Labels, readings: make([]counted, 0, len(s.Points))}
	for _, p := range s.Points {
		if n, ok := whole(p.Value); ok {
			r.readings = append(r.readings, counted{p.Time.UnixMilli(), n})
		} else {
			refused++
		}
	}
	return r, refused
}

// goesOn reports whether a route has readings on both sides of a moment, at most an hour apart, and did not
// begin anew between them.
func (r *route) goesOn(at int64) bool {
	i, _ := slices.BinarySearchFunc(r.readings, at+1, func(c counted, at int64) int { return cmp.Compare(c.at, at) })
	return i > 0 && i < len(r.readings) && r.readings[i].at-r.readings[i-1].at <= fleet.Back.Milliseconds() && r.readings[i].n >= r.readings[i-1].n
}

// growth is what a counter gained in an interval. labels are those of the reading that ends it.
type growth struct {
	from, to int64 // ms
	n        int64
	labels   query.Labels
}

// within returns the part of the growth in (from, to]. The parts of a growth add up to it.
func (g *growth) within(from, to int64) int64 {
	a, b, all := max(from, g.from), min(to, g.to), uint64(g.to-g.from)
	if a >= b {
		return 0
	}
	return quantity.Portion(g.n, uint64(b-g.from), all) - quantity.Portion(g.n, uint64(a-g.from), all)
}

// spread returns the growth between two readings.
func spread(before, r counted, labels query.Labels) growth {
	g := growth{from: max(before.at, r.at-fleet.Back.Milliseconds()), to: r.at, n: r.n - before.n, labels: labels}
	if g.n < 0 { // it began anew
		g.n = r.n
	}
	return g
}

// tally turns the readings of one counter into growth.
type tally struct {
	routes []*route
	// before is the last reading before the routes begin; nil if the store has none.
	before *counted
	// missed is the first reading of a counter that the store did not see begin; nil if it did.
	missed *counted
}

func newTally(routes []*route) *tally {
	slices.SortFunc(routes, func(a, b *route) int { return strings.Compare(a.key, b.key) })
	return &tally{routes: routes}
}

// first returns when the first reading was made, in ms.
func (t *tally) first() int64 {
	out := int64(math.MaxInt64)
	for _, r := range t.routes {
		if len(r.readings) > 0 {
			out = min(out, r.readings[0].at)
		}
	}
	return out
}

// place is a reading of a route.
type place struct{ route, reading int }

func (t *tally) reading(p place) counted { return t.routes[p.route].readings[p.reading] }

// growths returns what the counter gained, in order of time.
func (t *tally) growths() []growth {
	var order []place
	for i, r := range t.routes {
		for j := range r.readings {
			order = append(order, place{i, j})
		}
	}
	slices.SortStableFunc(order, func(a, b place) int { return cmp.Compare(t.reading(a).at, t.reading(b).at) })
	var out []growth
	var began *place // the last reading that began anew
	last := t.before
	for _, p := range order {
		r := t.reading(p)
		if t.lags(p, began) {
			continue
		}
		switch {
		case last == nil:
			if r.n > 0 {
				t.missed = &r
			}
		case r.at <= last.at, r.n < last.n && !t.anew(p, began):
			continue // another way is ahead of this one
		default:
			if r.n < last.n {
				began = &p
			}
			out = append(out, spread(*last, r, t.routes[p.route].labels))
		}
		last = &r
	}
	return out
}

// anew reports whether a counter that is lower on a route than it was on another one began anew: it fell
// on the route itself, and not because of what another route already told, or the route begins where no
// other one goes on.
func (t *tally) anew(p place, began *place) bool {
	r := t.routes[p.route]
	if p.reading > 0 {
		before := r.readings[p.reading-1]
		told := began != nil && began.route != p.route && before.at < t.reading(*began).at
		return r.readings[p.reading].n < before.n && !told
	}
	at := r.readings[0].at
	return !slices.ContainsFunc(t.routes, func(other *route) bool { return other != r && other.goesOn(at) })
}

// lags reports whether a reading is from before the counter began anew, although it arrived later than
// the first reading of another way after that.
func (t *tally) lags(p place, began *place) bool {
	if began == nil || began.route == p.route || t.reading(p).at-t.reading(*began).at > fleet.Near.Milliseconds() {
		return false
	}
	for i := p.reading - 1; i >= 0; i-- {
		if before := t.routes[p.route].readings[i]; before.at <= t.reading(*began).at {
			return t.reading(p).n >= before.n
		}
	}
	return false
}

// at returns the value of a counter at a moment, on the straight line between the readings around it.
// ok is false if these do not say: there is none before, or it began anew in between. open is set if there
// is none after.
func (r *route) at(t time.Time) (n int64, open, ok bool) {
	at := t.UnixMilli()
	i, _ := slices.BinarySearchFunc(r.readings, at+1, func(c counted, at int64) int { return cmp.Compare(c.at, at) })
	if i == 0 {
		return 0, false, false
	}
	before := r.readings[i-1]
	if i == len(r.readings) {
		return before.n, true, true
	}
	after := r.readings[i]
	if after.n < before.n {
		return 0, false, false
	}
	g := growth{from: before.at, to: after.at, n: after.n - before.n}
	return before.n + g.within(before.at, at), false, true
}
