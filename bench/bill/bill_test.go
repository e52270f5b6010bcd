//go:build bench

package bill

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/hub/view"
	"github.com/gpumeter/gpumeter/internal/query"
)

var (
	fleets   = flag.String("fleets", "100x30@1m,1000x1@1m,1000x30@1m", "GPUs x days @ distance of the samples, separated by commas")
	quotas   = flag.Int("quotas", 100, "number of quotas")
	samples  = flag.Bool("samples", true, "also compute the bill from samples, without kept days")
	data     = flag.String("data", "", "a folder for the fleets, which the next run uses again; they are written anew if it is empty")
	chromium = flag.Bool("chromium", false, "also open the Cost page of the shipped binary in Chromium")
)

const prices = "currency: EUR\nprices: [{match: {model: H100}, rates: [{from: 2026-01-01, kind: on_demand, per_hour: 2}]}]\n"

// retention is how long samples are kept: a month and the current day.
const retention = 32 * day

// plain hides that a store keeps days.
type plain struct{ query.Store }

func TestBill(t *testing.T) {
	p, err := cost.Parse([]byte(prices))
	if err != nil {
		t.Fatal(err)
	}
	text := "quotas:\n"
	for i := range *quotas {
		text += fmt.Sprintf("- {name: q%d, match: {team: %s}, gpu_hours_per_month: 1000000}\n", i, teams[i%len(teams)])
	}
	limits, err := cost.ParseQuotas([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%-16s %10s %12s %12s %12s %12s %12s %12s\n", "GPUs x days", "samples", "from samples", "first time", "kept, cold", "kept, warm", fmt.Sprint(*quotas, " quotas"), "month rows")
	for text := range strings.SplitSeq(*fleets, ",") {
		s := parse(t, text)
		dir, end, n := s.history(t, text)
		from := s.begin(end)
		store := open(t, dir)
		took := func(f func() error) time.Duration {
			t.Helper()
			begin := time.Now()
			if err := f(); err != nil {
				t.Fatal(err)
			}
			return time.Since(begin).Round(time.Millisecond)
		}
		var last cost.Statement
		bill := func(of query.Store) func() error {
			return func() (err error) {
				last, err = cost.Bill(t.Context(), of, p, from, end, cost.Options{})
				return err
			}
		}
		slow, long := "-", end.Sub(from) > retention
		if *samples && !long {
			slow = took(bill(plain{store})).String()
		}
		first := took(bill(store))
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
		store = open(t, dir)
		cold, warm := took(bill(store)), took(bill(store))
		accounts := view.Cost(store, p, limits)
		checked := took(func() error { _, err := accounts.Quotas(t.Context(), end); return err })
		fmt.Fprintf(&b, "%-16s %10d %12s %12s %12s %12s %12s %12d\n", fmt.Sprintf("%d x %d", s.gpus, s.days), n, slow, first, cold, warm, checked, len(last.Rows))
		t.Log("\n" + b.String())
		if long {
			s.lived(t, dir, store, p, &last)
		}
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
		if *chromium {
			t.Logf("Cost page of %s in Chromium:%s", text, page(t, dir, from, end))
		}
	}
}

func open(t *testing.T, dir string) *hub.Store {
	t.Helper()
	s, err := hub.Open(dir, hub.Options{Retention: retention})
	if err != nil {
		t.Fatal(err)
	}
	return s
}
