package cost

import (
	"context"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Edge has the samples on both sides of an end of a line: the counters at the end lie between
// them. Where an account begins or ends within a line, it has one of them, the first or the last of
// the line. It has neither if the samples are gone, or if there is none within an hour.
type Edge struct {
	Before *Reading `json:"before,omitempty"` // at or before the edge
	After  *Reading `json:"after,omitempty"`
	// Series is how many series of the account were found: several if its agent sends on two ways, or
	// has a second agent.
	Series int `json:"series"`
}

// Reading has the counters of an account at a moment, as the store has them.
type Reading struct {
	At     time.Time `json:"at"`
	Held   float64   `json:"held_seconds"`
	Active *float64  `json:"active_seconds,omitempty"`
	Energy *float64  `json:"energy_joules,omitempty"`
}

// hour is how far from an edge samples are searched if there are none near it.
const hour = time.Hour

// wanted are edges of lines at one moment, by key of the row.
type wanted map[string][]*Edge

// samples sets the samples at the ends of all lines.
func (e *explainer) samples(ctx context.Context, store query.Store) error {
	starts, ends := map[time.Time]wanted{}, map[time.Time]wanted{}
	add := func(to map[time.Time]wanted, at time.Time, key string, x *Edge) {
		if to[at] == nil {
			to[at] = wanted{}
		}
		to[at][key] = append(to[at][key], x)
	}
	labels := map[string]query.Labels{}
	for i := range e.out.Holders {
		h := &e.out.Holders[i]
		labels[h.key] = h.Labels
		for j := range h.Lines {
			add(starts, h.Lines[j].From, h.key, &h.Lines[j].Start)
			add(ends, h.Lines[j].To, h.key, &h.Lines[j].End)
		}
	}
	moments := maps.Clone(starts)
	maps.Copy(moments, ends)
	for _, at := range slices.SortedFunc(maps.Keys(moments), time.Time.Compare) {
		near := wanted{}
		for _, list := range []wanted{starts[at], ends[at]} {
			for key, edges := range list {
				near[key] = append(near[key], edges...)
			}
		}
		if err := e.around(ctx, store, labels, near, at, fleet.Near, fleet.Near); err != nil {
			return err
		}
		begun, ended := wanted{}, wanted{} // within the line
		for key, edges := range starts[at] {
			if edges[0].Before == nil && edges[0].After == nil {
				begun[key] = edges
			}
		}
		for key, edges := range ends[at] {
			if edges[0].Before == nil {
				ended[key] = edges
			}
		}
		if err := e.around(ctx, store, labels, begun, at, 0, hour); err != nil {
			return err
		}
		if err := e.around(ctx, store, labels, ended, at, hour, 0); err != nil {
			return err
		}
	}
	return nil
}

// around sets the samples nearest to a moment, within some time before and after it.
func (e *explainer) around(ctx context.Context, store query.Store, labels map[string]query.Labels, edges wanted, at time.Time, before, after time.Duration) error {
	var uuids []string
	for key := range edges {
		uuids = append(uuids, labels[key][fleet.LabelUUID])
	}
	found := map[string]*Edge{}
	for _, match := range fleet.AnyOf(fleet.LabelUUID, uuids) {
		for _, name := range []string{fleet.SeriesAllocatedTime, fleet.SeriesUnallocatedTime, fleet.SeriesActiveTime, fleet.SeriesEnergy} {
			list, err := store.Raw(ctx, fleet.Select(name, e.o.Match, slices.Concat(e.o.Matchers, []string{match})...), at.Add(-before), at.Add(after))
			if err != nil {
				return err
			}
			for i := range list {
				key := fleet.Row(list[i].Labels).Key()
				if edges[key] == nil {
					continue
				}
				if found[key] == nil {
					found[key] = &Edge{}
				}
				found[key].take(name, list[i].Points, at)
			}
		}
	}
	for key, x := range found {
		for _, to := range edges[key] {
			if x.Before != nil {
				to.Before = x.Before
			}
			if x.After != nil {
				to.After = x.After
			}
			to.Series = max(to.Series, x.Series)
		}
	}
	return nil
}

// take adds the points of a counter around a moment. Device time comes first: it decides which
// samples are shown.
func (x *Edge) take(name string, points []query.Point, at time.Time) {
	n := sort.Search(len(points), func(i int) bool { return points[i].Time.After(at) })
	switch name {
	case fleet.SeriesActiveTime:
		x.Before.set(points, func(r *Reading, v *float64) { r.Active = v })
		x.After.set(points, func(r *Reading, v *float64) { r.Active = v })
	case fleet.SeriesEnergy:
		x.Before.set(points, func(r *Reading, v *float64) { r.Energy = v })
		x.After.set(points, func(r *Reading, v *float64) { r.Energy = v })
	default:
		x.Series++
		if n > 0 && (x.Before == nil || points[n-1].Time.After(x.Before.At)) {
			x.Before = &Reading{At: points[n-1].Time.UTC(), Held: points[n-1].Value}
		}
		if n < len(points) && (x.After == nil || points[n].Time.Before(x.After.At)) {
			x.After = &Reading{At: points[n].Time.UTC(), Held: points[n].Value}
		}
	}
}

// set adds another counter to a reading, if it has a sample at the same moment.
func (r *Reading) set(points []query.Point, to func(*Reading, *float64)) {
	if r == nil {
		return
	}
	if i := slices.IndexFunc(points, func(p query.Point) bool { return p.Time.Equal(r.At) }); i >= 0 {
		v := points[i].Value
		to(r, &v)
	}
}

// Gone reports whether the samples of a line no longer exist: its usage was kept.
func (l *Line) Gone() bool {
	return l.Source == FromKept && l.Start.Series+l.End.Series == 0
}
