package tokens

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/serving"
	"github.com/gpumeter/gpumeter/internal/query"
)

const (
	day = 24 * time.Hour
	// settled is how long after its end a day can change: a store takes samples up to a day late. Until then it is
	// read again after a while.
	settled = day
	again   = 10 * time.Minute
	// maxKept bounds the rows of days that are kept: a month of 1,500 engines.
	maxKept = 50_000
)

// Biller returns the bill of a period.
type Biller func(ctx context.Context, from, to time.Time) (*cost.Statement, error)

// Reader reads what inference engines counted and what that cost. It keeps the days that are over, so that a month is not
// read as a whole each time. It is safe for concurrent use.
//
// A period is the sum of its days (UTC), each of which is divided by itself: so the days of a month add up to it, model by
// model.
type Reader struct {
	store  query.Store
	bill   Biller
	o      fleet.MeterOptions
	weight InputWeight

	mu   sync.Mutex
	kept map[time.Time]*keptDay // by midnight
	rows int                    // of kept
}

// keptDay is what was served on a day.
type keptDay struct {
	*Bill
	made, used time.Time
}

// NewReader returns a reader of a store.
func NewReader(store query.Store, bill Biller, o fleet.MeterOptions, w InputWeight) *Reader {
	return &Reader{store: store, bill: bill, o: o, weight: w, kept: map[time.Time]*keptDay{}}
}

// Read returns what engines counted in (from, to], and what it cost.
func (r *Reader) Read(ctx context.Context, from, to, now time.Time) (*Bill, error) {
	from, to = from.UTC(), to.UTC()
	sum := &summer{rows: map[servedKey]*Row{}, rest: map[servedKey]*Row{}}
	counters := serving.NewTokenReader(r.store, r.o)
	edges := append(append([]time.Time{from}, fleet.Days(from, to)...), to)
	for i, end := range edges[1:] {
		begin := edges[i]
		whole := end.Sub(begin) == day && !end.After(now)
		b := r.known(begin, now)
		if !whole || b == nil {
			var err error
			if b, err = r.day(ctx, counters, begin, end); err != nil {
				return nil, err
			}
			if whole && (len(b.Rows) > 0 || now.Sub(end) >= settled) { // a store that is being filled has no engines yet
				r.keep(begin, now, b)
			}
		}
		sum.add(b)
	}
	out := sum.bill()
	out.From, out.To, out.InputWeight = from, to, r.weight
	return out, nil
}

// day returns a day or a part of one.
func (r *Reader) day(ctx context.Context, counters *serving.TokenReader, from, to time.Time) (*Bill, error) {
	use, err := counters.Day(ctx, from, to)
	if err != nil {
		return nil, err
	}
	var parts []cost.Statement
	for _, end := range append(use.Changes(from, to), to) {
		if len(use.Works) == 0 {
			break // no GPU serves
		}
		part, err := r.bill(ctx, from, end)
		if err != nil {
			return nil, err
		}
		parts = append(parts, *part)
		from = end
	}
	return Divide(parts, use, r.weight), nil
}

// known returns a day that is kept, nil if it has to be read.
func (r *Reader) known(midnight, now time.Time) *Bill {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.kept[midnight]
	if k == nil || k.made.Before(midnight.Add(day+settled)) && now.Sub(k.made) > again {
		return nil
	}
	k.used = now
	return k.Bill
}

// keep keeps a day. The days that were not used for the longest time make room for it.
func (r *Reader) keep(midnight, now time.Time, b *Bill) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(midnight)
	for len(r.kept) > 0 && r.rows+len(b.Rows)+len(b.Rest) > maxKept {
		r.drop(slices.MinFunc(slices.Collect(maps.Keys(r.kept)), func(x, y time.Time) int { return r.kept[x].used.Compare(r.kept[y].used) }))
	}
	// Most engines have the same labels on most days: they are kept once.
	for _, near := range []time.Time{midnight.Add(-day), midnight.Add(day)} {
		if k := r.kept[near]; k != nil {
			same(b.Rows, k.Rows)
			same(b.Rest, k.Rest)
		}
	}
	r.kept[midnight] = &keptDay{b, now, now}
	r.rows += len(b.Rows) + len(b.Rest)
}

// drop forgets a day.
func (r *Reader) drop(midnight time.Time) {
	if k := r.kept[midnight]; k != nil {
		r.rows -= len(k.Rows) + len(k.Rest)
		delete(r.kept, midnight)
	}
}

// same lets rows share the equal labels of other rows. Both are in order of their keys.
func same(rows, others []Row) {
	for i := range rows {
		j, ok := slices.BinarySearchFunc(others, rows[i].key, func(o Row, key servedKey) int { return o.key.compare(key) })
		if ok && maps.Equal(rows[i].Labels, others[j].Labels) {
			rows[i].Labels = others[j].Labels
		}
	}
}

// summer adds up days.
type summer struct {
	out        Bill
	rows, rest map[servedKey]*Row
}

func (s *summer) add(b *Bill) {
	for _, of := range []struct {
		sums map[servedKey]*Row
		rows []Row
	}{{s.rows, b.Rows}, {s.rest, b.Rest}} {
		for i := range of.rows {
			r := &of.rows[i]
			x := of.sums[r.key]
			if x == nil {
				x = &Row{Engine: r.Engine, key: r.key}
				of.sums[r.key] = x
			}
			x.Labels, x.Amounts, x.Tokens, x.unbilled = r.Labels, x.Add(r.Amounts), x.Plus(r.Tokens), x.unbilled+r.unbilled
			x.paid, x.metered = x.paid.plus(r.paid.Amounts, r.paid.Tokens), x.metered.plus(r.metered.Amounts, r.metered.Tokens)
			x.on(r.devices...)
		}
	}
	if b.Currency != "" {
		s.out.Currency = b.Currency
	}
	s.out.Remote += b.Remote
	s.out.Missed += b.Missed
	s.out.Refused += b.Refused
}

func (s *summer) bill() *Bill {
	for list, of := range map[*[]Row]map[servedKey]*Row{&s.out.Rows: s.rows, &s.out.Rest: s.rest} {
		for _, key := range slices.SortedFunc(maps.Keys(of), servedKey.compare) {
			*list = append(*list, *of[key])
		}
	}
	return &s.out
}
