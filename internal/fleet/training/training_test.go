package training

import (
	"context"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// The parts add up to the allocated time exactly, whatever is said.
func TestWaterfallAddsUp(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	names := append([]string{"restart", "", "unheard of"}, order...)
	for range 20_000 {
		spent := map[string]fleet.Seconds{}
		for _, n := range names {
			if r.IntN(2) == 0 {
				spent[n] = fleet.Seconds(r.Int64N(1 << r.IntN(50)))
			}
			if r.IntN(20) == 0 {
				spent[n] = -spent[n]
			}
		}
		w := Divide(fleet.Seconds(r.Int64N(1<<r.IntN(50))), spent, fleet.Seconds(r.Int64N(1<<r.IntN(50))))
		var sum fleet.Seconds
		for _, p := range w.Parts {
			if p.Time < 0 {
				t.Fatalf("%v: a part is negative: %v", spent, w)
			}
			sum += p.Time
		}
		if sum != w.Allocated || len(w.Parts) != len(order) {
			t.Fatalf("%v: the parts add up to %d of %d", spent, sum, w.Allocated)
		}
	}
}

func TestDivide(t *testing.T) {
	f := func(name string, allocated, redone fleet.Seconds, spent map[string]fleet.Seconds, want ...fleet.Seconds) {
		t.Helper()
		var got []fleet.Seconds
		for _, p := range Divide(allocated, spent, redone).Parts {
			got = append(got, p.Time)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	// step, data, collective, checkpoint, other, startup, lost, idle
	f("all", 100, 10, map[string]fleet.Seconds{"step": 50, "data_wait": 5, "collective_wait": 6, "checkpoint": 7, "other": 2, "startup": 3, "restart": 4, "idle": 1}, 40, 5, 6, 7, 2, 3, 14, 23)
	f("nothing", 100, 0, nil, 0, 0, 0, 0, 0, 0, 0, 100)
	f("redone more than there is", 100, 90, map[string]fleet.Seconds{"step": 50}, 0, 0, 0, 0, 0, 0, 50, 50)
	f("a shared device", 50, 0, map[string]fleet.Seconds{"step": 60, "data_wait": 40}, 30, 20, 0, 0, 0, 0, 0, 0)
	f("not allocated", 0, 0, map[string]fleet.Seconds{"step": 60}, 0, 0, 0, 0, 0, 0, 0, 0)
}

var noon = time.Date(2026, 11, 19, 12, 0, 0, 0, time.UTC)

// Catches ways to the store, sources or ranks that are added, a counter that began anew and loses what it had, and
// time before the period.
func TestRead(t *testing.T) {
	m := querytest.NewMemory()
	base := query.Labels{fleet.LabelKind: "slurm_job", fleet.LabelWorkload: "train", fleet.LabelSlurmJob: "7", fleet.LabelSlurmCluster: "c", LabelSource: "observed"}
	put := func(name string, values []float64, more ...string) {
		for _, way := range []string{"push", "scrape"} {
			l := maps.Clone(base)
			l[fleet.LabelName], l["job"] = name, way
			for i := 0; i < len(more); i += 2 {
				l[more[i]] = more[i+1]
			}
			for i, v := range values {
				m.Add(l, noon.Add(time.Duration(i-len(values)+1)*time.Minute), v)
			}
		}
	}
	put(SeriesSteps, []float64{100, 160, 220})
	put(SeriesSteps, []float64{0, 40, 10, 50}, fleet.LabelUUID, "GPU-1") // began anew
	put(SeriesTime, []float64{1000, 1030, 1060}, LabelActivity, "step")
	put(SeriesTime, []float64{10, 20, 30}, LabelActivity, "data_wait")
	put(SeriesTime, []float64{0, 20, 20}, LabelActivity, "restart")
	put(SeriesLost, []float64{0, 6, 6}, LabelLost, "redone")
	put(SeriesLost, []float64{0, 60, 60}, LabelLost, "restart")
	put(SeriesRestarts, []float64{0, 1, 1})
	put(fleet.HistogramSum(HistogramStep), []float64{50, 80, 110})
	put(fleet.HistogramCount(HistogramStep), []float64{100, 160, 220})
	put(SeriesMFU, []float64{0.2, 0.4, 0.6})
	put(SeriesLoss, []float64{3, 2, 1}, LabelSource, "reported")
	put(SeriesTokens, []float64{100, 400, 700}, LabelSource, "reported")
	owner, _ := fleet.OwnerOf(base)
	got, err := Read(context.Background(), m, noon.Add(-10*time.Minute), noon, map[string]fleet.Seconds{owner.ID: 200e6})
	if err != nil {
		t.Fatal(err)
	}
	want := []Row{{
		Owner: owner, Observed: true, Reported: true, Steps: 210, StepTime: optional.Of(0.5), Tokens: optional.Of(600), Restarts: 1,
		MFU: optional.Of(0.4), Estimated: true, Loss: optional.Of(1),
		Waterfall: Waterfall{200e6, []Part{{"step", 54e6}, {"data_wait", 20e6}, {"collective_wait", 0}, {"checkpoint", 0}, {"other", 0}, {"startup", 0}, {"lost", 26e6}, {"idle", 100e6}}},
	}}
	same := cmp.Comparer(func(a, b optional.Float) bool {
		x, ok := a.Get()
		y, too := b.Get()
		return ok == too && (x-y < 1e-9 && y-x < 1e-9 || !ok)
	})
	if diff := cmp.Diff(want, got, same); diff != "" {
		t.Error(diff)
	}
	if none, err := Read(context.Background(), querytest.NewMemory(), noon.Add(-time.Hour), noon, nil); err != nil || len(none) != 0 {
		t.Error(none, err)
	}
}
