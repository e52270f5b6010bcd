package querytest

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/query"
)

// lookback is how old a sample may be, as in Prometheus.
const lookback = 5 * time.Minute

// result is one element of a vector.
type result struct {
	labels query.Labels
	key    string // labels.Key()
	value  float64
}

// with returns the result with a value.
func (r result) with(v float64) result {
	r.value = v
	return r
}

// evaluate returns the vector of a compiled expression at a moment.
type evaluate func(at time.Time) []result

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
		ok := parts[1] == "" || s.named.labels["__name__"] == parts[1]
		for _, x := range list {
			if !ok {
				break
			}
			switch v := s.named.labels[x.label]; x.op {
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

// compile parses an expression, so that a range query parses it once and not at every step.
func (m *Memory) compile(expr string) (evaluate, error) {
	if inner, ok := strings.CutSuffix(expr, " > 0"); ok {
		eval, err := m.compile(inner)
		return func(at time.Time) []result {
			return slices.DeleteFunc(eval(at), func(r result) bool { return r.value <= 0 })
		}, err
	}
	if whole(expr) {
		return m.compile(expr[1 : len(expr)-1])
	}
	if a := aggregateText.FindStringSubmatch(expr); a != nil && whole(a[4]) {
		eval, err := m.compile(a[4])
		by, names := a[2] == "by" || a[2] == "", strings.Split(a[3], ", ")
		return func(at time.Time) []result { return aggregate(a[1], by, names, eval(at)) }, err
	}
	if call := callText.FindStringSubmatch(expr); call != nil {
		return m.call(call[1], call[2], call[3])
	}
	selector, stamp := strings.CutPrefix(expr, "timestamp(")
	if stamp {
		selector = strings.TrimSuffix(selector, ")")
	}
	list, err := m.find(selector)
	if err != nil {
		return nil, err
	}
	return func(at time.Time) []result {
		var out []result
		for _, s := range list {
			w := s.window(at.Add(-lookback), at)
			if len(w) == 0 || math.IsNaN(w[len(w)-1].Value) {
				continue
			}
			if last := w[len(w)-1]; stamp {
				out = append(out, s.named.with(float64(last.Time.UnixMilli())/1000))
			} else {
				out = append(out, s.named.with(last.Value))
			}
		}
		return out
	}, nil
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
func aggregate(op string, by bool, names []string, list []result) []result {
	var out []result
	groups, counts := map[string]int{}, map[string]float64{}
	for _, s := range list {
		labels := query.Labels{}
		for name, value := range s.labels {
			if value != "" && slices.Contains(names, name) == by && (by || name != "__name__") {
				labels[name] = value
			}
		}
		key := labels.Key()
		counts[key]++
		i, ok := groups[key]
		if !ok {
			groups[key] = len(out)
			out = append(out, result{labels, key, s.value})
			continue
		}
		switch op {
		case "sum", "avg":
			out[i].value += s.value
		case "min":
			out[i].value = min(out[i].value, s.value)
		case "max":
			out[i].value = max(out[i].value, s.value)
		}
	}
	for key, i := range groups {
		switch op {
		case "avg":
			out[i].value /= counts[key]
		case "count":
			out[i].value = counts[key]
		case "group":
			out[i].value = 1
		}
	}
	return out
}

// call compiles a function of a window.
func (m *Memory) call(name, selector, ms string) (evaluate, error) {
	d, err := strconv.ParseInt(ms, 10, 64)
	if err != nil {
		return nil, err
	}
	f, ok := functions[name]
	if !ok {
		return nil, fmt.Errorf("unknown function %s", name)
	}
	list, err := m.find(selector)
	if err != nil {
		return nil, err
	}
	return func(at time.Time) []result {
		var out []result
		for _, s := range list {
			points := s.window(at.Add(-time.Duration(d)*time.Millisecond), at)
			if slices.ContainsFunc(points, func(p query.Point) bool { return math.IsNaN(p.Value) }) {
				points = slices.DeleteFunc(slices.Clone(points), func(p query.Point) bool { return math.IsNaN(p.Value) })
			}
			if len(points) == 0 || name == "rate" && len(points) == 1 {
				continue
			}
			labels := s.bare
			if name == "last_over_time" {
				labels = s.named
			}
			out = append(out, labels.with(f(points)))
		}
		return out
	}, nil
}

// functions are those of a window with at least one point, by name.
var functions = map[string]func([]query.Point) float64{
	"last_over_time":    func(points []query.Point) float64 { return points[len(points)-1].Value },
	"count_over_time":   func(points []query.Point) float64 { return float64(len(points)) },
	"present_over_time": func([]query.Point) float64 { return 1 },
	"min_over_time":     func(points []query.Point) float64 { return fold(points, math.Min) },
	"max_over_time":     func(points []query.Point) float64 { return fold(points, math.Max) },
	"avg_over_time": func(points []query.Point) float64 {
		return fold(points, func(a, b float64) float64 { return a + b }) / float64(len(points))
	},
	"rate": func(points []query.Point) float64 { // without extrapolation
		var sum float64
		for i, p := range points[1:] {
			if sum += p.Value; p.Value >= points[i].Value {
				sum -= points[i].Value
			}
		}
		return sum / points[len(points)-1].Time.Sub(points[0].Time).Seconds()
	},
	"resets": func(points []query.Point) (n float64) {
		for i, p := range points[1:] {
			if p.Value < points[i].Value {
				n++
			}
		}
		return n
	},
}

func fold(points []query.Point, f func(a, b float64) float64) float64 {
	v := points[0].Value
	for _, p := range points[1:] {
		v = f(v, p.Value)
	}
	return v
}
