package cudareceiver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/receiver/cudareceiver/internal/metadata"
)

// hosting is a Collector with the given extensions.
type hosting map[component.ID]component.Component

func (h hosting) GetExtensions() map[component.ID]component.Component { return h }

// view is an extension that ticks on demand and knows the workloads of processes.
type view struct {
	component.StartFunc
	component.ShutdownFunc
	whoIs
	ticks chan node.Tick
}

func (v *view) Subscribe() (<-chan node.Tick, func()) {
	return v.ticks, sync.OnceFunc(func() { close(v.ticks) })
}

// fakeSource counts its calls.
type fakeSource struct {
	mu        sync.Mutex
	opened    int
	ran       bool
	snapshots int
	late      int // readings after Run ended
	gpus      map[uint32][]string
	fails     []error // error of each reading; nil beyond
}

func (f *fakeSource) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.snapshots > len(f.fails) {
		return nil
	}
	return f.fails[f.snapshots-1]
}

func (f *fakeSource) Run(ctx context.Context) error {
	<-ctx.Done()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ran = true
	return ctx.Err()
}

func (f *fakeSource) Snapshot(now time.Time, gpus map[uint32][]string) tracer.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.snapshots++
	f.gpus = gpus
	if f.ran {
		f.late++
	}
	p := proc(1, 0, f.snapshots*1000)
	return tracer.Snapshot{Time: now, Started: began, Processes: []tracer.Process{p}, Events: []tracer.Event{{Type: "error", Time: now, PID: 1, Op: "cuMemAlloc", Code: 2}}}
}

func (f *fakeSource) open(*Config) (source, error) {
	f.opened++
	return f, nil
}

