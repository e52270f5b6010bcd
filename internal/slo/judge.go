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
	// maxMoments bounds the moments at which availability is looked at in one span.
	maxMoments = 4320
	shortStep  = time.Minute
)

// Judge judges the objectives of a file, again and again. It reads long windows less often than short ones, and days that are over
// once. It is not safe for concurrent use.
type Judge struct {
	file *File

	at, slowAt time.Time
	rows       map[key]*known
	engines    map[Kind]map[string]*scale
	since      map[whose]time.Time // when an engine of an owner could first be read
	past       map[int64]measures  // of whole days, by their start
	days       measures            // of three days
	budget     measures            // of the window of the file
}

// known is a model of a workload.
type known struct {
	labels     query.Labels // of the workload
	objectives []Objective
	seen       time.Time
}

// measures are the tallies of the objectives of each row, and the requests per second that finished.
type measures struct {
	tallies  map[key][]tally
	requests map[key]optional.Float
}

// NewJudge returns a judge of the objectives of a file.
func NewJudge(file *File) *Judge { return &Judge{file: file} }

// Look returns how the objectives are met at a moment, which is not before that of the last call. What could be read counts even
// if there is an error.
func (j *Judge) Look(ctx context.Context, store query.Store, at time.Time) (*Report, error) {
	var errs []error
	keep := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("cannot read %s: %w", what, err))
		}
	}
	keep("which engines there are", j.learnUpTo(ctx, store, at))
	if j.slowAt.IsZero() || at.Sub(j.slowAt) >= slowEvery {
		j.slowAt = at
		var err error
		j.budget, err = j.measureDays(ctx, store, at)
		keep("the window of the error budgets", err)
		j.days, err = j.measure(ctx, store, at, Windows[threeDays])
		keep("three days", err)
		keep("the availability", j.slowAvailability(ctx, store, at))
	}
	short := [windows]measures{threeDays: j.days}
	for i := range threeDays {
		var err error
		short[i], err = j.measure(ctx, store, at, Windows[i])
		keep("the last "+windowNames[i], err)
	}
	keep("the availability", j.shortAvailability(ctx, store, at, short[:threeDays]))
	rows, err := j.limits(ctx, store, at, j.results(short))
	keep("what limits the engines", err)
	return &Report{At: at, Window: j.file.Window, Rows: rows}, errors.Join(errs...)
}

// learnUpTo learns which engines there are. The first time it looks back, from the oldest moment on; then
// it forgets what is older than all windows.
func (j *Judge) learnUpTo(ctx context.Context, store query.Store, at time.Time) error {
	long := max(j.file.Window, Windows[threeDays])
	looks := []time.Duration{0}
	if j.at.IsZero() || at.Before(j.at) {
		*j = Judge{file: j.file, rows: map[key]*known{}, engines: map[Kind]map[string]*scale{}, since: map[whose]time.Time{}, past: map[int64]measures{}}
		const hour = time.Hour
		looks = append(looks, hour/12, hour/2, hour, 3*hour, 6*hour, 12*hour)
		for ago := 24 * hour; ago <= long; ago += 24 * hour {
			looks = append(looks, ago)
		}
		slices.Reverse(looks)
	}
	j.at = at
	var errs []error
	for _, ago := range looks {
		errs = append(errs, j.learn(ctx, store, at.Add(-ago)))
	}
	old := at.Add(-long - 24*time.Hour)
	maps.DeleteFunc(j.rows, func(_ key, x *known) bool { return x.seen.Before(old) })
	for _, engines := range j.engines {
		maps.DeleteFunc(engines, func(_ string, x *scale) bool { return x.seen.Before(old) })
	}
	maps.DeleteFunc(j.past, func(start int64, _ measures) bool { return start < old.Unix() })
	return errors.Join(errs...)
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
		x := &known{l, j.file.find(k.model, l), at}
		if old := j.rows[k]; old == nil || !slices.Equal(old.objectives, x.objectives) {
			clear(j.past) // without the row, or with its other objectives
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

// measureDays counts the requests of the window of the file, day by day: a query over a month would take
// too long.
func (j *Judge) measureDays(ctx context.Context, store query.Store, at time.Time) (measures, error) {
	const day = 24 * time.Hour
	sum := measures{map[key][]tally{}, nil}
	for k := range j.rows {
		sum.tallies[k] = make([]tally, len(j.of(k)))
	}
	var errs []error
	for start := at.Add(-j.file.Window); start.Before(at); {
		end := start.Truncate(day).Add(day)
		if end.After(at) {
			end = at
		}
		whole := end.Sub(start) == day && at.Sub(end) >= day // a store takes samples up to a day late
		m, ok := j.past[start.Unix()]
		if !ok || !whole {
			var err error
			m, err = j.measure(ctx, store, end, end.Sub(start))
			if errs = append(errs, err); whole && err == nil {
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
	return sum, errors.Join(errs...)
}

// measure counts the requests of a window.
func (j *Judge) measure(ctx context.Context, store query.Store, at time.Time, window time.Duration) (measures, error) {
	m := measures{map[key][]tally{}, map[key]optional.Float{}}
	for k := range j.rows {
		m.tallies[k] = make([]tally, len(j.of(k)))
	}
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

// add adds to the tallies of the objectives of a kind.
func (m *measures) add(k key, list []Objective, kind Kind, count func(*Objective) (tally, bool)) {
	for i := range list {
		if list[i].Kind != kind || i >= len(m.tallies[k]) {
			continue
		}
		if t, ok := count(&list[i]); ok {
			m.tallies[k][i] = m.tallies[k][i].plus(t)
		}
	}
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
	if !j.file.has(Availability) {
		return nil
	}
	long := max(j.file.Window, Windows[threeDays])
	moments, err := presence(ctx, store, at.Add(-long), at, max(shortStep, long/maxMoments), j.workloads())
	if err != nil {
		return err
	}
	clear(j.since)
	for w, list := range moments {
		j.since[w] = answered(list)
	}
	j.available(j.budget, moments, at.Add(-j.file.Window))
	if long > Windows[threeDays] { // with more moments
		if moments, err = presence(ctx, store, at.Add(-Windows[threeDays]), at, shortStep, j.workloads()); err != nil {
			return err
		}
	}
	j.available(j.days, moments, at.Add(-Windows[threeDays]))
	return nil
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
			r := Result{Objective: o, Bad: at(j.budget, k, i)}
			var bad [windows]optional.Float
			for w := range short {
				bad[w] = at(short[w], k, i).Ratio()
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

// at returns a tally, which a row that appeared later may not have.
func at(m measures, k key, i int) tally {
	if list := m.tallies[k]; i < len(list) {
		return list[i]
	}
	return tally{}
}

// ownerOf returns the labels of a workload.
func ownerOf(l query.Labels) query.Labels {
	out := query.Labels{}
	maps.Copy(out, l)
	maps.DeleteFunc(out, func(name, value string) bool { return value == "" || !slices.Contains(ownerLabels, name) })
	return out
}
