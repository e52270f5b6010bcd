package selfreceiver

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/gpumeter/gpumeter/internal/node"
)

// clock is a gpu extension whose ticks the test sends.
type clock struct {
	component.Component
	ticks chan node.Tick
}

func (c clock) Subscribe() (<-chan node.Tick, func()) { return c.ticks, func() { close(c.ticks) } }

type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

// Catches an agent whose losses are counted but not exported, exported without the machine's labels, or
// exported with all hundred series of a Collector.
func TestReceiver(t *testing.T) {
	meter := &Meter{}
	m := meter.NewProvider().Meter("scope")
	sent := counter(t, m, "otelcol_exporter_sent_metric_points")
	failed := counter(t, m, "otelcol_exporter_send_failed_metric_points")
	counter(t, m, "otelcol_exporter_in_flight_requests").Add(t.Context(), 1)
	add := func(c metric.Int64Counter, n int64, attrs ...attribute.KeyValue) {
		c.Add(t.Context(), n, metric.WithAttributes(append(attrs, attribute.String("exporter", "otlp"))...))
	}
	add(sent, 5, attribute.String("url.path", "/v1/secret"))
	add(failed, 2, attribute.String("error.type", "Internal"), attribute.Bool("error.permanent", true))
	queue, err := m.Int64ObservableGauge("otelcol_exporter_queue_size", metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
		o.Observe(7)
		return nil
	}))
	if err != nil || queue == nil {
		t.Fatal(err)
	}

	c := clock{ticks: make(chan node.Tick)}
	var sink consumertest.MetricsSink
	f := NewFactory(meter)
	set := receivertest.NewNopSettings(f.Type())
	set.BuildInfo.Version = "v1.2.3"
	r, err := f.CreateMetrics(t.Context(), set, f.CreateDefaultConfig(), &sink)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), host{component.MustNewID("gpu"): c}); err != nil {
		t.Fatal(err)
	}
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	tick := node.Tick{Time: start, Host: "n1", Simulated: true, Resource: map[string]string{"k8s.cluster.name": "prod"}}
	for range 11 { // a second apart, so the last tick is the second batch
		c.ticks <- tick
		tick.Time = tick.Time.Add(time.Second)
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(sink.AllMetrics()); n != 2 {
		t.Fatalf("%d batches in 10 s, want one at the first tick and one 10 s later", n)
	}
	got := sink.AllMetrics()[1]
	wantResource := map[string]any{"host.name": "n1", "service.name": "gpumeter", "gpumeter.simulated": true, "k8s.cluster.name": "prod"}
	if diff := cmp.Diff(wantResource, got.ResourceMetrics().At(0).Resource().Attributes().AsRaw()); diff != "" {
		t.Errorf("resource (-want +got):\n%s", diff)
	}
	want := map[string]point{
		"otelcol_exporter_sent_metric_points":        {5, map[string]any{"exporter": "otlp"}, start.Add(10 * time.Second), true},
		"otelcol_exporter_send_failed_metric_points": {2, map[string]any{"exporter": "otlp", "error.type": "Internal"}, start.Add(10 * time.Second), true},
		"otelcol_exporter_queue_size":                {7, map[string]any{}, start.Add(10 * time.Second), false},
		"gpumeter.build.info":                        {1, map[string]any{"version": "v1.2.3", "goversion": runtime.Version()}, start.Add(10 * time.Second), false},
	}
	if diff := cmp.Diff(want, points(got)); diff != "" {
		t.Errorf("points (-want +got):\n%s", diff)
	}
}

type point struct {
	Value   int64
	Attrs   map[string]any
	Time    time.Time
	Counter bool // monotonic and cumulative, with a start time
}

func points(md pmetric.Metrics) map[string]point {
	out := map[string]point{}
	for _, sm := range md.ResourceMetrics().At(0).ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			var dp pmetric.NumberDataPoint
			sum := m.Type() == pmetric.MetricTypeSum
			if sum {
				dp = m.Sum().DataPoints().At(0)
				sum = m.Sum().IsMonotonic() && m.Sum().AggregationTemporality() == pmetric.AggregationTemporalityCumulative && dp.StartTimestamp() > 0
			} else {
				dp = m.Gauge().DataPoints().At(0)
			}
			out[m.Name()] = point{dp.IntValue(), dp.Attributes().AsRaw(), dp.Timestamp().AsTime(), sum}
		}
	}
	return out
}

func counter(t *testing.T, m metric.Meter, name string) metric.Int64Counter {
	t.Helper()
	c, err := m.Int64Counter(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Catches a receiver that keeps the counters of the previous pipelines after a reload.
func TestReload(t *testing.T) {
	meter := &Meter{}
	counter(t, meter.NewProvider().Meter("a"), "otelcol_exporter_sent_spans").Add(t.Context(), 1)
	counter(t, meter.NewProvider().Meter("a"), "otelcol_exporter_sent_spans").Add(t.Context(), 3)
	var sink consumertest.MetricsSink
	r := selfReceiver{meter: meter, next: &sink}
	if err := r.emit(t.Context(), node.Tick{}); err != nil {
		t.Fatal(err)
	}
	if got := points(sink.AllMetrics()[0])["otelcol_exporter_sent_spans"].Value; got != 3 {
		t.Errorf("sent %d, want 3 from the new pipelines", got)
	}
}

func TestNeedsExtension(t *testing.T) {
	f := NewFactory(&Meter{})
	r, err := f.CreateMetrics(t.Context(), receivertest.NewNopSettings(f.Type()), f.CreateDefaultConfig(), &consumertest.MetricsSink{})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), componenttest.NewNopHost()); err == nil {
		t.Error("starts without a gpu extension, although it would report nothing")
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestMatches(t *testing.T) {
	f := func(pattern, name string, want bool) {
		t.Helper()
		if got := matches(pattern, name); got != want {
			t.Errorf("matches(%q, %q) = %t", pattern, name, got)
		}
	}
	f("a", "a", true)
	f("a", "ab", false)
	f("a*", "ab", true)
	f("a*", "b", false)
	f("a_*_c_*", "a_b_c_d", true)
	f("a_*_c", "a_b_c_c", true)
	f("a_*_c_*", "a_b_d", false)
}
