package gpureceiver

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/series"
	"github.com/gpumeter/gpumeter/internal/workload"
	"github.com/gpumeter/gpumeter/receiver/gpureceiver/internal/metadata"
)

var update = flag.Bool("update", false, "rewrite golden files")

var (
	start = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	now   = start.Add(10 * time.Second)
)

func newEmitter(cfg *Config) *Emitter {
	return NewEmitter(cfg, receivertest.NewNopSettings(metadata.Type))
}

// everything returns a configuration with every metric enabled.
func everything(t *testing.T) *Config {
	t.Helper()
	cfg := createDefaultConfig().(*Config)
	metrics := reflect.ValueOf(&cfg.Metrics).Elem()
	for _, metric := range metrics.Fields() {
		metric.FieldByName("Enabled").SetBool(true)
	}
	return cfg
}

func tickOf(samples ...device.Sample) node.Tick {
	t := node.Tick{Time: now, Started: start, Host: "host1", Sources: []node.SourceStatus{{Name: "test", State: "open", Since: start}}}
	for _, s := range samples {
		r := node.Reading{Sample: s, Up: true, Since: start.Add(time.Second)}
		if s.ID.Parent == "" {
			r.Busy = s.Utilization.Compute
		}
		t.Readings = append(t.Readings, r)
	}
	return t
}

// fill sets every field below v to a distinct value: numbers count up from 1000, so that each can be
// recognized among the points, and strings contain their path.
func fill(v reflect.Value, path string, n *float64, found map[float64]string, texts map[string]bool) {
	switch x := v.Addr().Interface().(type) {
	case *device.Value:
		*n++
		*x = device.Of(*n)
		found[*n] = path
		return
	case *string:
		*x = "text of " + path
		texts[*x] = true
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				fill(v.Field(i), path+"."+f.Name, n, found, texts)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), path, n, found, texts)
	}
}

// number returns the value of a point, or the sum of a histogram.
func number(dp series.Point) float64 {
	if h, ok := dp.(pmetric.HistogramDataPoint); ok {
		return h.Sum()
	}
	return dp.(pmetric.NumberDataPoint).DoubleValue()
}

// Catches a value that is read but has no metric.
func TestEveryFieldIsEmitted(t *testing.T) {
	var s device.Sample
	n := 1000.0
	missing, texts := map[float64]string{}, map[string]bool{}
	fill(reflect.ValueOf(&s).Elem(), "Sample", &n, missing, texts)
	// Two lists are split by content: keep one of each.
	detail, total := s.ThrottleTimes[0], s.ECC[0]
	detail.Detail, detail.Seconds = true, device.Of(1)
	total.Location, total.Count = "", device.Of(2)
	s.ThrottleTimes = append(s.ThrottleTimes, detail)
	s.ECC = append(s.ECC, total)
	s.ID.Parent = "" // gpu.info is for physical devices only

	part := s
	part.ID.Parent = s.ID.UUID

	// Some hardware reports power utilization without watts.
	bare := device.Sample{ID: device.ID{UUID: "GPU-1"}, Powers: []device.Power{{Scope: "gpu", Utilization: s.Powers[0].Utilization}}}

	md := newEmitter(everything(t)).Emit(tickOf(s, part, bare))
	for m := range series.Metrics(md) {
		for dp := range series.Points(m) {
			delete(missing, number(dp))
			for _, v := range dp.Attributes().All() {
				delete(texts, v.AsString())
			}
		}
	}
	for _, path := range missing {
		t.Errorf("%s is not emitted", path)
	}
	for text := range texts {
		if !strings.HasSuffix(text, ".Parent") && !strings.HasSuffix(text, "Processes.Type") && !strings.HasSuffix(text, ".Aliases") {
			t.Errorf("%s is on no point", text)
		}
	}
}

// Catches a documented metric that is never recorded.
func TestEveryMetricIsRecorded(t *testing.T) {
	var s device.Sample
	n := 0.0
	fill(reflect.ValueOf(&s).Elem(), "", &n, map[float64]string{}, map[string]bool{})
	s.ID.Parent = ""
	s.ThrottleTimes = append(s.ThrottleTimes, device.ThrottleTime{Cause: "detail", Seconds: device.Of(1), Detail: true})
	s.ECC = append(s.ECC, device.ECC{Type: "corrected", Lifetime: "volatile", Count: device.Of(1)}, device.ECC{Type: "corrected", Lifetime: "aggregate", Count: device.Of(1)})
	s.Powers[0].Scope, s.Powers[0].Limits[0].Type = "gpu", device.LimitEnforced
	s.Temperatures[0].Sensor, s.Clocks[0].Type, s.Voltages[0].Rail = "edge", "sm", "core"
	part := s
	part.ID.UUID, part.ID.Parent = "MIG-0", s.ID.UUID
	tick := tickOf(s, part)
	tick.Readings[0].XIDs = []node.XIDCount{{Code: 31, Count: 1}}
	tick.Readings[0].Holders = []node.Holder{
		{Workload: workload.Workload{ID: "a", Kind: "job"}, Utilization: device.Of(1), MemoryUsed: device.Of(1), Power: device.Of(1), Energy: device.Of(1), Active: device.Of(1)},
		{Workload: nobody, Allocated: 1},
	}
	tick.Attribution = []workload.Status{{Source: "kubelet", Reason: workload.OK}}
	names := map[string]bool{}
	for m := range series.Metrics(newEmitter(everything(t)).Emit(tick)) {
		names[m.Name()] = true
	}
	metrics := reflect.TypeOf(metadata.NewDefaultMetricsBuilderConfig().Metrics)
	for metric := range metrics.Fields() {
		if name := metric.Tag.Get("mapstructure"); !names[name] {
			t.Errorf("%s is never recorded", name)
		}
	}
}

