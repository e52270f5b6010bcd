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
	"regexp"
	"slices"
	"strconv"
	"strings"
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
	labels query.Labels
	points map[int64]float64 // by millisecond; NaN is a staleness marker
	sorted []query.Point     // nil: not sorted yet
}

// NewMemory returns an empty store.
func NewMemory() *Memory { return &Memory{series: map[string]*memorySeries{}} }

// Add writes a sample; samples may arrive in any order. As in Prometheus, the first sample of a
// moment wins. NaN is a staleness marker.
func (m *Memory) Add(labels query.Labels, at time.Time, v float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := labels.Key()
	s := m.series[key]
	if s == nil {
		s = &memorySeries{labels: labels, points: map[int64]float64{}}
		m.series[key] = s
		m.found = nil
	}
	if _, ok := s.points[at.UnixMilli()]; !ok {
		s.points[at.UnixMilli()] = v
		s.sorted = nil
	}
}

// Late returns a copy of the store as it was before some scrapes and batches arrived.
func (m *Memory) Late(r *rand.Rand) *Memory {
	out := NewMemory()
	came := map[string]bool{}
	for _, key := range slices.Sorted(maps.Keys(m.series)) {
		s := m.series[key]
		for _, p := range s.list() {
			batch := fmt.Sprint(s.labels["instance"], p.Time.UnixMilli())
			if _, ok := came[batch]; !ok {
				came[batch] = r.IntN(10) > 0
			}
			if came[batch] {
				out.Add(s.labels, p.Time, p.Value)
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
		out = append(out, query.Series{Labels: m.series[key].labels, Points: m.series[key].list()})
	}
	return out
}

func (s *memorySeries) list() []query.Point {
	if s.sorted == nil {
		for ms, v := range s.points {
			s.sorted = append(s.sorted, query.Point{Time: time.UnixMilli(ms).UTC(), Value: v})
		}
		slices.SortFunc(s.sorted, func(a, b query.Point) int { return a.Time.Compare(b.Time) })
	}
	return s.sorted
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

var (
	selectorText  = regexp.MustCompile(`^([a-z_0-9]*)(?:\{(.*)\})?$`)
	matcherText   = regexp.MustCompile(`([a-zA-Z_0-9]+)(=~|!~|!=|=)("(?:[^"\\]|\\.)*"),?`)
	callText      = regexp.MustCompile(`^([a-z_]+)\((.*)\[([0-9]+)ms\]\)$`)
	aggregateText = regexp.MustCompile(`^(sum|avg|min|max|count|group) ?(?:(by|without) \(([a-z_0-9, ]*)\) )?(\(.*\))$`)
)

// find returns the series that a selector matches.
func (m *Memory) find(selector string) ([]*memorySeries, error) {
	if list, ok := m.found[selector]; ok {
		return list, nil
	}
	parts := selectorText.FindStringSubmatch(selector)
	if parts == nil {
		return nil, fmt.Errorf("%s is not a selector", selector)
	}
	type match struct {
		label, op, value string
		re               *regexp.Regexp
	}
	var list []match
	rest := matcherText.ReplaceAllStringFunc(parts[2], func(text string) string {
		p := matcherText.FindStringSubmatch(text)
		value, err := strconv.Unquote(p[3])
		if err == nil {
			list = append(list, match{p[1], p[2], value, regexp.MustCompile("^(?:" + value + ")$")})
			return ""
		}
		return text
	})
	if rest != "" {
		return nil, fmt.Errorf("%s: cannot parse %q", selector, rest)
	}
	var out []*memorySeries
	for _, s := range m.series {
		ok := parts[1] == "" || s.labels["__name__"] == parts[1]
		for _, x := range list {
			if !ok {
				break
			}
			switch v := s.labels[x.label]; x.op {
			case "=":
				ok = v == x.value
			case "!=":
				ok = v != x.value
			case "!~":
				ok = !x.re.MatchString(v)
			default:
				ok = x.re.MatchString(v)
			}
		}
		if ok {
			out = append(out, s)
		}
	}
	if m.found == nil {
		m.found = map[string][]*memorySeries{}
	}
	m.found[selector] = out
	return out, nil
}

// Instant implements query.Store.
func (m *Memory) Instant(_ context.Context, expr string, at time.Time) ([]query.Sample, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	return m.eval(expr, at)
}

func (m *Memory) eval(expr string, at time.Time) ([]query.Sample, error) {
	if inner, ok := strings.CutSuffix(expr, " > 0"); ok {
		list, err := m.eval(inner, at)
		return slices.DeleteFunc(list, func(s query.Sample) bool { return s.Value <= 0 }), err
	}
	if whole(expr) {
		return m.eval(expr[1:len(expr)-1], at)
	}
	if a := aggregateText.FindStringSubmatch(expr); a != nil && whole(a[4]) {
		list, err := m.eval(a[4], at)
		return aggregate(a[1], a[2] == "by" || a[2] == "", strings.Split(a[3], ", "), list, at), err
	}
	if call := callText.FindStringSubmatch(expr); call != nil {
		return m.call(call[1], call[2], call[3], at)
	}
	selector, stamp := strings.CutPrefix(expr, "timestamp(")
	if stamp {
		selector = strings.TrimSuffix(selector, ")")
	}
	list, err := m.find(selector)
	if err != nil {
		return nil, err
	}
	var out []query.Sample
	for _, s := range list {
		if w := s.window(at.Add(-5*time.Minute), at); len(w) > 0 && !math.IsNaN(w[len(w)-1].Value) {
			last := query.Sample{Labels: s.labels, Time: at, Value: w[len(w)-1].Value}
			if stamp {
				last.Value = float64(w[len(w)-1].Time.UnixMilli()) / 1000
			}
			out = append(out, last)
		}
	}
	return out, nil
}

// whole reports whether one pair of parentheses encloses all of expr.
func whole(expr string) bool {
	if !strings.HasPrefix(expr, "(") {
		return false
	}
	depth := 0
	for i, c := range expr {
		switch c {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return i == len(expr)-1
			}
		}
	}
	return false
}

// aggregate groups samples by the named labels, or by all other labels.
func aggregate(op string, by bool, names []string, list []query.Sample, at time.Time) []query.Sample {
	var out []query.Sample
	groups, counts := map[string]int{}, map[string]float64{}
	for _, s := range list {
		labels := query.Labels{}
		for name, value := range s.Labels {
			if value != "" && slices.Contains(names, name) == by && (by || name != "__name__") {
				labels[name] = value
			}
		}
		key := labels.Key()
		counts[key]++
		i, ok := groups[key]
		if !ok {
			groups[key] = len(out)
			out = append(out, query.Sample{Labels: labels, Time: at, Value: s.Value})
			continue
		}
		switch op {
		case "sum", "avg":
			out[i].Value += s.Value
		case "min":
			out[i].Value = min(out[i].Value, s.Value)
		case "max":
			out[i].Value = max(out[i].Value, s.Value)
		}
	}
	for key, i := range groups {
		switch op {
		case "avg":
			out[i].Value /= counts[key]
		case "count":
			out[i].Value = counts[key]
		case "group":
			out[i].Value = 1
		}
	}
	return out
}

func (m *Memory) call(f, selector, ms string, at time.Time) ([]query.Sample, error) {
	d, err := strconv.ParseInt(ms, 10, 64)
	if err != nil {
		return nil, err
	}
	list, err := m.find(selector)
	if err != nil {
		return nil, err
	}
	var out []query.Sample
	for _, s := range list {
		var values []float64
		var first, last time.Time
		for _, p := range s.window(at.Add(-time.Duration(d)*time.Millisecond), at) {
			if math.IsNaN(p.Value) {
				continue
			}
			if len(values) == 0 {
				first = p.Time
			}
			values, last = append(values, p.Value), p.Time
		}
		if len(values) == 0 {
			continue
		}
		labels := query.Labels{}
		for k, v := range s.labels {
			if k != "__name__" || f == "last_over_time" {
				labels[k] = v
			}
		}
		v, sum := values[len(values)-1], 0.0
		switch f {
		case "last_over_time":
		case "min_over_time":
			v = slices.Min(values)
		case "max_over_time":
			v = slices.Max(values)
		case "avg_over_time":
			for _, x := range values {
				sum += x
			}
			v = sum / float64(len(values))
		case "rate": // without extrapolation
			if len(values) == 1 {
				continue
			}
			for i := 1; i < len(values); i++ {
				if sum += values[i]; values[i] >= values[i-1] {
					sum -= values[i-1]
				}
			}
			v = sum / last.Sub(first).Seconds()
		case "present_over_time":
			v = 1
		case "resets":
			v = 0
			for i := 1; i < len(values); i++ {
				if values[i] < values[i-1] {
					v++
				}
			}
		default:
			return nil, fmt.Errorf("unknown function %s", f)
		}
		out = append(out, query.Sample{Labels: labels, Time: at, Value: v})
	}
	return out, nil
}

// Range implements query.Store.
func (m *Memory) Range(_ context.Context, expr string, start, end time.Time, step time.Duration) ([]query.Series, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	var out []query.Series
	at := map[string]int{}
	for t := start; !t.After(end); t = t.Add(step) {
		list, err := m.eval(expr, t)
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			key := s.Labels.Key()
			i, ok := at[key]
			if !ok {
				i = len(out)
				at[key] = i
				out = append(out, query.Series{Labels: s.Labels})
			}
			out[i].Points = append(out[i].Points, query.Point{Time: t, Value: s.Value})
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
		one := query.Series{Labels: s.labels}
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
