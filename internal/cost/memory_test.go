package cost

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
	"time"

	"github.com/gpumeter/gpumeter/internal/query"
)

// memory is a store that answers the questions of this package as Prometheus 3 does:
// windows open to the left, five minutes of lookback, and markers that end a series.
type memory struct {
	series map[string]*memorySeries
	asked  int
}

type memorySeries struct {
	labels query.Labels
	points map[int64]float64 // by millisecond; NaN ends the series
	sorted []query.Point     // nil: to be sorted
}

func newMemory() *memory { return &memory{series: map[string]*memorySeries{}} }

// add writes a sample, in any order. As in Prometheus the first of a moment stays.
func (m *memory) add(labels query.Labels, at time.Time, v float64) {
	key := labels.Key()
	s := m.series[key]
	if s == nil {
		s = &memorySeries{labels: labels, points: map[int64]float64{}}
		m.series[key] = s
	}
	if _, ok := s.points[at.UnixMilli()]; !ok {
		s.points[at.UnixMilli()] = v
		s.sorted = nil
	}
}

// late returns the store as it was before some of the scrapes and batches came, of any
// moment.
func (m *memory) late(r *rand.Rand) *memory {
	out := newMemory()
	came := map[string]bool{}
	for _, key := range slices.Sorted(maps.Keys(m.series)) {
		s := m.series[key]
		for _, p := range s.list() {
			batch := fmt.Sprint(s.labels["instance"], s.labels["gpu_uuid"], p.Time.UnixMilli())
			if _, ok := came[batch]; !ok {
				came[batch] = r.IntN(10) > 0
			}
			if came[batch] {
				out.add(s.labels, p.Time, p.Value)
			}
		}
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

// window returns the points in (from, to], markers too.
func (s *memorySeries) window(from, to time.Time) []query.Point {
	list := s.list()
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
	selectorText = regexp.MustCompile(`^([a-z_]+)(?:\{(.*)\})?$`)
	matcherText  = regexp.MustCompile(`([a-zA-Z_0-9]+)(=~|!=|=)("(?:[^"\\]|\\.)*"),?`)
	callText     = regexp.MustCompile(`^([a-z_]+)\((.*)\[([0-9]+)ms\]\)$`)
)

func (m *memory) find(selector string) ([]*memorySeries, error) {
	parts := selectorText.FindStringSubmatch(selector)
	if parts == nil {
		return nil, fmt.Errorf("%s is no selector", selector)
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
		return nil, fmt.Errorf("%s: cannot read %q", selector, rest)
	}
	var out []*memorySeries
	for _, s := range m.series {
		ok := s.labels["__name__"] == parts[1]
		for _, x := range list {
			switch v := s.labels[x.label]; x.op {
			case "=":
				ok = ok && v == x.value
			case "!=":
				ok = ok && v != x.value
			default:
				ok = ok && x.re.MatchString(v)
			}
		}
		if ok {
			out = append(out, s)
		}
	}
	return out, nil
}

func (m *memory) Instant(_ context.Context, expr string, at time.Time) ([]query.Sample, error) {
	m.asked++
	if call := callText.FindStringSubmatch(expr); call != nil {
		return m.call(call[1], call[2], call[3], at)
	}
	list, err := m.find(expr)
	if err != nil {
		return nil, err
	}
	var out []query.Sample
	for _, s := range list {
		if w := s.window(at.Add(-5*time.Minute), at); len(w) > 0 && !math.IsNaN(w[len(w)-1].Value) {
			out = append(out, query.Sample{Labels: s.labels, Time: at, Value: w[len(w)-1].Value})
		}
	}
	return out, nil
}

func (m *memory) call(f, selector, ms string, at time.Time) ([]query.Sample, error) {
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
		for _, p := range s.window(at.Add(-time.Duration(d)*time.Millisecond), at) {
			if !math.IsNaN(p.Value) {
				values = append(values, p.Value)
			}
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
		case "resets":
			v = 0
			for i := 1; i < len(values); i++ {
				if values[i] < values[i-1] {
					v++
				}
			}
		default:
			return nil, fmt.Errorf("%s is not known", f)
		}
		out = append(out, query.Sample{Labels: labels, Time: at, Value: v})
	}
	return out, nil
}

func (m *memory) Range(ctx context.Context, expr string, start, end time.Time, step time.Duration) ([]query.Series, error) {
	inner, ok := strings.CutPrefix(expr, "count(")
	if !ok {
		return nil, fmt.Errorf("%s is not known", expr)
	}
	var points []query.Point
	for t := start; !t.After(end); t = t.Add(step) {
		list, err := m.Instant(ctx, strings.TrimSuffix(inner, ")"), t)
		if err != nil {
			return nil, err
		}
		if len(list) > 0 {
			points = append(points, query.Point{Time: t, Value: float64(len(list))})
		}
	}
	if points == nil {
		return nil, nil
	}
	return []query.Series{{Labels: query.Labels{}, Points: points}}, nil
}

func (m *memory) Raw(_ context.Context, selector string, from, to time.Time) ([]query.Series, error) {
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