// goldenTick is a GPU under load, a partition of another GPU, and a lost GPU.
func goldenTick() node.Tick {
	of := device.Of
	gpu := func(i int) device.ID {
		return device.ID{Vendor: "nvidia", UUID: fmt.Sprintf("GPU-%d", i), Index: i, Model: "NVIDIA H200", PCI: fmt.Sprintf("0000:%02x:00.0", i)}
	}
	busy := device.Sample{
		ID:            gpu(0),
		Info:          device.Info{Driver: "580.159.04", Architecture: "hopper"},
		Utilization:   device.Engines{Compute: of(1), Memory: of(0.24), Encoder: of(0)},
		Memory:        device.Memory{Used: of(50), Free: of(40), Reserved: of(10), Total: of(100)},
		Temperatures:  []device.Temperature{{Sensor: "edge", Value: of(63), Limits: []device.TemperatureCap{{Event: "slowdown", Limit: of(89), Margin: of(26)}}}},
		Powers:        []device.Power{{Scope: "gpu", Instant: of(685.77), Average: of(689.58), Limits: []device.PowerLimit{{Type: device.LimitEnforced, Watts: of(700)}}}},
		Energy:        of(8653.252),
		Voltages:      []device.Voltage{{Rail: "core", Volts: of(0.75)}},
		Resets:        []device.ErrorCount{{Type: "hard", Count: of(1)}},
		Runtime:       runtimeOf(4),
		Throttles:     []device.Throttle{{Cause: "sw_power_cap", Buckets: device.BucketPower | device.BucketSW, Active: true}},
		Interconnects: []device.Interconnect{{Type: "nvlink", TX: of(1024), RX: of(2048), BandwidthLimit: of(478e9)}},
		ECC:           []device.ECC{{Type: "corrected", Lifetime: "volatile", Count: of(7)}, {Type: "corrected", Lifetime: "volatile", Location: "dram", Count: of(7)}},
		Processes:     []device.Process{{PID: 42, Name: "python3", Type: "compute", MemoryUsed: of(50), Utilization: of(0.9)}},
	}
	part := device.Sample{
		ID:      gpu(1),
		Memory:  device.Memory{Used: of(1), Total: of(10)},
		Profile: device.Profile{SMActive: of(0.5), Pipes: []device.Pipe{{Name: "tensor", Active: of(0.25)}}},
	}
	part.ID.Parent, part.ID.UUID, part.ID.Profile = part.ID.UUID, "MIG-1", "1g.18gb"
	t := tickOf(busy, part)
	t.Readings = append(t.Readings, node.Reading{Sample: device.Sample{ID: gpu(2)}, Problem: "lost", Since: start})
	t.Readings[0].XIDs = []node.XIDCount{{Code: 13, Count: 7, Since: start.Add(-time.Hour)}, {Code: 31, Count: 1, Since: start.Add(-time.Hour)}}
	t.Readings[2].XIDs = []node.XIDCount{{Code: 79, Count: 1, Since: start.Add(-time.Hour)}}
	t.Simulated = true
	t.Sources[0].Errors, t.LostTicks, t.LostEvents = 3, 1, 2
	return t
}

func TestGolden(t *testing.T) {
	got := marshal(t, newEmitter(createDefaultConfig().(*Config)).Emit(goldenTick()))
	golden(t, "metrics.json", got)
}

func marshal(t *testing.T, md pmetric.Metrics) []byte {
	t.Helper()
	raw, err := (&pmetric.JSONMarshaler{}).MarshalMetrics(md)
	if err != nil {
		t.Fatal(err)
	}
	return indent(t, raw)
}

func indent(t *testing.T, raw []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", " "); err != nil {
		t.Fatal(err)
	}
	out.WriteByte('\n')
	return out.Bytes()
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got), rewrite it with -update:\n%s", path, diff)
	}
}

