package slo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
)

const (
	// slowEvery is how often the long windows are read: three days, and that of the budgets.
	slowEvery = 10 * time.Minute
	// slowKept is for how long the last reading of a long window stands while it cannot be read again.
	slowKept = time.Hour
	// maxMoments bounds the moments at which availability is looked at in one span.
	maxMoments = 4320
	shortStep  = time.Minute
)

// Judge judges the objectives of a file, again and again. It reads long windows less often than short ones, and days that are over
// once. It is not safe for concurrent use.
type Judge struct {
	file *File

	at        time.Time
	unlearned []time.Time // moments of the past at which the engines are not known yet, the newest first
	rows      map[key]*known
	engines   map[Kind]map[string]*scale
	since     map[whose]time.Time // when an engine of an owner could first be read
	past      map[int64]measures  // of whole days, by their start

	days, budget     reading // of three days and of the window of the file, without availability
	upDays, upBudget reading // availability
}

// known is a model of a workload.
type known struct {
	labels     query.Labels // of the workload
	objectives []Objective
	seen       time.Time
}

// NewJudge returns a judge of the objectives of a file.
func NewJudge(file *File) *Judge { return &Judge{file: file} }

// Look returns how the objectives are met at a moment, which is not before that of the last call. What could be read counts even
// if there is an error.
func (j *Judge) Look(ctx context.Context, store query.Store, at time.Time) (*Report, error) {
	r := &Report{At: at, Window: j.file.Window}
	var errs []error
	keep := func(what string, err error, of ...int) {
		if err != nil {
			errs = append(errs, fmt.Errorf("cannot read %s: %w", what, err))
		}
		for _, w := range of {
			r.Unread[w] = r.Unread[w] || err != nil
		}
	}
	keep("which engines there are", j.learnUpTo(ctx, store, at))
	for w := range Windows {
		r.Unread[w] = !j.learned(at.Add(-Windows[w]))
	}
	r.Partial = !j.learned(time.Time{})
	if j.budget.due(at) {
		m, err := j.measureDays(ctx, store, at)
		keep("the window of the error budgets", err)
		j.budget.take(at, m, err == nil && j.learned(at.Add(-j.file.Window)))
	}
	if j.days.due(at) {
		m, err := j.measure(ctx, store, at, Windows[threeDays])
		keep("three days", err, threeDays)
		j.days.take(at, m, err == nil && j.learned(at.Add(-Windows[threeDays])))
	}
	if j.file.has(Availability) && j.upBudget.due(at) {
		keep("the availability", j.slowAvailability(ctx, store, at), threeDays)
	}
	short := [windows]measures{threeDays: j.days.measures}
	for w := range threeDays {
		var err error
		short[w], err = j.measure(ctx, store, at, Windows[w])
		keep("the last "+windowNames[w], err, w)
	}
	keep("the availability", j.shortAvailability(ctx, store, at, short[:threeDays]), fiveMinutes, halfHour, oneHour, sixHours)
	var err error
	r.Rows, err = limits(ctx, store, at, j.results(short))
	keep("what limits the engines", err)
	return r, errors.Join(errs...)
}

// learnUpTo learns which engines there are. The first time it looks back as far as the longest window, and what cannot be read then
// is read at later looks. It forgets what is older than all windows.
func (j *Judge) learnUpTo(ctx context.Context, store query.Store, at time.Time) error {
	long := max(j.file.Window, Windows[threeDays])
	var err error
	if j.at.IsZero() || at.Before(j.at) {
		*j = Judge{file: j.file, rows: map[key]*known{}, engines: map[Kind]map[string]*scale{}, since: map[whose]time.Time{}, past: map[int64]measures{}}
		const hour = time.Hour
		for _, ago := range []time.Duration{0, hour / 12, hour / 2, hour, 3 * hour, 6 * hour, 12 * hour} {
			j.unlearned = append(j.unlearned, at.Add(-ago))
		}
		for ago := 24 * hour; ago <= long; ago += 24 * hour {
			j.unlearned = append(j.unlearned, at.Add(-ago))
		}
	} else {
		err = j.learn(ctx, store, at)
	}
	j.at = at
	j.unlearned = slices.DeleteFunc(j.unlearned, func(t time.Time) bool { return t.Before(at.Add(-long)) })
	for err == nil && len(j.unlearned) > 0 {
		if err = j.learn(ctx, store, j.unlearned[0]); err == nil {
			j.unlearned = j.unlearned[1:]
		}
	}
	old := at.Add(-long - 24*time.Hour)
	maps.DeleteFunc(j.rows, func(_ key, x *known) bool { return x.seen.Before(old) })
	for _, engines := range j.engines {
		maps.DeleteFunc(engines, func(_ string, x *scale) bool { return x.seen.Before(old) })
	}
	maps.DeleteFunc(j.past, func(start int64, _ measures) bool { return start < old.Unix() })
	return err
}

