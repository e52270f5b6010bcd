package cost

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/cost/worldtest"
	"github.com/gpumeter/gpumeter/internal/fleet"
)

// worlds is how many random fleets TestBillCannotExplode tries; make worlds sets it.
var worlds = flag.Int("worlds", defaultWorlds, "random hostile fleets to bill")

// found are worlds beyond the usual number that had a bill above what is possible.
var found = [...]uint64{118, 3606, 4225, 4626}

// Catches a bill above what is possible: two values of one sum that alternate, as two agents on one
// host, a clock that is set right, or two nodes with the same device ID write them, each counted as a
// restart. One GPU and a second agent for ten minutes made 1,210 hours out of 20. Whatever comes, no
// device has more than an hour in an hour, and a bill equals its parts.
func TestBillCannotExplode(t *testing.T) {
	t.Parallel()
	for seed := range uint64(*worlds) + uint64(len(found)) {
		if n := seed - uint64(*worlds); seed >= uint64(*worlds) {
			seed = found[n]
		}
		r := rand.New(rand.NewPCG(seed, 2))
		f := worldtest.New(seed, noon.Add(11*time.Hour), time.Duration(40+r.IntN(100))*time.Minute, false).Hostile().Run()
		store := f.Store
		if r.IntN(2) == 0 {
			store = store.Late(r)
		}
		from, to := f.Begin.Add(-20*time.Minute), f.End.Add(20*time.Minute)
		fits := func(b Statement, rounding Seconds) {
			for device, held := range byDevice(b) {
				if most := Seconds(b.To.Sub(b.From).Microseconds()); held > most+rounding {
					t.Errorf("world %d: %q has %s between %s and %s", seed, device, held.Duration(), b.From, b.To)
				}
			}
		}
		for at := from.Truncate(time.Hour); at.Before(to); at = at.Add(time.Hour) {
			fits(mustBill(t, store, Prices{}, at, at.Add(time.Hour)), 0)
		}
		whole, total := mustBill(t, store, Prices{}, from, to), Amounts{}
		for at := from; at.Before(to); {
			next := at.Add(time.Duration(1+r.IntN(120*60_000)) * time.Millisecond)
			if next.After(to) {
				next = to
			}
			b := mustBill(t, store, Prices{}, at, next)
			fits(b, 100) // rows are rounded one by one
			total = total.Add(b.Total)
			at = next
		}
		if diff := cmp.Diff(whole.Total, total); diff != "" {
			t.Errorf("world %d: the whole and its parts (-whole +parts):\n%s", seed, diff)
		}
		if t.Failed() {
			return
		}
	}
}

// byDevice returns the device time of a bill.
func byDevice(s Statement) map[string]Seconds {
	out := map[string]Seconds{}
	for _, r := range s.Rows {
		out[fleet.DeviceKey(r.Labels)] += r.Time()
	}
	return out
}
