package gpuspanprocessor

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/processortest"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// view is a gpu extension.
type view struct {
	component.StartFunc
	component.ShutdownFunc
	node.Fanout
}

func (*view) Process(uint32) (workload.Workload, bool) { return workload.Workload{}, false }

// Container knows the containers a, b and c.
func (*view) Container(id string) (workload.Workload, bool) {
	return workload.Workload{ID: id, Kind: "container", Name: id}, len(id) == 1
}

type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

// epoch is the time 0 of the tests, whose times are seconds.
var epoch = time.Date(2026, 11, 19, 10, 0, 0, 0, time.UTC)

func at(seconds float64) pcommon.Timestamp {
	return pcommon.NewTimestampFromTime(epoch.Add(time.Duration(seconds * 1e9)))
}

// bench is a running processor in a pipeline of each signal.
type bench struct {
	t       testing.TB
	view    *view
	memory  *memory
	reader  *metric.ManualReader
	traces  processor.Traces
	logs    processor.Logs
	metrics processor.Metrics
	sunk    *sinks
}

type sinks struct {
	traces  consumertest.TracesSink
	logs    consumertest.LogsSink
	metrics consumertest.MetricsSink
}

func newBench(t testing.TB, change func(*Config)) *bench {
	t.Helper()
	cfg := createDefaultConfig().(*Config)
	if change != nil {
		change(cfg)
	}
	f := &factory{known: map[*Config]*memory{}}
	b := &bench{t: t, view: &view{}, reader: metric.NewManualReader(), sunk: &sinks{}}
	b.view.Backlog = 1 << 12
	set := processortest.NewNopSettings(component.MustNewType("gpuspan"))
	set.MeterProvider = metric.NewMeterProvider(metric.WithReader(b.reader))
	var err error
	check := func(e error) {
		if e != nil {
			t.Fatal(e)
		}
	}
	b.traces, err = f.createTraces(t.Context(), set, cfg, &b.sunk.traces)
	check(err)
	b.logs, err = f.createLogs(t.Context(), set, cfg, &b.sunk.logs)
	check(err)
	b.metrics, err = f.createMetrics(t.Context(), set, cfg, &b.sunk.metrics)
	check(err)
	b.memory = f.known[cfg]
	b.memory.clock = func() time.Time { return epoch.Add(time.Minute) }
	for _, p := range []component.Component{b.traces, b.logs, b.metrics} {
		check(p.Start(t.Context(), host{component.MustNewID("gpu"): b.view}))
		t.Cleanup(func() { check(p.Shutdown(context.Background())) })
	}
	return b
}

// gpu is what a device says at a tick.
type gpu struct {
	util, temp, watts float64
	throttle          device.Buckets
	shares            map[string]float64
	joules            map[string]float64
}

// tick publishes a tick and waits until the processor knows it.
func (b *bench) tick(seconds float64, gpus ...gpu) {
	b.t.Helper()
	t := node.Tick{Time: epoch.Add(time.Duration(seconds * 1e9)), Host: "n1"}
	for i, g := range gpus {
		r := node.Reading{Up: true, Busy: device.Of(g.util), Sample: device.Sample{
			ID:     device.ID{UUID: fmt.Sprint("GPU-", i), Index: i, Model: "H200"},
			Memory: device.Memory{Used: device.Of(float64(i+1) * (1 << 30)), Total: device.Of(141 << 30)}, Temperatures: []device.Temperature{{Sensor: "edge", Value: device.Of(g.temp)}},
			Powers: []device.Power{{Scope: "gpu", Instant: device.Of(g.watts)}}, Throttles: []device.Throttle{{Cause: "x", Buckets: g.throttle, Active: g.throttle != 0}},
		}}
		for id, share := range g.shares {
			r.Holders = append(r.Holders, node.Holder{
				Workload: workload.Workload{ID: id, Kind: "container", Name: id}, Since: epoch.Add(-time.Hour), Share: share,
				Utilization: device.Of(g.util * share), Power: device.Of(g.watts * share), Energy: device.Of(g.joules[id]),
			})
		}
		t.Readings = append(t.Readings, r)
	}
	b.view.Publish(t)
	for b.memory.timeline.Newest() != t.Time.UnixNano() { // the event is awaited: the deadline is that of the test
		runtime.Gosched()
	}
}

// send sends spans of a container and returns the first as it came out, with its attributes and events.
func (b *bench) send(container string, spans ...[2]float64) []ptrace.Span {
	b.t.Helper()
	td := ptrace.NewTraces()
	rs := td.ResourceSpans().AppendEmpty()
	rs.Resource().Attributes().PutStr("container.id", container)
	ss := rs.ScopeSpans().AppendEmpty()
	for i, s := range spans {
		span := ss.Spans().AppendEmpty()
		span.SetTraceID([16]byte{1})
		span.SetSpanID([8]byte{byte(i + 1), byte(i >> 8)})
		span.SetStartTimestamp(at(s[0]))
		span.SetEndTimestamp(at(s[1]))
	}
	return b.sendTraces(td)
}

func (b *bench) sendTraces(td ptrace.Traces) []ptrace.Span {
	b.t.Helper()
	if err := b.traces.ConsumeTraces(b.t.Context(), td); err != nil {
		b.t.Fatal(err)
	}
	all := b.sunk.traces.AllTraces()
	var list []ptrace.Span
	for _, rs := range all[len(all)-1].ResourceSpans().All() {
		for _, ss := range rs.ScopeSpans().All() {
			for _, span := range ss.Spans().All() {
				list = append(list, span)
			}
		}
	}
	return list
}

// outcomes returns gpumeter.spans.items by signal and outcome.
func (b *bench) outcomes() map[string]int64 {
	b.t.Helper()
	var rm metricdata.ResourceMetrics
	if err := b.reader.Collect(b.t.Context(), &rm); err != nil {
		b.t.Fatal(err)
	}
	got := map[string]int64{}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			if m.Name != "gpumeter.spans.items" {
				continue
			}
			for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
				signal, _ := p.Attributes.Value("signal")
				what, _ := p.Attributes.Value("outcome")
				got[signal.AsString()+" "+what.AsString()] = p.Value
			}
		}
	}
	return got
}
