package slo

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/optional"
)

var (
	inf    = math.Inf(1)
	nearly = cmp.Options{
		cmp.AllowUnexported(tally{}), cmpopts.EquateApprox(1e-9, 1e-12),
		cmp.Comparer(func(a, b optional.Float) bool {
			x, known := a.Get()
			y, also := b.Get()
			return known == also && math.Abs(x-y) < 1e-9
		}),
	}
)

// Catches requests that count as good because a bound above the threshold is taken for it, a bucket without a lower bound, and
// a histogram that cannot say and says 0.
func TestSlower(t *testing.T) {
	t.Parallel()
	f := func(name string, rates map[float64]float64, bounds []float64, threshold float64, want tally, ok bool) {
		t.Helper()
		below, above := around(bounds, threshold)
		got, known := slower(rates, below, above, threshold)
		if diff := cmp.Diff(want, got, nearly); diff != "" || known != ok {
			t.Errorf("%s: %v (-want +got):\n%s", name, known, diff)
		}
	}
	list := []float64{1, 2, 4}
	rates := map[float64]float64{1: 50, 2: 80, 4: 90, inf: 100}
	f("between two bounds", rates, list, 3, tally{100, 15, 10, 20, 2, 4}, true)
	f("at a bound", rates, list, 2, tally{100, 20, 20, 20, 2, 2}, true)
	f("below the first", rates, list, 0.5, tally{100, 75, 50, 100, 0, 1}, true)
	f("above the last", rates, list, 9, tally{100, 10, 0, 10, 4, inf}, true)
	f("at the last", rates, list, 4, tally{100, 10, 10, 10, 4, 4}, true)
	f("a first bound of 0", map[float64]float64{0: 10, 1: 50, inf: 100}, []float64{0, 1}, 0.5, tally{100, 70, 50, 90, 0, 1}, true)
	f("nobody asked", map[float64]float64{1: 0, inf: 0}, list, 1, tally{}, false)
	f("a bound is missing", map[float64]float64{2: 5, inf: 5}, list, 3, tally{}, false)
	f("nothing", nil, list, 3, tally{}, false)
	f("extrapolated beyond the sum", map[float64]float64{2: 80, 4: 79, inf: 78}, list, 3, tally{78, 0, 0, 0, 2, 4}, true)
}

// Catches the bounds of one engine that hide those of another, and ratios of nothing.
func TestTallies(t *testing.T) {
	t.Parallel()
	sum := tally{}.plus(tally{100, 15, 10, 20, 2, 4}).plus(tally{}).plus(tally{100, 1, 0, 2, 1, 3})
	if diff := cmp.Diff(tally{200, 16, 10, 22, 1, 4}, sum, nearly); diff != "" {
		t.Errorf("sum (-want +got):\n%s", diff)
	}
	of, absent := optional.Of, optional.Float{}
	values := func(t tally) []optional.Float {
		least, most := t.Range()
		below, above := t.Bounds()
		return []optional.Float{t.Ratio(), least, most, below, above}
	}
	for _, c := range []struct {
		tally tally
		want  []optional.Float
	}{
		{sum, []optional.Float{of(0.08), of(0.05), of(0.11), of(1), of(4)}},
		{tally{total: 10, bad: 1, most: 1, below: 4, above: inf}, []optional.Float{of(0.1), of(0), of(0.1), of(4), absent}},
		{tally{total: 10, bad: 1, least: 1, most: 1}, []optional.Float{of(0.1), of(0.1), of(0.1), absent, absent}},
		{tally{}, make([]optional.Float, 5)},
	} {
		if diff := cmp.Diff(c.want, values(c.tally), nearly); diff != "" {
			t.Errorf("%v (-want +got):\n%s", c.tally, diff)
		}
	}
}

