package slo

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/serving"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Catches a fact that is another one, a mean of requests that counts an application or one of two ways, a GPU of another model,
// and a partition that has the clock of its whole device.
func TestFacts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, way := range []string{"push", "scrape"} {
		a := engine("a", "llama", "chat", "job", way)
		w.put(fleet.SeriesEngineUp, a, false, constant(1))
		for i, histogram := range []string{fleet.HistogramFirstToken, fleet.HistogramQueue, fleet.HistogramPrefill, fleet.HistogramRequest} {
			w.put(fleet.HistogramSum(histogram), a, true, constant(float64(60*(i+1))))
			w.put(fleet.HistogramCount(histogram), a, true, constant(60))
		}
		w.put(fleet.SeriesRequests, a, false, func(ago time.Duration) (float64, bool) {
			if ago < 30*time.Minute {
				return 5, true
			}
			return 0, true
		}, fleet.LabelState, "waiting")
		w.put(fleet.SeriesKVCache, a, false, func(ago time.Duration) (float64, bool) {
			switch {
			case ago < 15*time.Minute:
				return 0.97, true
			case ago < 24*time.Minute:
				return 0.5, true
			}
			return 0.9, true
		}, fleet.LabelTier, fleet.TierGPU)
	}
	w.put(fleet.HistogramSum(fleet.HistogramQueue), engine("", "llama", "chat"), true, constant(1e6)) // of an application
	w.put(fleet.HistogramCount(fleet.HistogramQueue), engine("", "llama", "chat"), true, constant(1))
	b := engine("b", "phi", "part")
	w.put(fleet.SeriesEngineUp, b, false, constant(1))
	w.put(fleet.SeriesFinished, b, true, constant(1), fleet.LabelOutcome, "success")
	for id, uuid := range map[string]string{"a": "GPU-1", "aa": "GPU-2", "b": "GPU-3"} {
		l := engine(id[:1], "", map[string]string{"a": "chat", "b": "part"}[id[:1]], fleet.LabelUUID, uuid, fleet.LabelVendor, "nvidia")
		delete(l, fleet.LabelServedModel)
		if id == "b" {
			l[fleet.LabelPartition] = "MIG-1"
		}
		w.put(fleet.SeriesEngineDevice, l, false, constant(1))
	}
	for uuid, v := range map[string]float64{"GPU-1": 0.2, "GPU-2": 0.4, "GPU-3": 0.9} {
		l := query.Labels{fleet.LabelUUID: uuid, fleet.LabelVendor: "nvidia", fleet.LabelHost: "n1"}
		w.put(fleet.SeriesDRAMActive, l, false, constant(v))
		w.put(fleet.SeriesSMActive, l, false, constant(1))
		w.put(fleet.SeriesThrottlePower, l, false, constant(v/2))
		w.put(fleet.SeriesThrottleThermal, l, false, constant(v/4))
		w.put(fleet.SeriesClock, l, false, func(ago time.Duration) (float64, bool) {
			if ago < 31*time.Minute { // half of the samples of the hour
				return 1e9, true
			}
			return 2e9, true
		})
	}
	w.write(2 * time.Hour)
	now, err := serving.At(t.Context(), w.store, noon, hintWindow)
	if err != nil {
		t.Fatal(err)
	}
	got, err := factsOf(t.Context(), w.store, noon, now)
	if err != nil {
		t.Fatal(err)
	}
	of := optional.Of
	want := map[key]Facts{
		{"llama", whoseOf(&now[0].Owner)}: {
			FirstToken: of(1), Queue: of(2), Prefill: of(3), Request: of(4),
			Waits: of(30.0 / 61), Full: of(0.5), Room: of(0.3), DRAM: of(0.3), Power: of(0.15), Thermal: of(0.075), Clock: of(0.75),
		},
		{"phi", whoseOf(&now[1].Owner)}: {},
	}
	rough := cmp.Comparer(func(a, b optional.Float) bool {
		x, known := a.Get()
		y, also := b.Get()
		return known == also && x-y < 0.01 && y-x < 0.01
	})
	if diff := cmp.Diff(want, got, rough); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
}