// Catches two tracers for a metrics and a logs pipeline, readings more frequent than the interval, and
// pending ticks that are not read before the tracer stops.
func TestReceiver(t *testing.T) {
	f := &fakeSource{}
	v := &view{ticks: make(chan node.Tick, 8), whoIs: whoIs{1: llm}}
	factory := newFactory(f.open, &Switch{})
	cfg := factory.CreateDefaultConfig().(*Config)
	set := receivertest.NewNopSettings(metadata.Type)
	metrics, logs := new(consumertest.MetricsSink), new(consumertest.LogsSink)
	m, err := factory.CreateMetrics(t.Context(), set, cfg, metrics)
	if err != nil {
		t.Fatal(err)
	}
	l, err := factory.CreateLogs(t.Context(), set, cfg, logs)
	if err != nil {
		t.Fatal(err)
	}
	seconds := 0
	m.(*cudaReceiver).clock = func() time.Time { seconds += 5; return at(seconds) }
	host := hosting{component.MustNewID("gpu"): v}
	for _, r := range []component.Component{m, l} {
		if err := r.Start(t.Context(), host); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 { // at 5, 10, 15, 20 and 25 s
		v.ticks <- *machine(1, []uint32{1, 9})
	}
	for _, r := range []component.Component{m, l} {
		if err := r.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if f.opened != 1 || f.snapshots != 3 || f.late != 0 || !f.ran {
		t.Errorf("%+v", f)
	}
	if diff := cmp.Diff(map[uint32][]string{1: {uuid(0)}, 9: {uuid(0)}}, f.gpus); diff != "" {
		t.Error(diff)
	}
	batches := metrics.AllMetrics()
	if len(batches) != 3 || len(logs.AllLogs()) != 3 {
		t.Fatalf("%d batches of metrics, %d of logs", len(batches), len(logs.AllLogs()))
	}
	if diff := cmp.Diff([]string{"gpu.cuda.busy.time{" + llmOn0 + "} 3 since 1s"}, only(render(batches[2]), "gpu.cuda.busy.time")); diff != "" {
		t.Error(diff)
	}
	if host, _ := batches[0].ResourceMetrics().At(0).Resource().Attributes().Get("host.name"); host.Str() != "host1" {
		t.Errorf("host.name is %q", host.Str())
	}
}

// Catches an agent that fails where nothing can be traced, or that does not log once what is missing.
func TestReceiverWithoutRights(t *testing.T) {
	core, log := observer.New(zap.InfoLevel)
	set := receivertest.NewNopSettings(metadata.Type)
	set.Logger = zap.New(core)
	factory := newFactory(func(*Config) (source, error) { return nil, errors.New("CAP_BPF is missing") }, &Switch{})
	sink := new(consumertest.MetricsSink)
	r, err := factory.CreateMetrics(t.Context(), set, factory.CreateDefaultConfig(), sink)
	if err != nil {
		t.Fatal(err)
	}
	v := &view{ticks: make(chan node.Tick, 8)}
	if err := r.Start(t.Context(), hosting{component.MustNewID("gpu"): v}); err != nil {
		t.Fatal(err)
	}
	v.ticks <- *machine(1)
	if err := r.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := only(render(sink.AllMetrics()[0]), "gpumeter.tracer.up"); len(got) != 1 || got[0] != "gpumeter.tracer.up{} 0" {
		t.Errorf("%q", got)
	}
	if n := log.Len(); n != 1 || log.All()[0].ContextMap()["reason"] != "CAP_BPF is missing" {
		t.Errorf("%d lines: %v", n, log.All())
	}
}

// Catches a running tracer that cannot read the kernel's counters and still reports up, and a failure or
// recovery that is not logged exactly once.
func TestReceiverCannotRead(t *testing.T) {
	core, log := observer.New(zap.InfoLevel)
	set := receivertest.NewNopSettings(metadata.Type)
	set.Logger = zap.New(core)
	f := &fakeSource{fails: []error{nil, errors.New("cannot read ops: 1"), errors.New("cannot read ops: 2")}}
	factory := newFactory(f.open, &Switch{})
	sink := new(consumertest.MetricsSink)
	r, err := factory.CreateMetrics(t.Context(), set, factory.CreateDefaultConfig(), sink)
	if err != nil {
		t.Fatal(err)
	}
	seconds := 0
	r.(*cudaReceiver).clock = func() time.Time { seconds += 10; return at(seconds) }
	v := &view{ticks: make(chan node.Tick, 8)}
	if err := r.Start(t.Context(), hosting{component.MustNewID("gpu"): v}); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		v.ticks <- *machine(1)
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	var up, said []string
	for _, md := range sink.AllMetrics() {
		up = append(up, only(render(md), "gpumeter.tracer.up")...)
	}
	for _, l := range log.All() {
		said = append(said, strings.TrimSpace(l.Message+" "+fmt.Sprint(l.ContextMap()["reason"])))
	}
	if diff := cmp.Diff([]string{"gpumeter.tracer.up{} 1", "gpumeter.tracer.up{} 0", "gpumeter.tracer.up{} 0", "gpumeter.tracer.up{} 1"}, up); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"Cannot read the traced counters: their values are frozen cannot read ops: 1", "The traced counters are readable again <nil>"}, said); diff != "" {
		t.Error(diff)
	}
}

// Catches a start without the gpu extension, which knows the devices and owners.
func TestReceiverNeedsTheExtension(t *testing.T) {
	factory := newFactory((&fakeSource{}).open, &Switch{})
	r, err := factory.CreateMetrics(t.Context(), receivertest.NewNopSettings(metadata.Type), factory.CreateDefaultConfig(), consumertest.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), componenttest.NewNopHost()); err == nil || !strings.Contains(err.Error(), "needs the gpu extension") {
		t.Error(err)
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

// Catches an invalid key or value that is accepted, or an error that does not name it.
func TestConfig(t *testing.T) {
	f := func(want string, conf map[string]any) {
		t.Helper()
		cfg := createDefaultConfig()
		err := confmap.NewFromStringMap(conf).Unmarshal(cfg)
		if err == nil {
			err = cfg.(*Config).Validate()
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v: %v, want %q", conf, err, want)
		}
	}
	f("", nil)
	f("", map[string]any{"histograms": "exponential", "per_process": true, "mode": "perf", "interval": "30s"})
	f("interval must be between 1s and 5m", map[string]any{"interval": "1ms"})
	f("histograms must be", map[string]any{"histograms": "round"})
	f("mode must be", map[string]any{"mode": "kprobe"})
	f("max_series must be above 0", map[string]any{"max_series": 0})
	f("hang_after must be at least 1s", map[string]any{"hang_after": "0s"})
	f("invalid keys", map[string]any{"no_such": 1})
}