// Catches moments that count for a workload that is gone, and an outage that does not count because its process ended.
func TestUnavailable(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	moments := func(text string) []moment { // a letter per minute
		var out []moment
		for i, c := range text {
			m := moment{at: start.Add(time.Duration(i) * time.Minute)}
			switch c {
			case 'r':
				m.read, m.held = true, true
			case 'R': // and another one that is down
				m.read, m.down = true, true
			case 'd':
				m.down = true
			case 'h':
				m.held = true
			case ' ':
				continue
			}
			out = append(out, m)
		}
		return out
	}
	f := func(text string, after time.Duration, want tally) {
		t.Helper()
		list := moments(text)
		if diff := cmp.Diff(want, unavailable(list, start.Add(after-time.Second), answered(list)), nearly); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
	f("rrRr", 0, tally{total: 4})
	f("rddr", 0, tally{total: 4, bad: 2, least: 2, most: 2})
	f("rhhr", 0, tally{total: 4, bad: 2, least: 2, most: 2})
	f("hhrr", 0, tally{total: 2}) // it starts for the first time
	f("ddrr", 0, tally{total: 4, bad: 2, least: 2, most: 2})
	f("rr  rr", 0, tally{total: 4})                                      // nobody watched
	f("rr    ", 0, tally{total: 2})                                      // scaled to zero
	f("hhhh", 0, tally{})                                                // no engine at all
	f("rrhh", 2*time.Minute, tally{total: 2, bad: 2, least: 2, most: 2}) // what was before still counts as a proof
	f("", 0, tally{})
}

// Catches a goodput that pretends to know which requests missed several objectives, and one that leaves out an unknown objective.
func TestGoodput(t *testing.T) {
	t.Parallel()
	of, absent := optional.Of, optional.Float{}
	bad := func(v float64) tally { return tally{total: 1, bad: v} }
	ttft50, ttft95, errs, up := Objective{Kind: FirstToken, Target: 0.5}, Objective{Kind: FirstToken, Target: 0.95}, Objective{Kind: Errors}, Objective{Kind: Availability}
	f := func(name string, list []Objective, tallies []tally, requests optional.Float, want Goodput) {
		t.Helper()
		if diff := cmp.Diff(want, goodput(list, tallies, requests), nearly); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	f("two", []Objective{ttft95, errs}, []tally{bad(0.2), bad(0.1)}, of(10), Goodput{of(7), of(8), of(10)})
	f("the highest percentile", []Objective{ttft50, ttft95, errs, up}, []tally{bad(0.6), bad(0.2), bad(0.1), bad(0.9)}, of(10), Goodput{of(7), of(8), of(10)})
	f("more than all", []Objective{ttft95, errs}, []tally{bad(0.8), bad(0.7)}, of(10), Goodput{of(0), of(2), of(10)})
	f("one is unknown", []Objective{ttft95, errs}, []tally{bad(0.2), {}}, of(10), Goodput{absent, of(8), of(10)})
	f("all are unknown", []Objective{ttft95, errs}, []tally{{}, {}}, of(10), Goodput{Of: of(10)})
	f("availability only", []Objective{up}, []tally{bad(0.2)}, of(10), Goodput{Of: of(10)})
	f("nobody counts requests", []Objective{ttft95}, []tally{bad(0.2)}, absent, Goodput{})
}

// Catches a page about something that is over or too short to matter, and a ticket that hides a page.
func TestAlert(t *testing.T) {
	t.Parallel()
	f := func(want string, burn ...float64) {
		t.Helper()
		r := Result{}
		for i, v := range burn {
			if v >= 0 {
				r.Burn[i] = optional.Of(v)
			}
		}
		got := "none"
		if a, ok := r.Alert(); ok {
			got = string(a.Severity) + " " + Windows[a.Long].String() + " " + Windows[a.Short].String()
		}
		if got != want {
			t.Errorf("%v: %s, want %s", burn, got, want)
		}
	}
	f("none", 0, 0, 0, 0, 0)
	f("page 1h0m0s 5m0s", 15, 15, 15, 2, 2)
	f("none", 1, 15, 15, 0.5, 0.5)  // it is over
	f("none", 100, 14, 8, 0.5, 0.1) // too short to matter
	f("page 6h0m0s 30m0s", 7, 7, 7, 7, 0.5)
	f("ticket 72h0m0s 6h0m0s", 2, 2, 2, 2, 1.5)
	f("none", 0, 0, 0, 0.9, 1.5)
	f("none", 14.4, 14.4, 14.4, 1, 1)
	f("none", -1, 20, 20, -1, 20) // unknown is not over
}

// Catches an alert that is over and stays because a store fails, and one that ends because its windows could not be read.
func TestUndecided(t *testing.T) {
	t.Parallel()
	f := func(severity Severity, unread []int, want bool, burn ...float64) {
		t.Helper()
		r := Result{}
		for i, v := range burn {
			if v >= 0 {
				r.Burn[i] = optional.Of(v)
			}
		}
		var windows [windows]bool
		for _, w := range unread {
			windows[w] = true
		}
		if got := r.Undecided(severity, windows); got != want {
			t.Errorf("%s with %v, %v could not be read: %v", severity, burn, unread, got)
		}
	}
	all := []int{fiveMinutes, halfHour, oneHour, sixHours, threeDays}
	f(Page, all, true, -1, -1, -1, -1, -1)
	f(Ticket, all, true, -1, -1, -1, -1, -1)
	f(Page, nil, false, -1, -1, -1, -1, -1) // nothing happened in these windows
	f(Page, []int{fiveMinutes}, true, -1, 0, 20, 20, 20)
	f(Page, []int{fiveMinutes}, false, -1, 0, 14, 20, 20)
	f(Page, []int{halfHour, sixHours}, true, 20, -1, 1, -1, 20)
	f(Ticket, []int{sixHours}, true, 0, 0, 0, -1, 2)
	f(Ticket, []int{fiveMinutes}, false, -1, 0, 0, 0.5, 2)
}
