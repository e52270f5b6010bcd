package gpuspanprocessor

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/processor/processortest"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/spans"
	"github.com/gpumeter/gpumeter/internal/timeline"
)

var near = cmpopts.EquateApprox(1e-9, 1e-9)

type raw = map[string]any

// three ticks of one GPU that a holds, and b uses in the second one.
func (b *bench) script() {
	b.tick(0, gpu{util: 0.2, temp: 50, watts: 100, shares: map[string]float64{"a": 1}, joules: map[string]float64{"a": 1e6}})
	b.tick(10, gpu{util: 1, temp: 85, watts: 600, throttle: device.BucketThermal | device.BucketHW, shares: map[string]float64{"a": 0.75, "b": 0.25}, joules: map[string]float64{"a": 1e6 + 2000}})
	b.tick(20, gpu{util: 0.5, temp: 60, watts: 400, shares: map[string]float64{"a": 1}, joules: map[string]float64{"a": 1e6 + 6500}})
}

// Catches an attribute or event that is missing, wrong or new: the whole of a span.
func TestSpan(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	b.script()
	got := b.send("a", [2]float64{5, 22}, [2]float64{1, 2})
	want := raw{
		"gpu.uuid": "GPU-0", "gpu.model": "H200",
		"gpu.span.utilization.start": 0.2, "gpu.span.utilization.end": 0.5, "gpu.span.utilization.mean": (5*0.2 + 10 + 2*0.5) / 17, "gpu.span.utilization.max": 1.,
		"gpu.span.memory.used.start": float64(1 << 30), "gpu.span.memory.used.max": float64(1 << 30),
		"gpu.span.temperature.max": 85., "gpu.span.power.mean": (5*100 + 10*600 + 2*400) / 17., "gpu.span.throttle.time": 10.,
		"gpu.span.throttle.power.time": 0., "gpu.span.throttle.thermal.time": 10., "gpu.span.throttle.sw.time": 0., "gpu.span.throttle.hw.time": 10.,
		"gpu.span.energy": 1000. + 4500 + 800, "gpu.span.workload.energy": 1000. + 4500 + 800, "gpu.span.energy.basis": "power",
		"gpu.span.neighbours": []any{"b"}, "gpu.span.neighbours.utilization": 2.5 / 17,
	}
	if diff := cmp.Diff(want, got[0].Attributes().AsRaw(), near); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
	type event struct {
		Name  string
		At    pcommon.Timestamp
		Attrs raw
	}
	var events []event
	for _, e := range got[0].Events().All() {
		events = append(events, event{e.Name(), e.Timestamp(), e.Attributes().AsRaw()})
	}
	if diff := cmp.Diff([]event{
		{"gpu_high_utilization", at(10), raw{"gpu.uuid": "GPU-0", "gpu.utilization": 1., "threshold": 0.9}},
		{"gpu_high_temperature", at(10), raw{"gpu.uuid": "GPU-0", "gpu.temperature": 85., "threshold": 80.}},
		{"gpu_throttled", at(10), raw{"gpu.uuid": "GPU-0", "gpu.throttle.bucket": []any{"thermal", "hw"}, "gpu.throttle.time": 10.}},
		{"gpu_neighbour", at(10), raw{"gpu.uuid": "GPU-0", "gpu.neighbours": []any{"b"}, "gpu.utilization": 2.5 / 17, "threshold": 0.05}},
	}, events, near); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if a := got[1].Attributes().AsRaw(); a["gpu.sample.age"] != 1. || a["gpu.span.energy.basis"] != "counter" || a["gpu.span.energy"] != 200. || got[1].Events().Len() != 0 {
		t.Errorf("a span shorter than a tick: %v", a)
	}
}

// Catches names of guides in the wrong unit, and ours when they were not asked for.
func TestGuide(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *Config) { c.Names = namesGuide; c.Events = Events{HighUtilization: 1, Neighbour: 1} })
	b.script()
	got := b.send("a", [2]float64{5, 22})[0]
	if diff := cmp.Diff(raw{
		"gpu.uuid": "GPU-0", "gpu.model": "H200", "gpu.index": int64(0),
		"gpu.utilization_at_start": 20., "gpu.utilization_at_end": 50., "gpu.memory_used_mb_at_start": 1024., "gpu.temperature_at_start": 50.,
	}, got.Attributes().AsRaw(), near); diff != "" || got.Events().Len() != 0 {
		t.Errorf("%d events (-want +got):\n%s", got.Events().Len(), diff)
	}
}