// learned reports whether the engines are known since a moment.
func (j *Judge) learned(since time.Time) bool {
	return len(j.unlearned) == 0 || j.unlearned[0].Before(since)
}

// learn adds the rows and the bounds of a moment.
func (j *Judge) learn(ctx context.Context, store query.Store, at time.Time) error {
	if len(j.file.Entries) == 0 {
		return nil
	}
	labels := map[key]query.Labels{}
	err := served(ctx, store, at, func(l query.Labels) {
		k := keyOf(l)
		if old := labels[k]; len(l) > len(old) || len(l) == len(old) && l.Key() > old.Key() {
			labels[k] = l
		}
	})
	for k, l := range labels {
		old := j.rows[k]
		if old != nil && old.seen.After(at) {
			continue
		}
		x := &known{l, j.file.find(k.model, l), at}
		if old == nil || !slices.Equal(old.objectives, x.objectives) { // all readings are without the row, or with its other objectives
			clear(j.past)
			for _, r := range []*reading{&j.days, &j.budget, &j.upDays, &j.upBudget} {
				delete(r.tallies, k)
			}
		}
		j.rows[k] = x
	}
	for kind := range histograms {
		if !j.file.has(kind) {
			continue
		}
		found, rows, failed := scales(ctx, store, at, kind)
		err = errors.Join(err, failed)
		if j.engines[kind] == nil {
			j.engines[kind] = map[string]*scale{}
		}
		for id, b := range found {
			if j.engines[kind][id] == nil {
				j.engines[kind][id] = &scale{row: rows[id]}
			}
			j.engines[kind][id].saw(b, at)
		}
	}
	return err
}

// of returns the objectives of a row.
func (j *Judge) of(k key) []Objective {
	if x := j.rows[k]; x != nil {
		return x.objectives
	}
	return nil
}

// none returns measures without anything.
func (j *Judge) none() measures {
	m := measures{map[key][]tally{}, map[key]optional.Float{}}
	for k := range j.rows {
		m.tallies[k] = make([]tally, len(j.of(k)))
	}
	return m
}

// measureDays counts the requests of the window of the file, day by day: a query over a month would take
// too long.
func (j *Judge) measureDays(ctx context.Context, store query.Store, at time.Time) (measures, error) {
	const day = 24 * time.Hour
	sum := j.none()
	for start := at.Add(-j.file.Window); start.Before(at); {
		end := start.Truncate(day).Add(day)
		if end.After(at) {
			end = at
		}
		whole := end.Sub(start) == day && at.Sub(end) >= day // a store takes samples up to a day late
		m, ok := j.past[start.Unix()]
		if !ok || !whole {
			var err error
			if m, err = j.measure(ctx, store, end, end.Sub(start)); err != nil {
				return sum, err
			}
			if whole {
				j.past[start.Unix()] = m
			}
		}
		for k, list := range m.tallies {
			for i, t := range list {
				if i < len(sum.tallies[k]) {
					sum.tallies[k][i] = sum.tallies[k][i].plus(t.times(end.Sub(start).Seconds()))
				}
			}
		}
		start = end
	}
	return sum, nil
}

