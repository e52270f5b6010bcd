//go:build linux

package demo

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/cost"
)

// testNow is when the tests' fleets have lived for Age.
var testNow = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)

// lived makes the nodes of a fleet live through moments and returns them closed.
func lived(t *testing.T, to Sink, fleet []Machine, moments []time.Time) {
	t.Helper()
	s, err := newSimulation(fleet, testNow.Add(-Age), moments[0], to)
	if err != nil {
		t.Fatal(err)
	}
	s.seed(t.Context(), moments)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// Everything that people are told to look for is there, and all of it is called simulated.
func TestDemoSights(t *testing.T) {
	t.Parallel()
	metrics, logs := &consumertest.MetricsSink{}, &consumertest.LogsSink{}
	var moments []time.Time
	for at := testNow.Add(-5 * time.Hour); !at.After(testNow); at = at.Add(5 * time.Minute) {
		moments = append(moments, at)
	}
	lived(t, Sink{metrics, logs}, Fleet(), moments)
	type series struct{ name, host, gpu, workload string }
	last := map[series]float64{}
	devices := map[string]bool{}
	for _, md := range metrics.AllMetrics() {
		for _, rm := range md.ResourceMetrics().All() {
			attrs := rm.Resource().Attributes()
			if simulated, _ := attrs.Get("gpumeter.simulated"); !simulated.Bool() {
				t.Fatal("something of the demo is not called simulated")
			}
			host, _ := attrs.Get("host.name")
			for _, sm := range rm.ScopeMetrics().All() {
				for _, m := range sm.Metrics().All() {
					each(m, func(p pmetric.NumberDataPoint) {
						get := func(key string) string {
							v, ok := p.Attributes().Get(key)
							if !ok {
								return ""
							}
							return v.AsString()
						}
						devices[get("gpu.uuid")] = true
						last[series{m.Name(), host.Str(), get("gpu.index"), get("gpu.workload.name")}] = p.DoubleValue()
					})
				}
			}
		}
	}
	if len(devices) < 40 {
		t.Errorf("the fleet has %d devices, want 40 or so", len(devices))
	}
	for i := range 8 {
		if s := (series{"gpu.workload.active.time", "h100-02", fmt.Sprint(i), "segmentation-dev"}); last[s] != 0 || last[series{"gpu.allocation", s.host, s.gpu, s.workload}] != 1 {
			t.Errorf("the hoarder does not hold GPU %d, or works: %v s", i, last[s])
		}
	}
	thief := series{"gpu.workload.utilization", "h100-01", "5", "mallory"}
	if given, ok := last[series{"gpu.allocation", thief.host, thief.gpu, thief.workload}]; !ok || given != 0 || last[thief] == 0 {
		t.Errorf("the thief has %v of the device and uses %v", given, last[thief])
	}
	if n := last[series{"gpu.xid.errors", "h200-01", "7", ""}]; n == 0 {
		t.Error("the sick GPU has no XID")
	}
	if h := last[series{"gpu.health", "h200-01", "7", "mixtral-pretrain-2"}]; h != 0 {
		t.Errorf("the health of the sick GPU is %v", h)
	}
	var text strings.Builder
	for _, ld := range logs.AllLogs() {
		for _, rl := range ld.ResourceLogs().All() {
			for _, sl := range rl.ScopeLogs().All() {
				for _, r := range sl.LogRecords().All() {
					fmt.Fprintln(&text, r.EventName(), r.Body().AsString())
				}
			}
		}
	}
	for _, want := range []string{"gpu.xid", "gpu.workload.start", "gpu.workload.stop", "gpu.finding", "scheduler.job.started", "scheduler.job.ended"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no event %s", want)
		}
	}
}

func each(m pmetric.Metric, f func(pmetric.NumberDataPoint)) {
	var points pmetric.NumberDataPointSlice
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		points = m.Gauge().DataPoints()
	case pmetric.MetricTypeSum:
		points = m.Sum().DataPoints()
	default:
		return
	}
	for _, p := range points.All() {
		if !p.Flags().NoRecordedValue() && p.Timestamp() != pcommon.Timestamp(0) {
			f(p)
		}
	}
}

// Every simulated device has a price, and the file says that it is an example.
func TestDemoPrices(t *testing.T) {
	t.Parallel()
	p, err := cost.Parse(prices)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(prices, []byte("EXAMPLE NUMBERS")) {
		t.Error("the prices do not say that they are examples")
	}
	for _, m := range Fleet() {
		n, err := NewNode(m, testNow.Add(-Age), Sink{metrics: consumertest.NewNop()}, zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range n.Tick(t.Context(), testNow).Readings {
			if _, ok := p.At(map[string]string{"gpu_model": r.ID.Model}, testNow); !ok {
				t.Errorf("%s has no price", r.ID.Model)
			}
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A query looks back for five minutes: a history with wider steps has holes.
func TestDemoSteps(t *testing.T) {
	t.Parallel()
	for _, history := range []time.Duration{0, time.Minute, time.Hour, 24 * time.Hour, 36 * time.Hour} {
		before := testNow.Add(-history)
		for _, at := range steps(testNow, history) {
			if gap := at.Sub(before); gap < 0 || gap >= 5*time.Minute || !at.Before(testNow) {
				t.Fatalf("%s: %s after %s", history, at, before)
			}
			before = at
		}
		if testNow.Sub(before) > time.Minute {
			t.Errorf("%s: the last step is %s ago", history, testNow.Sub(before))
		}
	}
}
