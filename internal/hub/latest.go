package hub

import (
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/kahansum"

	"github.com/gpumeter/gpumeter/internal/query"
)

// latest is a question that the page asks of every series of a fleet: a plain selector, or
// sums, means, counts, lowest or highest of one. Its answer is the engine's, to the bit, for
// half the work: no series is copied, and none is expanded into a matrix.
type latest struct {
	expr     string
	selector []*labels.Matcher
	groups   []*parser.AggregateExpr // the innermost first
}

// latestOf reads expr, and says no to what only the engine can answer.
func (s *Store) latestOf(expr string) (*latest, bool) {
	e, err := s.parser.ParseExpr(expr)
	if err != nil {
		return nil, false // the engine says what is wrong
	}
	q := &latest{expr: expr}
	for {
		switch n := e.(type) {
		case *parser.ParenExpr:
			e = n.Expr
		case *parser.AggregateExpr:
			switch n.Op {
			case parser.SUM, parser.AVG, parser.MIN, parser.MAX, parser.COUNT:
			default:
				return nil, false
			}
			q.groups = append(q.groups, n)
			e = n.Expr
		case *parser.VectorSelector:
			q.selector = n.LabelMatchers
			slices.Reverse(q.groups)
			return q, n.OriginalOffset == 0 && n.OriginalOffsetExpr == nil && n.Timestamp == nil && n.StartOrEnd == 0 && !n.Anchored && !n.Smoothed
		default:
			return nil, false
		}
	}
}

// element is one series, or the first of a group of them. Its labels are those of the
// series: what is left of them is the same for all of a vector.
type element struct {
	labels labels.Labels
	value  float64

	rest  float64 // of the sum, which value has not
	count float64
}

// left says which labels elements have.
type left struct {
	only  bool     // those in names, otherwise all others
	names []string // in order
}

func (l left) has(name string) bool {
	_, found := slices.BinarySearch(l.names, name)
	return found == l.only
}

// after returns what a grouping leaves of labels of which l is left.
func (l left) after(e *parser.AggregateExpr) left {
	if e.Without {
		gone := append([]string{model.MetricNameLabel}, e.Grouping...)
		if l.only {
			return left{true, slices.DeleteFunc(slices.Clone(l.names), func(n string) bool { return slices.Contains(gone, n) })}
		}
		gone = append(gone, l.names...)
		slices.Sort(gone)
		return left{false, slices.Compact(gone)}
	}
	kept := slices.DeleteFunc(slices.Clone(e.Grouping), func(n string) bool { return !l.has(n) })
	slices.Sort(kept)
	return left{true, slices.Compact(kept)}
}

// key is what is left of labels, as bytes.
func (l left) key(buf []byte, of labels.Labels) []byte {
	if l.only {
		return of.BytesWithLabels(buf, l.names...)
	}
	return of.BytesWithoutLabels(buf, l.names...)
}

func (l left) labels(of labels.Labels) query.Labels {
	if !l.only {
		out := make(query.Labels, of.Len())
		of.Range(func(x labels.Label) {
			if l.has(x.Name) {
				out[x.Name] = x.Value
			}
		})
		return out
	}
	out := make(query.Labels, len(l.names))
	for _, name := range l.names {
		if v := of.Get(name); v != "" {
			out[name] = v
		}
	}
	return out
}

// latest answers q at a moment. It says no if there are histograms, or numbers too large
// to be added.
func (s *Store) latest(ctx context.Context, q *latest, at time.Time) (_ []query.Sample, ok bool, _ error) {
	ctx, cancel := context.WithTimeout(ctx, s.opt.QueryTimeout)
	defer cancel()
	if _, err := s.turns.Insert(ctx, q.expr); err != nil {
		return nil, true, s.late(err)
	}
	defer s.turns.Delete(0)
	buffer, _ := s.elements.Get().(*[]element)
	if buffer == nil {
		buffer = new([]element)
	}
	defer func() {
		clear(*buffer) // what series are called is nobody's to keep
		s.elements.Put(buffer)
	}()
	vector, ok, err := s.newest(ctx, q, at.UnixMilli(), (*buffer)[:0])
	*buffer = vector
	if err != nil || !ok {
		return nil, ok, err
	}
	l := left{}
	for _, g := range q.groups {
		l = l.after(g)
		if vector, ok = aggregate(g.Op, l, vector); !ok {
			return nil, false, nil
		}
	}
	out := make([]query.Sample, len(vector))
	if l.only && len(l.names) == 1 {
		s.names.label(l.names[0], vector, out)
	}
	moment := time.UnixMilli(at.UnixMilli())
	for i := range vector {
		out[i].Time, out[i].Value = moment, vector[i].value
		if out[i].Labels == nil {
			out[i].Labels = l.labels(vector[i].labels)
		}
	}
	return out, true, nil
}