// Several devices are lists in one order, with a gap where one has no value; joules are one sum.
func TestLists(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	mine := map[string]float64{"a": 1}
	for i := range 3 {
		j := map[string]float64{"a": 1000 * float64(i)}
		b.tick(10*float64(i), gpu{util: 0.1, watts: 100, shares: mine, joules: j}, gpu{util: 0.2, watts: 100, shares: mine, joules: j}, gpu{util: 0.3, shares: map[string]float64{"b": 1}})
	}
	got := b.send("a", [2]float64{2, 4})[0].Attributes().AsRaw()
	for key, want := range map[string]any{
		"gpu.uuid": []any{"GPU-0", "GPU-1"}, "gpu.span.utilization.start": []any{0.1, 0.2}, "gpu.span.energy": 400., "gpu.sample.age": 2., "gpu.span.energy.basis": "counter",
	} {
		if diff := cmp.Diff(want, got[key], near); diff != "" {
			t.Errorf("%s (-want +got):\n%s", key, diff)
		}
	}
	if _, there := got["gpu.partition.id"]; there {
		t.Errorf("a device is a partition: %v", got)
	}
}

// Whatever is sent, all of it comes out, nothing of it is overwritten, and what became of it is counted.
func TestGarbage(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	b.script()
	r := rand.New(rand.NewPCG(1, 2))
	td := ptrace.NewTraces()
	fill := func(rs ptrace.ResourceSpans, from, to pcommon.Timestamp) ptrace.Span {
		span := rs.ScopeSpans().AppendEmpty().Spans().AppendEmpty()
		span.SetStartTimestamp(from)
		span.SetEndTimestamp(to)
		return span
	}
	known := func(id string) ptrace.ResourceSpans {
		rs := td.ResourceSpans().AppendEmpty()
		rs.Resource().Attributes().PutStr("container.id", "containerd://"+id)
		return rs
	}
	for range 50 {
		attrs := td.ResourceSpans().AppendEmpty()
		for _, key := range []string{"process.pid", "container.id", "host.name", "k8s.pod.uid", "slurm.job.id"} {
			v := attrs.Resource().Attributes().PutEmpty(key)
			switch r.IntN(6) {
			case 0:
				v.SetInt(r.Int64() - 1<<62)
			case 1:
				v.SetDouble(r.NormFloat64() * 1e300)
			case 2:
				v.SetStr(strings.Repeat("\xff", r.IntN(1000)+300))
			case 3:
				v.SetEmptySlice().AppendEmpty().SetEmptyMap().PutStr(key, key)
			case 4:
				v.SetEmptyBytes().Append(1, 2)
			}
		}
		fill(attrs, at(1), at(2))
	}
	fill(known("a"), at(11), at(12)).Attributes().PutStr("gpu.uuid", "mine")
	fill(known("a"), at(-86400), at(-86399))
	fill(known("a"), at(-86400), at(5))
	fill(known("a"), at(86400), at(86401))
	fill(known("a"), 0, at(1))
	fill(known("a"), at(5), at(1))
	fill(known("a"), 1<<63, 1<<63+1)
	fill(known("a"), at(1), 1<<63+1)
	fill(known("c"), at(1), at(2))
	fill(known("unknown"), at(1), at(2))
	big := fill(known("a"), at(1), at(2))
	big.Attributes().PutStr("text", strings.Repeat("x", 10<<20))
	big.SetParentSpanID(big.SpanID())
	sent := td.SpanCount()
	got := b.sendTraces(td)
	if len(got) != sent {
		t.Errorf("%d of %d spans came out", len(got), sent)
	}
	first := got[50].Attributes().AsRaw()
	if first["gpu.uuid"] != "mine" || first["gpu.span.utilization.end"] != 1. {
		t.Errorf("an attribute of the application was overwritten: %v", first)
	}
	if a := got[52].Attributes().AsRaw(); !cmp.Equal(a, raw{"gpu.uuid": "GPU-0", "gpu.model": "H200", "gpu.span.utilization.end": 0.2}) {
		t.Errorf("a span from yesterday until now: %v", a)
	}
	want := map[string]int64{"traces matched": 2, "traces late": 1, "traces expired": 1, "traces idle": 1, "traces unknown": 51, "traces future": 1, "traces invalid": 4}
	if diff := cmp.Diff(want, b.outcomes()); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
}

