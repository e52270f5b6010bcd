package cost

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/cost/worldtest"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Catches a bill that depends on earlier bills with the same prices: rows of another period, rows out of
// order, and the rates of one row for another, in the same bill or a later one. Bills at the same time
// catch a race.
func TestBookChangesNoBill(t *testing.T) {
	t.Parallel()
	text := []byte(`currency: EUR
prices:
- {match: {model: A100, team: "*1*"}, rates: [{from: 2026-01-01, kind: on_demand, per_hour: 3}]}
- {match: {model: H100}, rates: [{from: 2026-01-01, kind: on_demand, per_hour: 4}]}
- {match: {model: "*100*"}, rates: [{from: 2026-01-01, kind: owned, capex: 30000, years: 4}]}
power:
- {match: {model: A*}, rates: [{from: 2026-01-01, per_kwh: 0.2}]}
`)
	parse := func() Prices {
		p, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	shared := parse()
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 5))
		w := worldtest.New(seed, time.Date(2026, 3, 2, 7, 0, 0, 0, time.UTC), 4*time.Hour, false).Run()
		var bills sync.WaitGroup
		for range 6 {
			from := w.Begin.Add(time.Duration(r.Int64N(int64(2 * time.Hour)))).Truncate(time.Millisecond)
			to := from.Add(time.Duration(1 + r.Int64N(int64(2*time.Hour)))).Truncate(time.Millisecond).Add(time.Second)
			bills.Go(func() {
				want, err := Bill(t.Context(), w.Store, parse(), from, to, Options{})
				if err != nil {
					t.Error(err)
				}
				got, err := Bill(t.Context(), w.Store, shared, from, to, Options{})
				if err != nil {
					t.Error(err)
				}
				if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Row{})); diff != "" {
					t.Errorf("seed %d, with and without earlier bills (-without +with):\n%s", seed, diff)
				}
				for i := range got.Rows {
					r := &got.Rows[i]
					price, ok := shared.At(r.Labels, from)
					if want := price.PerHour.Capacity(r.Time()) + price.PerKWh.Energy(r.Energy); r.Time() > 0 && ok == (r.Unpriced > 0) || max(want, r.Total())-min(want, r.Total()) > 10 {
						t.Errorf("seed %d: %v costs %v, want about %v", seed, r.Labels, r.Total(), want)
					}
				}
			})
		}
		bills.Wait()
	}
}

// Catches a row that is taken for another because two stores, or one store after another, gave them the same
// number, and books that grow for as long as the hub runs.
func TestBookRows(t *testing.T) {
	t.Parallel()
	var p Prices
	b := newBook()
	row := func(name string, number int32) *fleet.DayRow {
		l := query.Labels{fleet.LabelUUID: name}
		return &fleet.DayRow{Key: fleet.KeyOf(l), Labels: l, Number: number}
	}
	for _, tt := range []struct {
		row  *fleet.DayRow
		want int
	}{{row("a", 1), 0}, {row("b", 1), 1}, {row("a", 1), 0}, {row("b", 2), 1}, {row("c", 0), 2}, {row("c", 7), 2}, {row("a", 2), 0}} {
		if got, _ := b.find(tt.row, &p); got != tt.want {
			t.Errorf("%s with number %d is at %d, want %d", tt.row.Labels[fleet.LabelUUID], tt.row.Number, got, tt.want)
		}
	}
	books := &books{current: b}
	for i := range 20_000 {
		b.find(row(fmt.Sprint("workload ", i), int32(i)), &p)
	}
	b.sorted(6000)
	if books.take() != b {
		t.Error("a book with many rows that are billed was dropped")
	}
	for i := range 2010 {
		b.find(row(fmt.Sprint("more ", i), 0), &p)
	}
	if books.take() == b {
		t.Error("a book whose rows are no longer billed was not dropped")
	}
}