// measure counts the requests of a window.
func (j *Judge) measure(ctx context.Context, store query.Store, at time.Time, window time.Duration) (measures, error) {
	m := j.none()
	if len(j.rows) == 0 {
		return m, nil
	}
	ends, err := finished(ctx, store, at, window)
	for k, e := range ends {
		m.requests[k] = optional.Of(e.all)
		m.add(k, j.of(k), Errors, func(*Objective) (tally, bool) {
			return tally{total: e.counted, bad: e.failed, least: e.failed, most: e.failed}, e.counted > 0
		})
	}
	errs := []error{err}
	for kind, engines := range j.engines {
		rates, err := latencies(ctx, store, at, window, kind, engines, j.of)
		errs = append(errs, err)
		for id, e := range engines {
			m.add(e.row, j.of(e.row), kind, func(o *Objective) (tally, bool) {
				below, above, _, ok := e.near(o.Threshold.Seconds(), at.Add(-window), at)
				if !ok {
					return tally{}, false
				}
				return slower(rates[id], below, above, o.Threshold.Seconds())
			})
		}
	}
	return m, errors.Join(errs...)
}

// workloads are the names of the workloads that have to be available.
func (j *Judge) workloads() []string {
	var out []string
	for _, x := range j.rows {
		name := x.labels[fleet.LabelWorkload]
		if name != "" && slices.ContainsFunc(x.objectives, func(o Objective) bool { return o.Kind == Availability }) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// slowAvailability looks at the long windows, and at when each workload had its first engine.
func (j *Judge) slowAvailability(ctx context.Context, store query.Store, at time.Time) error {
	long := max(j.file.Window, Windows[threeDays])
	moments, err := presence(ctx, store, at.Add(-long), at, max(shortStep, long/maxMoments), j.workloads())
	near := moments
	if err == nil && long > Windows[threeDays] { // with more moments
		near, err = presence(ctx, store, at.Add(-Windows[threeDays]), at, shortStep, j.workloads())
	}
	if err == nil {
		clear(j.since)
		for w, list := range moments {
			j.since[w] = answered(list)
		}
	}
	for _, x := range []struct {
		to      *reading
		moments map[whose][]moment
		window  time.Duration
	}{{&j.upBudget, moments, j.file.Window}, {&j.upDays, near, Windows[threeDays]}} {
		m, from := j.none(), at.Add(-x.window)
		j.available(m, x.moments, from)
		x.to.take(at, m, err == nil && j.learned(from))
	}
	return err
}

// shortAvailability looks at the short windows.
func (j *Judge) shortAvailability(ctx context.Context, store query.Store, at time.Time, short []measures) error {
	if !j.file.has(Availability) {
		return nil
	}
	moments, err := presence(ctx, store, at.Add(-Windows[len(short)-1]), at, shortStep, j.workloads())
	if err != nil {
		return err
	}
	for w, list := range moments {
		if j.since[w].IsZero() {
			j.since[w] = answered(list)
		}
	}
	for i := range short {
		j.available(short[i], moments, at.Add(-Windows[i]))
	}
	return nil
}

// available counts the moments after a time.
func (j *Judge) available(m measures, moments map[whose][]moment, after time.Time) {
	for k, x := range j.rows {
		m.add(k, x.objectives, Availability, func(*Objective) (tally, bool) {
			t := unavailable(moments[k.whose], after, j.since[k.whose])
			return t, t.total > 0
		})
	}
}

// results returns the rows in order. Only rows of the file's entries have results.
func (j *Judge) results(short [windows]measures) []Row {
	var out []Row
	for k, x := range j.rows {
		list := x.objectives
		if len(list) == 0 {
			continue
		}
		row := Row{Model: k.model, Labels: ownerOf(x.labels)}
		row.Owner, _ = fleet.OwnerOf(row.Labels)
		for i, o := range list {
			r := Result{Objective: o, Bad: at(j.budget.measures, k, i).plus(at(j.upBudget.measures, k, i))}
			var bad [windows]optional.Float
			for w := range short {
				bad[w] = at(short[w], k, i).Ratio()
			}
			if o.Kind == Availability {
				bad[threeDays] = at(j.upDays.measures, k, i).Ratio()
			}
			r.finish(bad)
			row.Results = append(row.Results, r)
		}
		now := short[fiveMinutes]
		row.Goodput = goodput(list, now.tallies[k], now.requests[k])
		out = append(out, row)
	}
	slices.SortFunc(out, order)
	return out
}

// ownerOf returns the labels of a workload.
func ownerOf(l query.Labels) query.Labels {
	out := query.Labels{}
	maps.Copy(out, l)
	maps.DeleteFunc(out, func(name, value string) bool { return value == "" || !slices.Contains(ownerLabels, name) })
	return out
}
