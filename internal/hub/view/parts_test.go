package view

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/hub"
)

// Catches a chart with too few or too many points.
func TestStepOf(t *testing.T) {
	for _, d := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour, 7 * 24 * time.Hour, 30 * 24 * time.Hour, maxSpan} {
		for _, most := range []time.Duration{maxPoints, maxPoints / 4} {
			if n := d / stepOf(d, int(most)); n > most || d > time.Hour && n < most/5 {
				t.Errorf("%s has %d points of %d", d, n, most)
			}
		}
	}
}

// Catches invalid PromQL and queries that do not match the field names: the counts of a fleet
// written to a real store must come back.
func TestRealStore(t *testing.T) {
	s, err := hub.Open(t.TempDir(), hub.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	now := time.Now().Truncate(time.Minute)
	sim := simulated{nodes: 5, perNode: 8, history: 30 * time.Minute, step: time.Minute}
	sim.fill(t, s, now)
	f, err := fleet.NewReader(s, fleet.Options{}).At(t.Context(), now)
	if err != nil {
		t.Fatal(err)
	}
	want := headline{GPUs: 40, Nodes: 5, Simulated: 40, Teams: 5}
	for i := range sim.nodes * sim.perNode {
		n, g := i/sim.perNode, i%sim.perNode
		t := tenants[(i*7/sim.perNode+n)%len(tenants)]
		if t.kind == "" {
			want.Free++
			continue
		}
		want.Held++
		if t.busy == 0 {
			want.Idle++
		}
		if g == 3 && t.sick == 0 {
			want.Sick++
		}
		if g == 3 && t.sick == 0.5 {
			want.Warning++
		}
	}
	got := headlineOf(f)
	got.Owners, got.Watts, got.Utilization, got.LostPerDay, got.CostPerHour, got.SilentPerHour = 0, 0, 0, 0, 0, 0 // the simulation does not know these
	if diff := cmp.Diff(want, got); diff != "" || got.Idle == 0 {
		t.Errorf("-want +got:\n%s", diff)
	}
	for i := range f.Devices {
		if d := &f.Devices[i]; d.IsIdle() && (float(d.Idle) < 25*60 || float(d.Idle) > 31*60) {
			t.Errorf("%s is idle for %v seconds", d.UUID, float(d.Idle))
		}
	}
	v := &viewer{store: s, opts: Options{Now: func() time.Time { return now }}}
	for name, c := range charts {
		r := request{from: now.Add(-time.Hour), to: now, values: map[string][]string{"chart": {name}}}
		a, err := v.rangePage(t.Context(), r)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if a := a.(*rangeAnswer); a.Unit != c.Unit || len(a.Times) > maxPoints+1 {
			t.Errorf("%s: %s, %d points", name, a.Unit, len(a.Times))
		}
	}
}

// Catches a device without activity data shown as always used.
func TestUnmeasuredIsNotUsed(t *testing.T) {
	var r cost.Row
	r.Unmeasured = 3600e6
	got := takenOf(r.Amounts)
	if got.HeldTime != 3600 || got.UnmeasuredTime != 3600 || !math.IsNaN(float64(got.UsedTime)) || !math.IsNaN(float64(got.IdleTime)) || !math.IsNaN(float64(got.IdleCost)) {
		t.Errorf("an unmeasured hour is billed as %+v", got)
	}
}
