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
	b := &biller{prices: p, rows: map[fleet.RowKey]*billed{}}
	empty := false
	for i, edge := range edges[1:] {
		b.at = edges[i]
		if err := meter.Between(ctx, edges[i], edge, b.count); err != nil {
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
	rows   map[fleet.RowKey]*billed
	free   []billed // for further rows: a month of a large fleet has hundreds of thousands
}

// billed is a row, and how it is priced from an edge on.
type billed struct {
	Row
	key    string
	kind   string // of the holder
	tariff tariff
	from   time.Time
}

// count adds the usage between two states of the counters to a row.
func (b *biller) count(key fleet.RowKey, labels query.Labels, from, to fleet.Sums) {
	r := b.rows[key]
	if r == nil {
		if len(b.free) == 0 {
			b.free = make([]billed, min(1024, 16+len(b.rows)))
		}
		r, b.free = &b.free[0], b.free[1:]
		*r = billed{Row: Row{Labels: labels}, key: key.Value(), kind: labels[fleet.LabelKind]}
		b.rows[key] = r
	}
	if !r.from.Equal(b.at) {
		r.from, r.tariff = b.at, tariff{unallocated: r.kind == fleet.KindUnallocated}
		r.tariff.price, r.tariff.priced = b.prices.At(labels, b.at)
		r.tariff.power, _ = b.prices.PowerAt(labels, b.at)
	}
	r.Amounts = r.Add(r.tariff.at(to))
	if from != (fleet.Sums{}) { // whole days begin at zero
		r.Amounts = r.Add(r.tariff.at(from).neg())
	}
}
