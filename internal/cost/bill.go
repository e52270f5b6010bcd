package cost

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Options restrict a bill. The zero value bills the whole fleet.
type Options = fleet.MeterOptions

// maxEdges bounds a period: hourly price changes over a quarter have fewer edges.
const maxEdges = 5000

// Bill returns the usage and cost of (from, to], to the millisecond. Splitting the period at any
// moment yields two bills that add up to the whole.
func Bill(ctx context.Context, store query.Store, p Prices, from, to time.Time, o Options) (Statement, error) {
	from, to = from.UTC().Truncate(time.Millisecond), to.UTC().Truncate(time.Millisecond)
	if !from.Before(to) {
		return Statement{}, errors.New("the billing period must end after it begins")
	}
	edges := p.edges(from, to)
	if len(edges) > maxEdges {
		return Statement{}, fmt.Errorf("the period has %d price changes, more than %d: choose a shorter period", len(edges), maxEdges)
	}
	meter := fleet.NewMeter(store, o)
	b := newBiller(p)
	count := func(r *fleet.DayRow, from fleet.Sums) { b.count(r, from) }
	empty := false
	for i, edge := range edges[1:] {
		b.at = edges[i]
		if err := meter.Between(ctx, edges[i], edge, count); err != nil {
			return Statement{}, err
		}
		empty = empty || i == 0 && !meter.Known()
	}
	s := b.statement(from, to)
	s.Missing.Unseen, s.Missing.Refused, s.Missing.Twice = meter.Unseen(), meter.Refused(), meter.Dropped()
	if empty && len(s.Rows) > 0 {
		var err error
		if s.Since, err = meter.Since(ctx, from, to); err != nil {
			return Statement{}, err
		}
	}
	return s, nil
}

// edges returns the ends of the period and all price changes in it.
func (p Prices) edges(from, to time.Time) []time.Time {
	out := []time.Time{from, to}
	for _, t := range p.changes {
		if t.After(from) && t.Before(to) {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, time.Time.Compare)
	return slices.CompactFunc(out, time.Time.Equal)
}

// biller prices the usage that a meter reports.
type biller struct {
	prices Prices
	at     time.Time // the edge from which the prices apply
	book   *book
	rows   []billed // by place in the book
	billed int      // rows with usage
	rates  []quoted // by profile
}

// billed is the sum of a row.
type billed struct {
	Amounts
	in bool // the bill has the row
}

// quoted is a tariff from an edge on.
type quoted struct {
	tariff
	from time.Time
}

func newBiller(p Prices) *biller {
	b := &biller{prices: p, book: p.books.take()}
	b.rows = make([]billed, b.book.len())
	return b
}

// count adds the usage between two states of the counters to a row. It returns what it added, and the
// tariff.
func (b *biller) count(row *fleet.DayRow, from fleet.Sums) (Amounts, *tariff) {
	place, profile := b.book.find(row, &b.prices)
	b.rows, b.rates = extend(b.rows, place), extend(b.rates, profile)
	r, t := &b.rows[place], &b.rates[profile]
	if !r.in {
		r.in = true
		b.billed++
	}
	if !t.from.Equal(b.at) {
		t.from, t.tariff = b.at, tariff{unallocated: row.Labels[fleet.LabelKind] == fleet.KindUnallocated}
		t.price, t.priced = b.prices.At(row.Labels, b.at)
		t.power, _ = b.prices.PowerAt(row.Labels, b.at)
	}
	added := t.at(row.Sums)
	if from != (fleet.Sums{}) { // whole days begin at zero
		added = added.Add(t.at(from).neg())
	}
	r.Amounts = r.Add(added)
	return added, &t.tariff
}

// extend returns a list that has an element i.
func extend[T any](list []T, i int) []T {
	if i < len(list) {
		return list
	}
	return append(list, make([]T, i+1-len(list))...)
}
