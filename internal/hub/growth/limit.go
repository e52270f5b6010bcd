package growth

import (
	"context"
	"fmt"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
)

// maxLiteral bounds the label bytes that a query makes of its own text. They do not depend on
// the selected series, of which there may be none.
const maxLiteral = 1 << 20

// ErrBytes is the error of a query that produces too many bytes of labels.
type ErrBytes struct{ Limit int64 }

// Error implements error.
func (e ErrBytes) Error() string {
	return fmt.Sprintf("query would produce more than %d MiB of labels: select fewer series, or nest and repeat less in label_replace, label_join and count_values", e.Limit>>20)
}

// Check rejects a query that is too large whatever it selects.
func (g Growth) Check() error {
	if !(g.Literal <= maxLiteral) {
		return ErrBytes{maxLiteral}
	}
	return nil
}

// Limit returns a view of q for one query, which fails with ErrBytes when the labels of the
// query exceed limit bytes.
func (g Growth) Limit(q storage.Queryable, limit int64) storage.Queryable {
	return &queryable{Queryable: q, budget: &budget{Growth: g, limit: limit}}
}

type queryable struct {
	storage.Queryable

	budget *budget
}

// Querier implements storage.Queryable.
func (q *queryable) Querier(mint, maxt int64) (storage.Querier, error) {
	inner, err := q.Queryable.Querier(mint, maxt)
	if err != nil {
		return nil, err
	}
	return &querier{inner, q.budget}, nil
}

type querier struct {
	storage.Querier

	budget *budget
}

// Select implements storage.Querier.
func (q *querier) Select(ctx context.Context, sorted bool, hints *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	return &seriesSet{SeriesSet: q.Querier.Select(ctx, sorted, hints, matchers...), budget: q.budget}
}

// seriesSet charges for each series. The engine reads one set after the other.
type seriesSet struct {
	storage.SeriesSet

	budget *budget
	at     storage.Series
	err    error
}

// Next implements storage.SeriesSet.
func (s *seriesSet) Next() bool {
	if s.err != nil || !s.SeriesSet.Next() {
		return false
	}
	s.at = s.SeriesSet.At()
	s.err = s.budget.charge(s.at.Labels())
	return s.err == nil
}

// At implements storage.SeriesSet.
func (s *seriesSet) At() storage.Series { return s.at }

// Err implements storage.SeriesSet.
func (s *seriesSet) Err() error {
	if s.err != nil {
		return s.err
	}
	return s.SeriesSet.Err()
}

// budget is what a query has left. It is not safe for concurrent use.
type budget struct {
	Growth

	limit         int64
	series, bytes float64
	longest       float64 // label value, in bytes; another series' may be joined to each
}

func (b *budget) charge(l labels.Labels) error {
	b.series++
	b.bytes += float64(l.ByteSize())
	if b.PerByte > 0 {
		l.Range(func(x labels.Label) { b.longest = max(b.longest, float64(len(x.Value))) })
	}
	if b.Copies*b.bytes+b.series*(b.PerByte*b.longest+b.Fixed) > float64(b.limit) {
		return ErrBytes{b.limit}
	}
	return nil
}
