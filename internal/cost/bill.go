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

// Options select what a bill is about. The zero value selects the whole fleet.
type Options = fleet.MeterOptions

// maxEdges bounds a period: a price that changes every hour of a quarter has fewer edges.
const maxEdges = 5000

// Bill returns what was used in (from, to], to the millisecond, and what it cost. For every
// moment between, the bills of the two parts add up to that of the whole.
func Bill(ctx context.Context, store query.Store, p Prices, from, to time.Time, o Options) (Statement, error) {
	from, to = from.UTC().Truncate(time.Millisecond), to.UTC().Truncate(time.Millisecond)
	if !from.Before(to) {
		return Statement{}, errors.New("the period of a bill must end after it begins")
	}
	edges := p.edges(from, to)
	if len(edges) > maxEdges {
		return Statement{}, fmt.Errorf("prices change %d times in this period, over %d: ask for a shorter one", len(edges), maxEdges)
	}
	meter := fleet.NewMeter(store, o)
	b := &biller{prices: p, rows: map[string]*Row{}, tariffs: map[*Row]tariff{}}
	empty := false
	for i, edge := range edges[1:] {
		clear(b.tariffs)
		b.at = edges[i]
		if err := meter.Between(ctx, edges[i], edge, b.count); err != nil {
			return Statement{}, err
		}
		empty = empty || i == 0 && !meter.Known()
	}
	s := b.statement(from, to)
	s.Missing.Unseen, s.Missing.Refused = meter.Unseen(), meter.Refused()
	if empty && len(s.Rows) > 0 {
		var err error
		if s.Since, err = meter.Since(ctx, from, to); err != nil {
			return Statement{}, err
		}
	}
	return s, nil
}

// edges returns the ends of a period, all changes of prices in it, and each midnight, so
// that no query covers more than a day.
func (p Prices) edges(from, to time.Time) []time.Time {
	out := append(fleet.Days(from, to), from, to)
	for _, t := range p.changes {
		if t.After(from) && t.Before(to) {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, time.Time.Compare)
	return slices.CompactFunc(out, time.Time.Equal)
}

// biller prices what a meter counts.
type biller struct {
	prices  Prices
	at      time.Time // the edge whose prices hold
	rows    map[string]*Row
	tariffs map[*Row]tariff // since that edge
}

// count adds what was used between two states of the counters to a row.
func (b *biller) count(labels query.Labels, from, to fleet.Sums) {
	key := labels.Key()
	r := b.rows[key]
	if r == nil {
		r = &Row{Labels: labels}
		b.rows[key] = r
	}
	t, ok := b.tariffs[r]
	if !ok {
		t.unallocated = labels[fleet.LabelKind] == fleet.KindUnallocated
		t.price, t.priced = b.prices.At(labels, b.at)
		t.power, _ = b.prices.PowerAt(labels, b.at)
		b.tariffs[r] = t
	}
	r.Amounts = r.Add(t.between(from, to))
}
