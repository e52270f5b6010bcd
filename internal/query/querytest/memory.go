// Package querytest is an in-memory store of time series for tests of code that uses a
// query.Store. It evaluates the few forms of PromQL that package fleet and its users write, with
// the semantics of Prometheus 3: left-open windows, five minutes of lookback, and staleness
// markers. It is not a PromQL engine: any other expression is an error.
package querytest

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/query"
)

// Memory is an in-memory store. It is safe for concurrent use.
type Memory struct {
	mu     sync.Mutex
	series map[string]*memorySeries
	found  map[string][]*memorySeries // by selector
	asked  int
}

var _ query.Store = (*Memory)(nil)

type memorySeries struct {
	named, bare result        // its labels, and those but for its name; neither has a value
	points      []query.Point // to the millisecond; NaN is a staleness marker
	sorted      int           // so many points at the front are in order, and no two of one moment
}

// NewMemory returns an empty store.
func NewMemory() *Memory { return &Memory{series: map[string]*memorySeries{}} }

// Add writes a sample; samples may arrive in any order. As in Prometheus, the first sample of a
// moment wins. NaN is a staleness marker.
func (m *Memory) Add(labels query.Labels, at time.Time, v float64) { m.Into(labels)(at, v) }

// Into returns Add for one series, whose labels are looked at once.
func (m *Memory) Into(labels query.Labels) func(at time.Time, v float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := labels.Key()
	s := m.series[key]
	if s == nil {
		bare := maps.Clone(labels)
		delete(bare, "__name__")
		s = &memorySeries{named: result{labels: labels, key: key}, bare: result{labels: bare, key: bare.Key()}}
		m.series[key] = s
		m.found = nil
	}
	return func(at time.Time, v float64) {
		m.mu.Lock()
		defer m.mu.Unlock()
		s.points = append(s.points, query.Point{Time: time.UnixMilli(at.UnixMilli()).UTC(), Value: v})
	}
}

// Late returns a copy of the store as it was before some scrapes and batches arrived.
func (m *Memory) Late(r *rand.Rand) *Memory {
	out := NewMemory()
	came := map[string]bool{}
	for _, key := range slices.Sorted(maps.Keys(m.series)) {
		s := m.series[key]
		into := out.Into(s.named.labels)
		for _, p := range s.list() {
			batch := fmt.Sprint(s.named.labels["instance"], p.Time.UnixMilli())
			if _, ok := came[batch]; !ok {
				came[batch] = r.IntN(10) > 0
			}
			if came[batch] {
				into(p.Time, p.Value)
			}
		}
	}
	return out
}

// Asked returns the number of queries so far.
func (m *Memory) Asked() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked
}

// Series returns all series with their samples, staleness markers included, ordered by labels.
func (m *Memory) Series() []query.Series {
	var out []query.Series
	for _, key := range slices.Sorted(maps.Keys(m.series)) {
		out = append(out, query.Series{Labels: m.series[key].named.labels, Points: m.series[key].list()})
	}
	return out
}

// list returns the points in order of time. Callers may keep it: later samples do not change it.
func (s *memorySeries) list() []query.Point {
	for s.sorted < len(s.points) && (s.sorted == 0 || s.points[s.sorted].Time.After(s.points[s.sorted-1].Time)) {
		s.sorted++
	}
	if s.sorted < len(s.points) {
		s.points = slices.Clone(s.points)
		slices.SortStableFunc(s.points, func(a, b query.Point) int { return a.Time.Compare(b.Time) })
		s.points = slices.CompactFunc(s.points, func(a, b query.Point) bool { return a.Time.Equal(b.Time) })
		s.sorted = len(s.points)
	}
	return s.points
}

// window returns the points in (from, to], including markers.
func (s *memorySeries) window(from, to time.Time) []query.Point {
	list := s.list()
	if len(list) == 0 || !list[len(list)-1].Time.After(from) || list[0].Time.After(to) {
		return nil
	}
	after := func(t time.Time) int {
		i, _ := slices.BinarySearchFunc(list, t, func(p query.Point, t time.Time) int {
			if p.Time.After(t) {
				return 1
			}
			return -1
		})
		return i
	}
	return list[after(from):after(to)]
}

// Instant implements query.Store.
func (m *Memory) Instant(_ context.Context, expr string, at time.Time) ([]query.Sample, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	eval, err := m.compile(expr)
	if err != nil {
		return nil, err
	}
	var out []query.Sample
	for _, r := range eval(at) {
		out = append(out, query.Sample{Labels: r.labels, Time: at, Value: r.value})
	}
	return out, nil
}

// Range implements query.Store.
func (m *Memory) Range(_ context.Context, expr string, start, end time.Time, step time.Duration) ([]query.Series, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	eval, err := m.compile(expr)
	if err != nil {
		return nil, err
	}
	var out []query.Series
	at := map[string]int{}
	for t := start; !t.After(end); t = t.Add(step) {
		for _, r := range eval(t) {
			i, ok := at[r.key]
			if !ok {
				i = len(out)
				at[r.key] = i
				out = append(out, query.Series{Labels: r.labels})
			}
			out[i].Points = append(out[i].Points, query.Point{Time: t, Value: r.value})
		}
	}
	return out, nil
}

// Raw implements query.Store.
func (m *Memory) Raw(_ context.Context, selector string, from, to time.Time) ([]query.Series, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	list, err := m.find(selector)
	if err != nil {
		return nil, err
	}
	var out []query.Series
	for _, s := range list {
		one := query.Series{Labels: s.named.labels}
		for _, p := range s.window(from, to) {
			if !math.IsNaN(p.Value) {
				one.Points = append(one.Points, p)
			}
		}
		if one.Points != nil {
			out = append(out, one)
		}
	}
	return out, nil
}