// Log records get the readings at their time, metrics only which device it is.
func TestRecords(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	b.script()
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	rl.Resource().Attributes().PutStr("container.id", "a")
	records := rl.ScopeLogs().AppendEmpty().LogRecords()
	records.AppendEmpty().SetTimestamp(at(12))
	records.AppendEmpty().SetObservedTimestamp(at(21))
	own := records.AppendEmpty()
	own.SetTimestamp(at(12))
	own.Attributes().PutStr("gpu.uuid", "GPU-7")
	records.AppendEmpty()
	if err := b.logs.ConsumeLogs(t.Context(), ld); err != nil {
		t.Fatal(err)
	}
	var got []raw
	for _, rec := range b.sunk.logs.AllLogs()[0].ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().All() {
		got = append(got, rec.Attributes().AsRaw())
	}
	if diff := cmp.Diff([]raw{
		{"gpu.uuid": "GPU-0", "gpu.model": "H200", "gpu.utilization": 1., "gpu.memory.used": float64(1 << 30), "gpu.temperature": 85.},
		{"gpu.uuid": "GPU-0", "gpu.model": "H200", "gpu.utilization": 0.5, "gpu.memory.used": float64(1 << 30), "gpu.temperature": 60.},
		{"gpu.uuid": "GPU-7"},
		{},
	}, got, near); diff != "" {
		t.Errorf("log records (-want +got):\n%s", diff)
	}
	b.memory.clock = func() time.Time { return epoch.Add(25 * time.Second) }
	md := pmetric.NewMetrics()
	md.ResourceMetrics().AppendEmpty().Resource().Attributes().PutStr("container.id", "a")
	if err := b.metrics.ConsumeMetrics(t.Context(), md); err != nil {
		t.Fatal(err)
	}
	resource := b.sunk.metrics.AllMetrics()[0].ResourceMetrics().At(0).Resource().Attributes().AsRaw()
	if diff := cmp.Diff(raw{"container.id": "a", "gpu.uuid": "GPU-0", "gpu.model": "H200"}, resource); diff != "" {
		t.Errorf("resource of metrics (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int64{"logs matched": 3, "logs invalid": 1, "metrics matched": 1}, b.outcomes()); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
}

// Catches back-pressure that does not reach the sender.
func TestBackPressure(t *testing.T) {
	t.Parallel()
	f := NewFactory()
	full := errors.New("the queue is full")
	p, err := f.CreateTraces(t.Context(), processortest.NewNopSettings(f.Type()), f.CreateDefaultConfig(), consumertest.NewErr(full))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(t.Context(), host{}); err == nil || !strings.Contains(err.Error(), "needs the gpu extension") {
		t.Errorf("without the extension: %v", err)
	}
	if err := p.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	p, err = f.CreateTraces(t.Context(), processortest.NewNopSettings(f.Type()), f.CreateDefaultConfig(), consumertest.NewErr(full))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(t.Context(), host{component.MustNewID("gpu"): &view{}}); err != nil {
		t.Fatal(err)
	}
	td := ptrace.NewTraces()
	td.ResourceSpans().AppendEmpty().ScopeSpans().AppendEmpty().Spans().AppendEmpty()
	if err := p.ConsumeTraces(t.Context(), td); !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
	if err := p.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	c := createDefaultConfig().(*Config)
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	c.Names, c.Events = "x", Events{HighUtilization: 2, HighTemperature: -1, Throttled: []string{"fire"}, Neighbour: -0.1}
	err := c.Validate()
	for _, part := range []string{`names: must be gpumeter, guide or both, not "x"`, "high_utilization", "high_temperature", `unknown bucket "fire"`, "neighbour"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not say %s", err, part)
		}
	}
}

// Catches counts of the tracer that are missing, of another process, or of a time that it does not know.
func TestTraced(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	for i := range 3 {
		n := float64(i)
		b.memory.board.Traced(int64(at(10*n)), map[uint32]spans.Calls{7: {Launches: 1000 * n, Busy: 5 * n, Copied: 1e6 * n, Waited: 2 * n}})
	}
	f := func(pid uint32, from, to float64, want raw) {
		t.Helper()
		attrs := pcommon.NewMap()
		b.memory.called(attrs, pid, &timeline.Span{From: int64(at(from)), To: int64(at(to))})
		if diff := cmp.Diff(want, attrs.AsRaw(), near); diff != "" {
			t.Errorf("process %d from %v to %v (-want +got):\n%s", pid, from, to, diff)
		}
	}
	f(7, 5, 15, raw{"gpu.span.cuda.launches": 1000., "gpu.span.cuda.busy.time": 5., "gpu.span.cuda.copy.io": 1e6, "gpu.span.cuda.sync.wait": 2.})
	f(7, 5, 45, raw{})
	f(8, 5, 15, raw{})
}
