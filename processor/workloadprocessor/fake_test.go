package workloadprocessor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/processortest"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/series"
	"github.com/gpumeter/gpumeter/internal/workload"
	"github.com/gpumeter/gpumeter/processor/workloadprocessor/internal/metadata"
)

// view is a gpu extension.
type view struct {
	component.StartFunc
	component.ShutdownFunc
	node.Fanout

	processes  map[uint32]workload.Workload
	containers map[string]workload.Workload
}

func (v *view) Process(pid uint32) (workload.Workload, bool) {
	w, ok := v.processes[pid]
	return w, ok
}

func (v *view) Container(id string) (workload.Workload, bool) {
	w, ok := v.containers[id]
	return w, ok
}

type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

// bench is a running processor in a pipeline of each signal.
type bench struct {
	t         testing.TB
	view      *view
	knowledge *knowledge
	reader    *metric.ManualReader

	metrics processor.Metrics
	logs    processor.Logs
	traces  processor.Traces

	gotMetrics consumertest.MetricsSink
	gotLogs    consumertest.LogsSink
	gotTraces  consumertest.TracesSink
}

func newBench(t testing.TB, change func(*Config)) *bench {
	t.Helper()
	cfg := createDefaultConfig().(*Config)
	if change != nil {
		change(cfg)
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, view: &view{}, reader: metric.NewManualReader()}
	set := processortest.NewNopSettings(metadata.Type)
	set.MeterProvider = metric.NewMeterProvider(metric.WithReader(b.reader))
	f := &factory{known: map[*Config]*knowledge{}}
	var errs [3]error
	b.metrics, errs[0] = f.createMetrics(t.Context(), set, cfg, &b.gotMetrics)
	b.logs, errs[1] = f.createLogs(t.Context(), set, cfg, &b.gotLogs)
	b.traces, errs[2] = f.createTraces(t.Context(), set, cfg, &b.gotTraces)
	b.knowledge = f.known[cfg]
	for i, c := range []component.Component{b.metrics, b.logs, b.traces} {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		if err := c.Start(t.Context(), host{component.MustNewID("gpu"): b.view}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, c := range []component.Component{b.metrics, b.logs, b.traces} {
			if err := c.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
		}
		if len(f.known) > 0 {
			t.Error("what was shared outlives its users")
		}
	})
	return b
}

// tick makes the processor know t. It does not wait for a goroutine to be lucky.
func (b *bench) tick(t node.Tick) { b.knowledge.here.last.Store(newInventory(&t)) }

// attrs makes attributes of pairs; other values than text stand as they are.
func attrs(m pcommon.Map, pairs ...any) {
	for i := 0; i < len(pairs); i += 2 {
		v := m.PutEmpty(pairs[i].(string))
		if err := v.FromRaw(pairs[i+1]); err != nil {
			panic(err)
		}
	}
}

// pairs are attributes: key, value, key, value ...
type pairs []any

// gauge returns a batch with one metric, a point for each of points.
func gauge(resource pairs, name string, points ...pairs) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	attrs(rm.Resource().Attributes(), resource...)
	m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName(name)
	list := m.SetEmptyGauge().DataPoints()
	for _, p := range points {
		attrs(list.AppendEmpty().Attributes(), p...)
	}
	return md
}

// added returns what the processor adds to each point of md, after what it adds to the
// resource if that is something.
func (b *bench) added(md pmetric.Metrics) []string {
	b.t.Helper()
	before := pmetric.NewMetrics()
	md.CopyTo(before)
	b.gotMetrics.Reset()
	if err := b.metrics.ConsumeMetrics(b.t.Context(), md); err != nil {
		b.t.Fatal(err)
	}
	return more(mapsOf(before), mapsOf(b.gotMetrics.AllMetrics()[0]), b.t)
}

// mapsOf returns all attributes of md: of each resource, then of its points.
func mapsOf(md pmetric.Metrics) (list []pcommon.Map) {
	for _, rm := range md.ResourceMetrics().All() {
		list = append(list, rm.Resource().Attributes())
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				list = slices.AppendSeq(list, series.Attributes(m))
			}
		}
	}
	return list
}

func (b *bench) addedToLogs(ld plog.Logs) []string {
	b.t.Helper()
	list := func(ld plog.Logs) (list []pcommon.Map) {
		rl := ld.ResourceLogs().At(0)
		list = append(list, rl.Resource().Attributes())
		for _, r := range rl.ScopeLogs().At(0).LogRecords().All() {
			list = append(list, r.Attributes())
		}
		return list
	}
	before := plog.NewLogs()
	ld.CopyTo(before)
	b.gotLogs.Reset()
	if err := b.logs.ConsumeLogs(b.t.Context(), ld); err != nil {
		b.t.Fatal(err)
	}
	return more(list(before), list(b.gotLogs.AllLogs()[0]), b.t)
}

func (b *bench) addedToSpans(td ptrace.Traces) []string {
	b.t.Helper()
	list := func(td ptrace.Traces) (list []pcommon.Map) {
		rs := td.ResourceSpans().At(0)
		list = append(list, rs.Resource().Attributes())
		for _, s := range rs.ScopeSpans().At(0).Spans().All() {
			list = append(list, s.Attributes())
		}
		return list
	}
	before := ptrace.NewTraces()
	td.CopyTo(before)
	b.gotTraces.Reset()
	if err := b.traces.ConsumeTraces(b.t.Context(), td); err != nil {
		b.t.Fatal(err)
	}
	return more(list(before), list(b.gotTraces.AllTraces()[0]), b.t)
}

// more returns what after has beyond before, one line for each, and fails if anything
// that was there is another now.
func more(before, after []pcommon.Map, t testing.TB) []string {
	t.Helper()
	if len(before) != len(after) {
		t.Fatalf("there were %d sets of attributes, there are %d", len(before), len(after))
	}
	var lines []string
	for i := range before {
		var list []string
		for key, v := range after[i].All() {
			old, ok := before[i].Get(key)
			switch {
			case !ok:
				list = append(list, key+"="+v.AsString())
			case !old.Equal(v):
				t.Errorf("%s was %s and is %s", key, old.AsString(), v.AsString())
			}
		}
		if after[i].Len() != before[i].Len()+len(list) {
			t.Error("attributes are gone")
		}
		slices.Sort(list)
		lines = append(lines, strings.Join(list, " "))
	}
	return lines
}

// counted returns the self metrics of the processor.
func (b *bench) counted() []string {
	b.t.Helper()
	var rm metricdata.ResourceMetrics
	if err := b.reader.Collect(b.t.Context(), &rm); err != nil {
		b.t.Fatal(err)
	}
	list := []string{}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			if !strings.HasPrefix(m.Name, "gpumeter.") {
				continue // of processorhelper
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					list = append(list, fmt.Sprint(m.Name, " ", p.Attributes.Encoded(encoder), " ", p.Value))
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					list = append(list, fmt.Sprint(m.Name, " ", p.Value))
				}
			}
		}
	}
	slices.Sort(list)
	return list
}
