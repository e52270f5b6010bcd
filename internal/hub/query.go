package hub

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/gpumeter/gpumeter/internal/hub/growth"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Instant implements query.Store. Native histograms have no value and are omitted.
func (s *Store) Instant(ctx context.Context, expr string, at time.Time) ([]query.Sample, error) {
	if q, ok := s.latestOf(expr); ok {
		if out, ok, err := s.latest(ctx, q, at); ok {
			return out, err
		}
	}
	r, done, err := s.instant(ctx, expr, at)
	if err != nil {
		return nil, err
	}
	defer done()
	switch v := r.Value.(type) {
	case promql.Vector:
		out := make([]query.Sample, 0, len(v))
		for _, x := range v {
			if x.H == nil {
				out = append(out, query.Sample{Labels: x.Metric.Map(), Time: time.UnixMilli(x.T), Value: x.F})
			}
		}
		return out, nil
	case promql.Scalar:
		return []query.Sample{{Labels: query.Labels{}, Time: time.UnixMilli(v.T), Value: v.V}}, nil
	default:
		return nil, fmt.Errorf("%s is a %s, not an instant value", expr, r.Value.Type())
	}
}

// Range implements query.Store.
func (s *Store) Range(ctx context.Context, expr string, start, end time.Time, step time.Duration) ([]query.Series, error) {
	r, done, err := s.span(ctx, expr, start, end, step)
	if err != nil {
		return nil, err
	}
	defer done()
	m, err := r.Matrix()
	if err != nil {
		return nil, err
	}
	out := make([]query.Series, 0, len(m))
	for _, x := range m {
		points := make([]query.Point, len(x.Floats))
		for i, p := range x.Floats {
			points[i] = query.Point{Time: time.UnixMilli(p.T), Value: p.F}
		}
		if len(points) > 0 {
			out = append(out, query.Series{Labels: x.Metric.Map(), Points: points})
		}
	}
	return out, nil
}

