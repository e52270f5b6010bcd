//go:build linux

package local

import (
	"testing"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpumeter/gpumeter/internal/device/sim"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/receiver/gpureceiver"
)

// maxSeries is the maximum that docs/scope.md states for a device with one holder.
const maxSeries = 80

// Each metric that is on by default costs a time series per device of a fleet.
func TestDefaultSeries(t *testing.T) {
	for _, model := range sim.Models() {
		now := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
		simulated := sim.Config{Model: model, Seed: 1, Now: func() time.Time { return now }, Start: now.Add(-24 * time.Hour)}
		view, err := Open(Config{Interval: DefaultInterval, SlowInterval: DefaultSlowInterval, Sim: &simulated}, func(node.Notice) {})
		if err != nil {
			t.Fatal(err)
		}
		var tick node.Tick
		for range 3 { // some values are derived from two readings
			now = now.Add(30 * time.Second)
			tick = view.Tick(t.Context(), now)
		}
		cfg := gpureceiver.NewFactory().CreateDefaultConfig().(*gpureceiver.Config)
		counts := map[string]int{}
		md := gpureceiver.NewEmitter(cfg, receivertest.NewNopSettings(component.MustNewType("gpu"))).Emit(tick)
		for _, m := range md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
			var list pmetric.NumberDataPointSlice
			if m.Type() == pmetric.MetricTypeSum {
				list = m.Sum().DataPoints()
			} else {
				list = m.Gauge().DataPoints()
			}
			for _, dp := range list.All() {
				if uuid, ok := dp.Attributes().Get("gpu.uuid"); ok {
					counts[uuid.Str()]++
				}
			}
		}
		most := 0
		for i := range tick.Readings {
			if r := &tick.Readings[i]; r.Owner != nil && r.ID.Parent == "" {
				most = max(most, counts[r.ID.UUID])
			}
		}
		if most > maxSeries {
			t.Errorf("%s: a device with one holder has %d time series, want at most %d", model, most, maxSeries)
		}
	}
}
