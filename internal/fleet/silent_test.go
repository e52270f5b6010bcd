package fleet_test

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

var noon = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)

// report writes the samples of the devices of a node from one moment to another.
func report(m *querytest.Memory, node string, gpus int, from, to time.Time, more ...string) {
	for i := range gpus {
		l := query.Labels{"gpu_uuid": fmt.Sprint(node, "-", i), "gpu_index": fmt.Sprint(i), "gpu_model": "H100", "host_name": node, "job": "a"}
		for j := 0; j < len(more); j += 2 {
			l[more[j]] = more[j+1]
		}
		for name, v := range map[string]float64{"gpu_up": 1, "gpu_power_draw_watts": 100, "gpu_memory_total_bytes": 80} {
			own := maps.Clone(l)
			own["__name__"] = name
			for at := from; !at.After(to); at = at.Add(time.Minute) {
				m.Add(own, at, v)
			}
		}
	}
}

// seen returns the devices of a fleet as text: uuid, last sample of silent ones, power.
func seen(t *testing.T, r *fleet.Reader, at time.Time) []string {
	t.Helper()
	f, err := r.At(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	out := []string{}
	for i := range f.Devices {
		d := &f.Devices[i]
		text := d.UUID
		if d.Silent() {
			text += " silent since " + d.Since.Format("2 15:04")
		}
		if w, ok := d.Power.Get(); ok {
			text += fmt.Sprintf(" %g W", w)
		}
		if rate, ok := d.Rate.Get(); ok {
			text += fmt.Sprintf(" %g/h", rate)
		}
		if f.Index[d.UUID] != i {
			text += " misplaced"
		}
		out = append(out, text)
	}
	return out
}

func price(query.Labels, time.Time) (fleet.Hourly, bool) { return fleet.Hourly{Device: 2}, true }

// Catches a dead node that vanishes from the fleet with its cost, one that never leaves, one that
// still draws power, and a restarted hub or a page that was closed for hours that forgets.
func TestDeadNodeStays(t *testing.T) {
	m := querytest.NewMemory()
	report(m, "alive", 1, noon.Add(-20*time.Hour), noon.Add(26*time.Hour))
	report(m, "dead", 2, noon.Add(-3*time.Hour), noon.Add(-17*time.Minute))
	report(m, "short", 1, noon.Add(-10*time.Hour), noon.Add(-9*time.Hour))
	report(m, "old", 1, noon.Add(-30*time.Hour), noon.Add(-26*time.Hour))
	both := []string{"alive-0 100 W 2/h", "dead-0 silent since 15 11:43 2/h", "dead-1 silent since 15 11:43 2/h", "short-0 silent since 15 03:00 2/h"}
	all := []string{"alive-0 100 W 2/h", "dead-0 100 W 2/h", "dead-1 100 W 2/h", "short-0 silent since 15 03:00 2/h"}
	open := fleet.NewReader(m, fleet.Options{Price: price})
	for _, c := range []struct {
		at   time.Duration // relative to noon
		want []string
	}{
		{-20 * time.Minute, all},
		{-15 * time.Minute, all}, // the last samples are current for five minutes
		{-12 * time.Minute, both},
		{0, both},
		{-20 * time.Minute, all}, // someone looks at the past
		{0, both},
		{10 * time.Hour, both},
		{16 * time.Hour, both[:3]},
		{23 * time.Hour, both[:3]},
		{24 * time.Hour, both[:1]},
	} {
		for what, r := range map[string]*fleet.Reader{"open": open, "new": fleet.NewReader(m, fleet.Options{Price: price})} {
			if diff := cmp.Diff(c.want, seen(t, r, noon.Add(c.at))); diff != "" {
				t.Errorf("%s at %s: %s", what, c.at, diff)
			}
		}
	}
	if got := seen(t, fleet.NewReader(m, fleet.Options{Price: price, Restricted: true}), noon); len(got) != 1 {
		t.Errorf("a team sees %v", got)
	}
}

// Catches a device that is silent although it came back, moved to another node, or has another
// owner, and a device of another team that a team's store makes look silent.
func TestNotSilent(t *testing.T) {
	m := querytest.NewMemory()
	report(m, "back", 1, noon.Add(-3*time.Hour), noon.Add(-2*time.Hour))
	report(m, "back", 1, noon.Add(-time.Hour), noon)
	report(m, "from", 1, noon.Add(-3*time.Hour), noon.Add(-2*time.Hour), "gpu_uuid", "moved")
	report(m, "to", 1, noon.Add(-time.Hour), noon, "gpu_uuid", "moved")
	report(m, "held", 1, noon.Add(-3*time.Hour), noon.Add(-2*time.Hour), "gpu_workload_team", "red")
	report(m, "held", 1, noon.Add(-2*time.Hour), noon)
	if diff := cmp.Diff([]string{"back-0 100 W", "held-0 100 W", "moved 100 W"}, seen(t, fleet.NewReader(m, fleet.Options{}), noon)); diff != "" {
		t.Error(diff)
	}
	r := fleet.NewReader(m, fleet.Options{})
	if got := seen(t, r, noon.Add(-90*time.Minute)); len(got) != 3 {
		t.Errorf("in between: %v", got)
	}
	if diff := cmp.Diff([]string{"back-0 100 W", "held-0 100 W", "moved 100 W"}, seen(t, r, noon)); diff != "" {
		t.Error(diff)
	}
	team := querytest.NewMemory()
	report(team, "held", 1, noon.Add(-3*time.Hour), noon.Add(-2*time.Hour), "gpu_workload_team", "red")
	report(team, "other", 1, noon.Add(-3*time.Hour), noon, "gpu_workload_team", "red")
	r = fleet.NewReader(team, fleet.Options{})
	for _, at := range []time.Duration{-150 * time.Minute, -100 * time.Minute, 0} {
		for _, d := range seen(t, r, noon.Add(at)) {
			if d != "held-0 100 W" && d != "other-0 100 W" {
				t.Errorf("%s: %s", at, d)
			}
		}
	}
}

// Catches a search of the whole day for each look.
func TestSilentIsSearchedOnce(t *testing.T) {
	m := querytest.NewMemory()
	report(m, "alive", 1, noon.Add(-2*time.Hour), noon.Add(time.Hour))
	report(m, "dead", 1, noon.Add(-2*time.Hour), noon.Add(-time.Hour))
	past := &pastQueries{Store: m, now: noon}
	r := fleet.NewReader(past, fleet.Options{})
	seen(t, r, noon)
	before := past.n
	if before < 24 || before > 30 {
		t.Errorf("%d queries search a day", before)
	}
	for i := range 60 {
		past.now = noon.Add(time.Duration(i) * time.Minute)
		if got := seen(t, r, past.now); len(got) != 2 {
			t.Fatal(got)
		}
	}
	if past.n != before {
		t.Errorf("%d queries of the past in an hour of looking", past.n-before)
	}
}

// pastQueries counts queries of moments before now.
type pastQueries struct {
	query.Store

	now time.Time
	n   int
}

func (p *pastQueries) Instant(ctx context.Context, expr string, at time.Time) ([]query.Sample, error) {
	if at.Before(p.now) {
		p.n++
	}
	return p.Store.Instant(ctx, expr, at)
}