// names keeps the labels of what is grouped by one of them: the page asks for several things
// by device, of the same devices, again and again.
type names struct {
	mu   sync.Mutex
	kept map[[2]string]query.Labels
}

// maxNames that are kept. If there are more, all are forgotten.
const maxNames = 100_000

// label gives samples the labels of elements that have one.
func (n *names) label(name string, of []element, to []query.Sample) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.kept == nil || len(n.kept)+len(of) > maxNames {
		n.kept = map[[2]string]query.Labels{}
	}
	for i := range of {
		value := of[i].labels.Get(name)
		if value == "" {
			continue
		}
		key := [2]string{name, value}
		l, ok := n.kept[key]
		if !ok && len(n.kept) < maxNames {
			key[0], key[1] = strings.Clone(name), strings.Clone(value) // the rest of the series is not kept
			l = query.Labels{key[0]: key[1]}
			n.kept[key] = l
		}
		to[i].Labels = l
	}
}

// late is the engine's error of a query that took too long.
func (s *Store) late(err error) error {
	if err == context.DeadlineExceeded { //nolint:errorlint // a context's error is that one
		return s.judge(promql.ErrQueryTimeout("query execution"))
	}
	return s.judge(promql.ErrQueryCanceled("query execution"))
}

// newest adds the newest sample, of those that are not too old, of each series to out.
func (s *Store) newest(ctx context.Context, q *latest, at int64, out []element) (_ []element, ok bool, _ error) {
	from := at - lookback.Milliseconds() + 1
	db, err := s.db.Querier(from, at)
	if err != nil {
		return out, true, err
	}
	defer db.Close() //nolint:errcheck // it was only read
	set := db.Select(ctx, false, &storage.SelectHints{Start: from, End: at, DisableTrimming: true}, q.selector...)
	var it chunkenc.Iterator
	for n := 0; set.Next(); n++ {
		if n%1024 == 1023 && ctx.Err() != nil {
			return out, true, s.late(ctx.Err())
		}
		x := set.At()
		it = x.Iterator(it)
		last := math.Float64frombits(value.StaleNaN)
		for kind := it.Next(); kind != chunkenc.ValNone; kind = it.Next() {
			if kind != chunkenc.ValFloat {
				return out, false, nil
			}
			t, v := it.At()
			if t > at {
				break
			}
			if t >= from {
				last = v
			}
		}
		if err := it.Err(); err != nil {
			return out, true, err
		}
		if value.IsStaleNaN(last) {
			continue
		}
		if len(out) == s.opt.MaxSamples {
			return out, true, s.judge(promql.ErrTooManySamples("query execution"))
		}
		out = append(out, element{labels: x.Labels(), value: last})
	}
	if err := set.Err(); err != nil {
		if ctx.Err() != nil {
			err = s.late(ctx.Err())
		}
		return out, true, err
	}
	return out, true, nil
}

// aggregate puts elements of which the same is left together, as the engine does.
func aggregate(op parser.ItemType, l left, in []element) (_ []element, ok bool) {
	groups := make(map[string]int, len(in))
	out := in[:0] // it is never ahead of what is read
	var buf []byte
	for _, e := range in {
		var i int
		var seen bool
		if l.only && len(l.names) == 1 { // most are by device, whose name is there already
			key := e.labels.Get(l.names[0])
			if i, seen = groups[key]; !seen {
				groups[key] = len(out)
			}
		} else {
			buf = l.key(buf[:0], e.labels)
			if i, seen = groups[string(buf)]; !seen {
				groups[string(buf)] = len(out)
			}
		}
		if !seen {
			e.rest, e.count = 0, 1
			out = append(out, e)
			continue
		}
		g := &out[i]
		g.count++
		switch op {
		case parser.SUM, parser.AVG:
			g.value, g.rest = kahansum.Inc(e.value, g.value, g.rest)
			if op == parser.AVG && math.IsInf(g.value, 0) {
				return nil, false // the engine has another way
			}
		case parser.MIN:
			if g.value > e.value || math.IsNaN(g.value) {
				g.value = e.value
			}
		case parser.MAX:
			if g.value < e.value || math.IsNaN(g.value) {
				g.value = e.value
			}
		}
	}
	for i := range out {
		g := &out[i]
		switch op {
		case parser.SUM:
			g.value += g.rest
		case parser.AVG:
			g.value = g.value/g.count + g.rest/g.count
		case parser.COUNT:
			g.value = g.count
		}
	}
	return out, true
}