// Catches documentation of the optional attributes that differs from their tables.
func TestAttributesDocument(t *testing.T) {
	var b strings.Builder
	b.WriteString("[comment]: <> (Written by go test -update from decorate.go and internal/workload/attributes.go. Do not edit.)\n\n# Attributes of some points\n\n")
	b.WriteString("Beside those in documentation.md, a point has these where they apply.\n\n| attribute | meaning |\n|---|---|\n")
	for _, d := range decorations {
		fmt.Fprintf(&b, "| %s | %s |\n", d.key, d.description)
	}
	for _, m := range workload.Meanings() {
		fmt.Fprintf(&b, "| %s | %s |\n", m.Key, m.Text)
	}
	got := []byte(b.String())
	const path = "attributes.md"
	if *update {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(want, got) {
		t.Errorf("attributes.md is out of date, rewrite it with -update (%v)", err)
	}
}

func TestSwitches(t *testing.T) {
	cfg := createDefaultConfig().(*Config)
	cfg.Metrics.GpuEnergy.Enabled = false
	cfg.Metrics.GpuProcessMemoryUsed.Enabled = true
	names := map[string]bool{}
	for m := range series.Metrics(newEmitter(cfg).Emit(goldenTick())) {
		names[m.Name()] = true
	}
	if names["gpu.energy"] || !names["gpu.process.memory.used"] || names["gpu.ecc.location.errors"] {
		t.Errorf("metrics: %v", names)
	}
}

// Catches a limit that truncates narrow metrics instead of the widest, and dropped points that the next
// tick does not report.
func TestSeriesCap(t *testing.T) {
	cfg := everything(t)
	cfg.MaxProcesses = 1000
	s := device.Sample{ID: device.ID{UUID: "GPU-0"}, Energy: device.Of(1), Utilization: device.Engines{Compute: device.Of(1)}}
	for pid := range uint32(100) {
		s.Processes = append(s.Processes, device.Process{PID: pid, MemoryUsed: device.Of(1)})
	}
	e := newEmitter(cfg)
	all := e.Emit(tickOf(s)).DataPointCount()
	e.cfg.MaxSeries = 50
	md := e.Emit(tickOf(s))
	if n := md.DataPointCount(); n != 50 {
		t.Errorf("%d points over a cap of 50", n)
	}
	e.cfg.MaxSeries = 1
	kept := map[string]bool{}
	for m := range series.Metrics(e.Emit(tickOf(s))) {
		if series.Len(m) > 0 {
			kept[m.Name()] = true
		}
	}
	if !kept["gpu.up"] || !kept["gpumeter.series.dropped"] || kept["gpu.energy"] {
		t.Errorf("a cap of 1 keeps %v", kept)
	}
	e = newEmitter(cfg)
	e.cfg.MaxSeries = 50
	e.Emit(tickOf(s))
	narrow := 0
	for m := range series.Metrics(md) {
		if m.Name() == "gpu.energy" || m.Name() == "gpu.up" {
			narrow++
		}
	}
	if narrow != 2 {
		t.Error("a metric of one series was cut")
	}
	for m := range series.Metrics(e.Emit(tickOf(s))) {
		if m.Name() == "gpumeter.series.dropped" {
			if got := m.Sum().DataPoints().At(0).DoubleValue(); got != float64(all-50) {
				t.Errorf("%v points counted as dropped, want %d", got, all-50)
			}
		}
	}
}

func TestTopProcesses(t *testing.T) {
	list := []device.Process{{PID: 1, MemoryUsed: device.Of(1)}, {PID: 2}, {PID: 3, MemoryUsed: device.Of(9)}, {PID: 4, MemoryUsed: device.Of(5)}}
	var got []uint32
	for _, p := range topProcesses(list, 2) {
		got = append(got, p.PID)
	}
	if diff := cmp.Diff([]uint32{3, 4}, got); diff != "" || list[0].PID != 1 {
		t.Errorf("top two (-want +got):\n%s", diff)
	}
}

// Catches a start time at which a counter of the device was not 0, a counter of the agent without its start
// time, and a gauge with a start time.
func TestStartTimes(t *testing.T) {
	for m := range series.Metrics(newEmitter(everything(t)).Emit(goldenTick())) {
		for dp := range series.Points(m) {
			want := pcommon.Timestamp(0)
			if series.Cumulative(m) {
				switch {
				case m.Name() == "gpu.xid.errors":
					want = pcommon.NewTimestampFromTime(start.Add(-time.Hour))
				case strings.HasPrefix(m.Name(), "gpumeter."):
					want = pcommon.NewTimestampFromTime(start)
				}
			}
			if dp.StartTimestamp() != want || dp.Timestamp() != pcommon.NewTimestampFromTime(now) {
				t.Errorf("%s starts at %s, timestamp %s", m.Name(), dp.StartTimestamp(), dp.Timestamp())
			}
		}
	}
}

func BenchmarkEmit(b *testing.B) {
	s := goldenTick().Readings[0].Sample
	var samples []device.Sample
	for i := range 64 {
		s.ID.Index, s.ID.UUID = i, fmt.Sprint("GPU-", i)
		samples = append(samples, s)
	}
	tick := tickOf(samples...)
	e := newEmitter(createDefaultConfig().(*Config))
	b.ReportAllocs()
	for b.Loop() {
		e.Emit(tick)
	}
}
