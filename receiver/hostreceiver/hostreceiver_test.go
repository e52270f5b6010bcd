package hostreceiver

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/receiver/hostreceiver/internal/metadata"
)

// points returns every point as name, unit, attributes, time: value.
func points(t *testing.T, md pmetric.Metrics) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				for _, p := range m.Gauge().DataPoints().All() {
					raw := p.Attributes().AsRaw()
					name := fmt.Sprintf("%s [%s] %v", m.Name(), m.Unit(), slices.Collect(maps.Values(raw)))
					if _, twice := out[name]; twice {
						t.Errorf("%s is there twice", name)
					}
					out[name] = p.DoubleValue()
				}
			}
		}
	}
	return out
}

func write(t *testing.T, root, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(root, "proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "proc", name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func testReceiver(t *testing.T, root string) *hostReceiver {
	t.Helper()
	cfg := createDefaultConfig().(*Config)
	cfg.Root = root
	return newReceiver(cfg, receivertest.NewNopSettings(metadata.Type), consumertest.NewNop())
}

var (
	noon = time.Unix(1_800_000_000, 0)
	near = cmpopts.EquateApprox(0, 1e-12)
)

// Catches a missing series, a series per CPU, and a percentage instead of a ratio.
func TestRead(t *testing.T) {
	root := t.TempDir()
	write(t, root, "stat", "cpu  1000 0 300 8000 100 10 20 5 3 0\ncpu0 1000 0 300 8000 100 10 20 5 3 0\n")
	write(t, root, "meminfo", "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 700 kB\n")
	r := testReceiver(t, root)
	memory := map[string]float64{
		"system.memory.utilization [1] [used]": 0.3, "system.memory.utilization [1] [free]": 0.1, "system.memory.utilization [1] [cached]": 0.6,
	}
	md, err := r.read(noon)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(memory, points(t, md), near); diff != "" {
		t.Errorf("first (-want +got):\n%s", diff)
	}

	write(t, root, "stat", "cpu  1400 50 500 8350 100 20 30 5 3 0\n")
	md, err = r.read(noon.Add(10 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	want := maps.Clone(memory)
	for mode, ticks := range map[string]float64{"user": 400, "nice": 50, "system": 200, "interrupt": 20, "steal": 0, "iowait": 0, "idle": 350} {
		want[fmt.Sprintf("system.cpu.utilization [1] [%s]", mode)] = ticks / 1020
	}
	got := points(t, md)
	if diff := cmp.Diff(want, got, near); diff != "" {
		t.Errorf("second (-want +got):\n%s", diff)
	}
	for _, p := range md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints().All() {
		if p.Timestamp() != pcommon.NewTimestampFromTime(noon.Add(10*time.Second)) {
			t.Errorf("a point has timestamp %s", p.Timestamp())
		}
	}
}

// Catches a torn file that loses other metrics, and a gap taken for an interval.
func TestReadTorn(t *testing.T) {
	root := t.TempDir()
	write(t, root, "stat", "cpu 100 0 0 100\n")
	write(t, root, "meminfo", "nonsense")
	r := testReceiver(t, root)
	for range 2 {
		md, err := r.read(noon)
		if err == nil || !strings.Contains(err.Error(), "meminfo") || md.DataPointCount() != 0 {
			t.Errorf("got %v and %d points", err, md.DataPointCount())
		}
	}
	write(t, root, "stat", "x")
	write(t, root, "meminfo", "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 700 kB\n")
	if md, err := r.read(noon); err == nil || md.DataPointCount() != 3 {
		t.Errorf("got %v and %d points", err, md.DataPointCount())
	}
	write(t, root, "stat", "cpu 200 0 0 100\n")
	if md, err := r.read(noon); err != nil || md.DataPointCount() != 3 {
		t.Errorf("after a gap: got %v and %d points", err, md.DataPointCount())
	}
}

// known is an extension that knows the machine and ticks.
type known struct {
	component.Component

	ticks chan node.Tick
}

func (k known) Subscribe() (ticks <-chan node.Tick, cancel func()) {
	return k.ticks, sync.OnceFunc(func() { close(k.ticks) })
}

type hosted struct {
	component.Host

	known known
}

func (h hosted) GetExtensions() map[component.ID]component.Component {
	return map[component.ID]component.Component{component.MustNewID("gpu"): h.known}
}

var tick = node.Tick{Host: "node7", Simulated: true, Resource: map[string]string{"k8s.cluster.name": "c", "cloud.region": "r"}}

// Catches two names for one machine, whose metrics cannot be joined.
func TestResource(t *testing.T) {
	f := func(r *hostReceiver, want map[string]any) {
		t.Helper()
		if diff := cmp.Diff(want, r.resource().Attributes().AsRaw()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
	r := testReceiver(t, "")
	f(r, map[string]any{"service.name": "gpumeter"})
	r.kernel = "kernel"
	f(r, map[string]any{"host.name": "kernel", "service.name": "gpumeter"})
	r.tick = tick
	f(r, map[string]any{"host.name": "node7", "service.name": "gpumeter", "gpumeter.simulated": true, "k8s.cluster.name": "c", "cloud.region": "r"})
	r.cfg.HostName, r.cfg.Resource = "mine", map[string]string{"k8s.cluster.name": "d"}
	f(r, map[string]any{"host.name": "mine", "service.name": "gpumeter", "gpumeter.simulated": true, "k8s.cluster.name": "d", "cloud.region": "r"})
}

// Catches a factory that does not work with the real /proc, with and without an extension: two batches,
// the second with CPU utilization, a clean shutdown, and no batch for an early tick.
func TestRun(t *testing.T) {
	f := func(host component.Host, name string) {
		t.Helper()
		cfg := createDefaultConfig().(*Config)
		cfg.Interval = 100 * time.Millisecond
		sink := &consumertest.MetricsSink{}
		r, err := NewFactory().CreateMetrics(t.Context(), receivertest.NewNopSettings(metadata.Type), cfg, sink)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Start(t.Context(), host); err != nil {
			t.Fatal(err)
		}
		if h, ok := host.(hosted); ok {
			for _, after := range []time.Duration{0, 10 * time.Millisecond, time.Second} {
				tick := tick
				tick.Time = noon.Add(after)
				h.known.ticks <- tick
				time.Sleep(50 * time.Millisecond) // the kernel counts in hundredths of a second
			}
		}
		await.True(t, "two batches", func() bool { return sink.DataPointCount() >= 13 })
		if err := r.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		all := sink.AllMetrics()
		if len(all) < 2 || name != "" && len(all) > 2 {
			t.Fatalf("there are %d batches", len(all))
		}
		if got, _ := all[0].ResourceMetrics().At(0).Resource().Attributes().Get("host.name"); name != "" && got.Str() != name {
			t.Errorf("host.name is %q", got.Str())
		}
		sums := map[string]float64{}
		for name, v := range points(t, all[len(all)-1]) {
			metric, _, _ := strings.Cut(name, " ")
			sums[metric] += v
		}
		for _, name := range []string{"system.cpu.utilization", "system.memory.utilization"} {
			if math.Abs(sums[name]-1) > 1e-9 {
				t.Errorf("all of %s is %v", name, sums[name])
			}
		}
	}
	f(componenttest.NewNopHost(), "")
	f(hosted{componenttest.NewNopHost(), known{ticks: make(chan node.Tick)}}, "node7")
}

// Catches an unreadable file that is logged every ten seconds instead of once.
func TestSay(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	r := testReceiver(t, t.TempDir())
	r.set.Logger = zap.New(core)
	for range 3 {
		_, err := r.read(noon)
		r.say(err)
		r.deliver(err)
	}
	r.say(nil)
	r.deliver(nil)
	var got []string
	for _, e := range logs.All() {
		got = append(got, e.Message)
	}
	want := []string{
		"Cannot read some host metrics", "The pipeline refuses metrics of this machine",
		"All host metrics are readable again", "The pipeline accepts metrics of this machine again",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestConfig(t *testing.T) {
	cfg := createDefaultConfig().(*Config)
	conf := confmap.NewFromStringMap(map[string]any{"interval": "50ms", "root": "/host"})
	if err := conf.Unmarshal(cfg); err != nil {
		t.Fatal(err)
	}
	if err := cfg.Validate(); err == nil || err.Error() != "interval must be at least 100ms, is 50ms" {
		t.Errorf("50ms gives %v", err)
	}
	if got := cfg.reader().Proc; got != "/host/proc" {
		t.Errorf("the root gives %s", got)
	}
	if got := createDefaultConfig().(*Config).reader().Proc; got != "/proc" {
		t.Errorf("no root gives %s", got)
	}
	if err := confmap.NewFromStringMap(map[string]any{"intervall": "1s"}).Unmarshal(createDefaultConfig()); err == nil {
		t.Error("an unknown key is accepted")
	}
}