// Raw implements query.Store. Staleness markers are not samples.
func (s *Store) Raw(ctx context.Context, selector string, from, to time.Time) ([]query.Series, error) {
	matchers, err := s.parser.ParseMetricSelector(selector)
	if err != nil {
		return nil, err
	}
	q, err := s.db.Querier(from.UnixMilli()+1, to.UnixMilli())
	if err != nil {
		return nil, err
	}
	defer q.Close() //nolint:errcheck // read-only
	var out []query.Series
	set := q.Select(ctx, false, nil, matchers...)
	var it chunkenc.Iterator
	left := s.opt.MaxSamples
	for set.Next() {
		x := set.At()
		it = x.Iterator(it)
		var points []query.Point
		for kind := it.Next(); kind != chunkenc.ValNone; kind = it.Next() {
			if kind != chunkenc.ValFloat {
				continue
			}
			if t, v := it.At(); !value.IsStaleNaN(v) {
				points = append(points, query.Point{Time: time.UnixMilli(t), Value: v})
			}
		}
		if err := it.Err(); err != nil {
			return nil, err
		}
		if len(points) > 0 {
			out = append(out, query.Series{Labels: x.Labels().Map(), Points: points})
		}
		if left -= len(points); left < 0 {
			s.refused.Add(QueryLimit, 1)
			return nil, promql.ErrTooManySamples("reading " + selector)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return out, set.Err()
}

// instant evaluates expr. The result is valid until done is called.
func (s *Store) instant(ctx context.Context, expr string, at time.Time) (_ *promql.Result, done func(), _ error) {
	db, err := s.limited(expr, 0, 0)
	if err != nil {
		return nil, nil, s.judge(err)
	}
	q, err := s.engine.NewInstantQuery(ctx, db, nil, expr, at)
	return s.exec(ctx, q, err)
}

func (s *Store) span(ctx context.Context, expr string, start, end time.Time, step time.Duration) (_ *promql.Result, done func(), _ error) {
	if step <= 0 {
		return nil, nil, errors.New("step must be positive")
	}
	db, err := s.limited(expr, end.Sub(start), step)
	if err != nil {
		return nil, nil, s.judge(err)
	}
	q, err := s.engine.NewRangeQuery(ctx, db, nil, expr, start, end, step)
	return s.exec(ctx, q, err)
}

// limited returns a view of the database for one query, which bounds the bytes of its labels.
func (s *Store) limited(expr string, span, step time.Duration) (storage.Queryable, error) {
	g := growth.Plain
	// Only these make labels. Parsing takes longer than the search.
	if strings.Contains(expr, "label_") || strings.Contains(strings.ToLower(expr), "count_values") {
		e, err := s.parser.ParseExpr(expr)
		if err != nil {
			return nil, err
		}
		g = growth.Of(e, span, step)
	}
	return g.Limit(s.db, s.opt.QueryBytes), g.Check()
}

func (s *Store) exec(ctx context.Context, q promql.Query, err error) (*promql.Result, func(), error) {
	if err != nil {
		return nil, nil, s.judge(err)
	}
	r := q.Exec(ctx)
	if r.Err != nil {
		q.Close()
		return nil, nil, s.judge(r.Err)
	}
	return r, q.Close, nil
}

// judge counts a query that was refused.
func (s *Store) judge(err error) error {
	var samples promql.ErrTooManySamples
	var timeout promql.ErrQueryTimeout
	var size growth.ErrBytes
	switch {
	case errors.As(err, &samples), errors.As(err, &size):
		s.refused.Add(QueryLimit, 1)
	case errors.As(err, &timeout), errors.Is(err, context.DeadlineExceeded):
		s.refused.Add(QueryTimeout, 1)
	}
	return err
}

// Series returns the label sets of the series that match any of the selectors in [from, to],
// at most limit, and whether there were more.
func (s *Store) Series(ctx context.Context, selectors []string, from, to time.Time, limit int) ([]Labels, bool, error) {
	sets, err := s.parser.ParseMetricSelectors(selectors)
	if err != nil {
		return nil, false, err
	}
	q, err := s.db.Querier(from.UnixMilli(), to.UnixMilli())
	if err != nil {
		return nil, false, err
	}
	defer q.Close() //nolint:errcheck // read-only
	seen := map[uint64][]Labels{}
	var out []Labels
	for _, matchers := range sets {
		set := q.Select(ctx, true, seriesHints(from, to), matchers...)
		for set.Next() {
			l := set.At().Labels()
			if contains(seen[l.Hash()], l) {
				continue
			}
			if len(out) == limit {
				return out, true, nil
			}
			seen[l.Hash()] = append(seen[l.Hash()], l)
			out = append(out, l)
		}
		if err := set.Err(); err != nil {
			return nil, false, err
		}
	}
	return out, false, nil
}

func contains(all []Labels, l Labels) bool {
	for _, x := range all {
		if labels.Equal(x, l) {
			return true
		}
	}
	return false
}

// LabelNames returns the label names of the series that match any of the selectors, or of
// all series if there are no selectors.
func (s *Store) LabelNames(ctx context.Context, selectors []string, from, to time.Time, limit int) ([]string, bool, error) {
	return s.labels(ctx, selectors, from, to, limit, func(q labelQuerier, m ...*labels.Matcher) ([]string, error) {
		names, _, err := q.LabelNames(ctx, nil, m...)
		return names, err
	})
}

// LabelValues returns the values of one label; see LabelNames.
func (s *Store) LabelValues(ctx context.Context, name string, selectors []string, from, to time.Time, limit int) ([]string, bool, error) {
	return s.labels(ctx, selectors, from, to, limit, func(q labelQuerier, m ...*labels.Matcher) ([]string, error) {
		values, _, err := q.LabelValues(ctx, name, nil, m...)
		return values, err
	})
}
