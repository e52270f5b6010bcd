// Package rollup keeps the extremes and the mean of gauges by the hour, in memory, so that a question
// about a week reads the samples of an hour or two.
//
// It takes 32 bytes for each hour of each series: 6 MiB for the 192 hours of 1,000 series. Only series with
// samples in the last day are kept, so that short workloads do not add up. Samples that arrive more than
// settled after the end of their hour are not considered.
package rollup

import (
	"context"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

const (
	// settled is how long after its end an hour is read.
	settled = 10 * time.Minute
	// Most is how far back hours are kept, and a little more than the longest window.
	Most = 8 * 24 * time.Hour
	// silent is after which time without samples a series is dropped.
	silent = 24 * time.Hour
	// recent is how old the end of a window may be: of earlier ones series may have been dropped.
	recent = time.Hour
	// least is the shortest window for which hours are used.
	least = 3 * time.Hour
)

// Reader reads samples.
type Reader interface {
	// Raw returns the samples of the matching series in (from, to].
	Raw(ctx context.Context, selector string, from, to time.Time) ([]query.Series, error)
}

// Rollup keeps hours of gauges. It is safe for concurrent use.
type Rollup struct {
	store  Reader
	newest func() time.Time
	turn   chan struct{}     // held by whoever uses gauges
	gauges map[string]*gauge // by name
}

// New returns a Rollup of the gauges with these names. newest returns the time of the newest sample.
func New(store Reader, newest func() time.Time, names ...string) *Rollup {
	r := &Rollup{store: store, newest: newest, turn: make(chan struct{}, 1), gauges: map[string]*gauge{}}
	for _, name := range names {
		r.gauges[name] = &gauge{ids: map[string]int32{}, hours: map[time.Time][]stats{}}
	}
	return r
}

// gauge has the hours of all series with one name.
type gauge struct {
	ids    map[string]int32 // by key of the labels
	labels []query.Labels
	hours  map[time.Time][]stats
}

// stats summarizes samples of one series.
type stats struct {
	id               int32
	count            uint32
	least, most, sum float64
}

// add merges the samples of another period.
func (s *stats) add(x stats) {
	if s.count == 0 {
		*s = x
		return
	}
	s.least, s.most, s.sum, s.count = min(s.least, x.least), max(s.most, x.most), s.sum+x.sum, s.count+x.count
}

// of returns the function of PromQL.
func (s *stats) of(f string) float64 {
	switch f {
	case "max_over_time":
		return s.most
	case "min_over_time":
		return s.least
	case "count_over_time":
		return float64(s.count)
	}
	return s.sum / float64(s.count)
}

// OverTime implements query.Aggregator. Series without samples for a day are omitted.
func (r *Rollup) OverTime(ctx context.Context, f, name string, window time.Duration, at time.Time) ([]query.Sample, error) {
	g, newest := r.gauges[name], r.newest().UTC()
	at = at.UTC() // hours are keys
	from := at.Add(-window)
	first, last := from.Truncate(time.Hour), at
	if first.Before(from) {
		first = first.Add(time.Hour)
	}
	if end := newest.Add(-settled); last.After(end) {
		last = end
	}
	last = last.Truncate(time.Hour)
	if g == nil || window < least || newest.Sub(from) > Most || newest.Sub(at) > recent || last.Sub(first) < time.Hour || !slices.Contains([]string{"max_over_time", "min_over_time", "avg_over_time", "count_over_time"}, f) {
		return nil, fleet.ErrNotKept
	}
	for t := last.Add(-time.Hour); !t.Before(first); t = t.Add(-time.Hour) {
		if err := r.fill(ctx, name, t); err != nil {
			return nil, err
		}
	}
	if err := r.take(ctx); err != nil {
		return nil, err
	}
	defer r.give()
	sum := make([]stats, len(g.labels))
	for t := first; t.Before(last); t = t.Add(time.Hour) {
		for _, s := range g.hours[t] {
			sum[s.id].add(s)
		}
	}
	for _, edge := range [][2]time.Time{{from, first}, {last, at}} {
		list, err := r.read(ctx, g, name, edge[0], edge[1])
		if err != nil {
			return nil, err
		}
		for len(sum) < len(g.labels) {
			sum = append(sum, stats{})
		}
		for _, s := range list {
			sum[s.id].add(s)
		}
	}
	out := make([]query.Sample, 0, len(sum))
	for id := range sum {
		if sum[id].count > 0 {
			out = append(out, query.Sample{Labels: g.labels[id], Time: at, Value: sum[id].of(f)})
		}
	}
	return out, nil
}

// every is how often Run looks for hours that have ended.
const every = time.Minute

// Run reads hours that have ended until ctx is canceled. failed is called when reading fails after it had
// worked.
func (r *Rollup) Run(ctx context.Context, failed func(error)) {
	clock := time.NewTicker(every)
	defer clock.Stop()
	bad := false
	for {
		err := r.Fill(ctx)
		if err != nil && ctx.Err() == nil && !bad {
			failed(err)
		}
		bad = err != nil
		select {
		case <-ctx.Done():
			return
		case <-clock.C:
		}
	}
}

// Fill reads the hours that are missing, the newest first.
func (r *Rollup) Fill(ctx context.Context) error {
	newest := r.newest().UTC()
	if newest.IsZero() {
		return nil
	}
	last := newest.Add(-settled).Truncate(time.Hour)
	for t := last.Add(-time.Hour); t.After(last.Add(-Most)); t = t.Add(-time.Hour) {
		for name := range r.gauges {
			if err := r.fill(ctx, name, t); err != nil {
				return err
			}
		}
	}
	return nil
}

// fill reads an hour unless it is kept. Other questions have their turn between two hours.
func (r *Rollup) fill(ctx context.Context, name string, t time.Time) error {
	if err := r.take(ctx); err != nil {
		return err
	}
	defer r.give()
	g := r.gauges[name]
	if _, ok := g.hours[t]; ok {
		return nil
	}
	list, err := r.read(ctx, g, name, t, t.Add(time.Hour))
	if err != nil {
		return err
	}
	g.hours[t] = list
	if newest := r.newest(); newest.Sub(t) < 2*time.Hour { // the newest hour
		g.expire(newest)
	}
	return nil
}

func (r *Rollup) take(ctx context.Context) error {
	select {
	case r.turn <- struct{}{}:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *Rollup) give() { <-r.turn }

// read summarizes the samples in (from, to].
func (r *Rollup) read(ctx context.Context, g *gauge, name string, from, to time.Time) ([]stats, error) {
	if !from.Before(to) {
		return nil, nil
	}
	list, err := r.store.Raw(ctx, name, from, to)
	if err != nil {
		return nil, err
	}
	out := make([]stats, 0, len(list))
	alive := r.newest().Sub(to) < silent
	for _, s := range list {
		id, ok := g.id(s.Labels, alive)
		if !ok {
			continue
		}
		x := stats{id: id}
		for _, p := range s.Points {
			if v := p.Value; !math.IsNaN(v) {
				x.add(stats{x.id, 1, v, v, v})
			}
		}
		if x.count > 0 {
			out = append(out, x)
		}
	}
	return out, nil
}

// id returns the number of a series. An unknown series gets one if it is alive.
func (g *gauge) id(l query.Labels, alive bool) (int32, bool) {
	key := l.Key()
	id, ok := g.ids[key]
	if !ok && alive {
		id = int32(len(g.labels))
		labels := make(query.Labels, len(l))
		for name, value := range l {
			if !strings.HasPrefix(name, "__") { // as functions of PromQL do
				labels[name] = value
			}
		}
		g.ids[key], g.labels = id, append(g.labels, labels)
	}
	return id, ok || alive
}

// expire drops hours that no window reaches, and series that have been silent.
func (g *gauge) expire(newest time.Time) {
	maps.DeleteFunc(g.hours, func(t time.Time, _ []stats) bool { return newest.Sub(t) > Most+time.Hour })
	number := make([]int32, len(g.labels)) // after expiry, plus 1; 0: dropped
	var labels []query.Labels
	for t, list := range g.hours {
		if newest.Sub(t) > silent+time.Hour {
			continue
		}
		for _, s := range list {
			if number[s.id] == 0 {
				labels = append(labels, g.labels[s.id])
				number[s.id] = int32(len(labels))
			}
		}
	}
	for t, list := range g.hours {
		list = slices.DeleteFunc(list, func(s stats) bool { return number[s.id] == 0 })
		for i := range list {
			list[i].id = number[list[i].id] - 1
		}
		g.hours[t] = list
	}
	for key, id := range g.ids {
		if number[id] == 0 {
			delete(g.ids, key)
		} else {
			g.ids[key] = number[id] - 1
		}
	}
	g.labels = labels
}
