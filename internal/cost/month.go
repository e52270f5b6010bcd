package cost

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/query"
)

// Month is the running bill of the current month for a caller that polls it: the part before
// yesterday is queried once a day. It is not safe for concurrent use.
type Month struct {
	begin, until time.Time // period of the cached part
	prices       []byte    // price file of the cached part
	rows         []Row
}

// Bill returns the rows from the start of the month of at, in its time zone, up to at. A row may
// occur twice, once in the cached part. Samples arrive up to a day late, so nothing before
// yesterday changes, except by other prices.
func (m *Month) Bill(ctx context.Context, store query.Store, p Prices, at time.Time, o Options) (Statement, error) {
	begin := MonthOf(at)
	until := Midnight(at.Year(), at.Month(), at.Day()-1, at.Location())
	if until.Before(begin) {
		until = begin
	}
	if !m.begin.Equal(begin) || !m.until.Equal(until) || !bytes.Equal(m.prices, p.text) {
		var rows []Row
		if begin.Before(until) {
			s, err := Bill(ctx, store, p, begin, until, o)
			if err != nil {
				return Statement{}, err
			}
			rows = s.Rows
		}
		m.begin, m.until, m.prices, m.rows = begin, until, p.text, rows
	}
	if !until.Before(at) {
		return Statement{}, nil // the month begins at this moment
	}
	s, err := Bill(ctx, store, p, until, at, o)
	if err != nil {
		return Statement{}, err
	}
	s.Rows = slices.Concat(m.rows, s.Rows)
	return s, nil
}
