package fleet_test

import (
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// Catches a store that is not the hub's and whose samples are hours apart: growth that nobody
// watched, and more device time than passed.
func TestGrowthBetweenSparseSamples(t *testing.T) {
	begin := time.Date(2026, 10, 14, 0, 0, 0, 0, time.UTC)
	held := func(growth func(time.Duration) float64, silent func(time.Duration) bool) time.Duration {
		store := querytest.NewMemory()
		for d := time.Duration(0); d <= 12*time.Hour; d += time.Minute {
			if !silent(d) {
				store.Add(query.Labels{
					fleet.LabelName: fleet.SeriesAllocatedTime, fleet.LabelUUID: "g", fleet.LabelHost: "n", fleet.LabelKind: "job", fleet.LabelPodUID: "p",
				}, begin.Add(d), growth(d))
			}
		}
		var sum fleet.Seconds
		m := fleet.NewMeter(store, fleet.MeterOptions{})
		if err := m.Between(t.Context(), begin, begin.Add(24*time.Hour), func(r *fleet.DayRow, from fleet.Sums) { sum += r.Held - from.Held }); err != nil {
			t.Fatal(err)
		}
		return sum.Duration()
	}
	f := func(name string, want time.Duration, growth func(time.Duration) float64, silent func(time.Duration) bool) {
		t.Helper()
		if got := held(growth, silent); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	never := func(time.Duration) bool { return false }
	f("all samples", 12*time.Hour, time.Duration.Seconds, never)
	f("three hours without samples count one", 10*time.Hour, time.Duration.Seconds, func(d time.Duration) bool { return d > 4*time.Hour && d < 7*time.Hour })
	f("forty minutes without samples count", 12*time.Hour, time.Duration.Seconds, func(d time.Duration) bool { return d > 4*time.Hour && d < 4*time.Hour+40*time.Minute })
	fast := held(func(d time.Duration) float64 { return 4 * d.Seconds() }, func(d time.Duration) bool { return d%(50*time.Minute) != 0 })
	if fast > 12*time.Hour {
		t.Errorf("%s in 12 h of a counter that is four times as fast as time", fast)
	}
}
