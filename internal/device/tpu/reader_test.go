//go:build linux

package tpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/devicetest"
)

func of(v float64) device.Value { return device.Of(v) }

const gib = 1 << 30

// open returns a Reader that is closed when the test ends.
func open(t *testing.T, o Options) *Reader {
	t.Helper()
	if o.Exporter == "" {
		o.Exporter = NoExporter
	}
	o.Machine = testMachine
	r, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func devices(t *testing.T, r *Reader) []device.Device {
	t.Helper()
	list, err := r.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// readAll reads every device, concurrently as the agent does.
func readAll(t *testing.T, list []device.Device, tier device.Tier) ([]device.Sample, error) {
	t.Helper()
	samples, errs := make([]device.Sample, len(list)), make([]error, len(list))
	var wg sync.WaitGroup
	for i, d := range list {
		wg.Go(func() { samples[i], errs[i] = d.Read(t.Context(), tier) })
	}
	wg.Wait()
	return samples, errors.Join(errs...)
}

// settled reads until ok accepts the samples: a server on a busy machine may be slower than
// a read waits.
func settled(t *testing.T, list []device.Device, ok func([]device.Sample, error) bool) ([]device.Sample, error) {
	t.Helper()
	samples, err := readAll(t, list, device.Static)
	await.NoError(t, func() error {
		if ok(samples, err) {
			return nil
		}
		samples, err = readAll(t, list, device.Fast)
		return fmt.Errorf("unexpected samples: %v, error %w", samples, err)
	})
	return samples, err
}

func busy(samples []device.Sample, _ error) bool {
	for _, s := range samples {
		if !s.Utilization.Compute.OK() {
			return false
		}
	}
	return true
}

// everything is the answer of a runtime with all documented metrics for four chips.
func everything() map[string]bytesOf {
	var queue, programs []bytesOf
	for i := range int64(4) {
		ordinal := byOrdinal(varint(3, i), "tensor_core")
		if i%2 == 1 { // some runtimes encode the number as a string
			ordinal = byOrdinal(text(1, fmt.Sprint(i)), "tensor_core")
		}
		queue = append(queue, metric(ordinal, gaugeInt(i)))
		programs = append(programs, metric(ordinal, exponential(6, 500, 2, 10, 100, 1, 2, 3)))
	}
	return map[string]bytesOf{
		metricTotal:     ints(metricTotal, map[int64]int64{8: 32 * gib, 9: 32 * gib, 12: 32 * gib, 13: 32 * gib}),
		metricUsed:      ints(metricUsed, map[int64]int64{8: 18 * gib, 9: 10 * gib, 12: 0, 13: 11 * gib}),
		metricDuty:      floats(metricDuty, map[int64]float64{8: 100, 9: 14.25, 12: 0, 13: 50}),
		metricBandwidth: floats(metricBandwidth, map[int64]float64{8: 25, 9: 5, 12: 0, 13: 1}),
		metricIdle:      floats(metricIdle, map[int64]float64{8: 0, 9: 0.5, 12: 3600, 13: 0}),
		metricQueue:     answer(metricQueue, queue...),
		metricPrograms:  answer(metricPrograms, programs...),
		megascale("dcn_transfer_latencies"): answer("x",
			metric(message(6, pair("buffer-size", text(1, "8MB+"))), exponential(2, 1e6, 1, 2, 1, 0, 0, 2)),
			metric(message(6, pair("buffer-size", text(1, "4MB+"))), exponential(0, 0, 1, 2, 1))),
		megascale("grpc_tcp_min_rtt"): answer("x", message(3, exponential(1, 40, 1, 2, 32, 0, 1))),
	}
}

func v6e() tree {
	m := tree{}
	m.vfioChip("0000:00:04.0", "0x006f", "0").vfioChip("0000:00:05.0", "0x006f", "1")
	m.vfioChip("0000:00:06.0", "0x006f", "2").vfioChip("0000:00:07.0", "0x006f", "3")
	m["sys/bus/pci/devices/0000:00:05.0/numa_node"] = "1\n"
	for i, id := range []string{"0x001f", "0x0042", "0xabcd"} { // disk, network card, and an unknown device
		m[fmt.Sprintf("sys/bus/pci/devices/0000:00:0%d.0/vendor", i)] = "0x1ae0\n"
		m[fmt.Sprintf("sys/bus/pci/devices/0000:00:0%d.0/device", i)] = id + "\n"
	}
	m["sys/bus/pci/devices/0000:00:03.0/vendor"] = "0x8086\n"
	m["sys/bus/pci/devices/0000:00:03.0/device"] = "0x006f\n"
	return m
}

var v6eFiles = []string{"/dev/vfio/0", "/dev/vfio/1", "/dev/vfio/2", "/dev/vfio/3"}

// sample is the sample of one chip of v6e, without any value.
func sample(i int, pids ...uint32) device.Sample {
	pci := fmt.Sprintf("0000:00:0%d.0", 4+i)
	s := device.Sample{
		ID:      device.ID{Vendor: "tpu", UUID: "tpu-" + testMachine + "-" + pci, Index: i, Model: "TPU v6e", PCI: pci},
		Info:    device.Info{Architecture: "v6e"},
		Aliases: numbered(fmt.Sprint(i)),
	}
	if i == 1 {
		s.Info.NUMA = "1"
	}
	for _, pid := range pids {
		s.Processes = append(s.Processes, device.Process{PID: pid, Name: "python3", Type: "compute"})
	}
	return s
}

// A whole machine: a value on the wrong chip, in the wrong unit, or lost on the way would
// show.
func TestMachine(t *testing.T) {
	s := serve(t, everything())
	s.more = []string{"megascale.grpc_tcp_delivery_rate.Mbps.cumulative.distribution", "tpu.new.thing"}
	root := v6e().process(42, "python3", s.port(), v6eFiles...).write(t, t.TempDir())
	got, err := settled(t, devices(t, open(t, Options{Root: root})), busy)
	if err != nil {
		t.Error(err)
	}
	want := []device.Sample{sample(0, 42), sample(1, 42), sample(2, 42), sample(3, 42)}
	fill := func(i int, duty, bandwidth, used, idle float64) {
		s := &want[i]
		s.Utilization = device.Engines{Compute: of(duty), Memory: of(bandwidth)}
		s.Memory = device.Memory{Used: of(used * gib), Free: of((32 - used) * gib), Total: of(32 * gib)}
		s.Processes[0].MemoryUsed = of(used * gib)
		s.Runtime = device.Runtime{Queue: of(float64(i)), Idle: of(idle), Latencies: []device.Latency{{
			Operation: "program", Detail: "tensor_core", Count: 6, Seconds: 0.003,
			Bounds: []float64{1e-4, 1e-3, 1e-2}, Counts: []uint64{1, 2, 3, 0},
		}}}
	}
	fill(0, 1, 0.25, 18, 0)
	fill(1, 0.1425, 0.05, 10, 0.5)
	fill(2, 0, 0, 0, 3600)
	fill(3, 0.5, 0.01, 11, 0)
	want[0].Runtime.Latencies = append(want[0].Runtime.Latencies,
		device.Latency{Operation: "dcn_transfer", Detail: "4MB+", Bounds: []float64{1e-6, 2e-6}, Counts: []uint64{0, 0, 0}},
		device.Latency{Operation: "dcn_transfer", Detail: "8MB+", Count: 2, Seconds: 2, Bounds: []float64{1e-6, 2e-6}, Counts: []uint64{0, 0, 2}},
		device.Latency{Operation: "network_round_trip", Count: 1, Seconds: 4e-5, Bounds: []float64{3.2e-5, 6.4e-5}, Counts: []uint64{0, 1, 0}})
	if diff := cmp.Diff(want, got, approx); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want[0].Profile.Pipes = []device.Pipe{{Name: "tensor", Active: of(0)}} // see TestExporter
	for _, wrong := range devicetest.CheckSources("sources.txt", want...) {
		t.Error(wrong)
	}
	s.set(func(s *runtimeServer) {
		if s.calls[methods+"GetRuntimeMetric tpu.new.thing"] > 0 {
			t.Error("an unknown metric was requested")
		}
		if s.calls[methods+"ListSupportedMetrics "] == 0 {
			t.Error("the list of metrics was not requested")
		}
	})
}

var approx = cmp.Comparer(func(a, b float64) bool { return a == b || a-b < 1e-12*a && b-a < 1e-12*a })

// Two devices per chip: the sum of their memory, and the chip's duty cycle as reported.
func TestTwoDevicesAChip(t *testing.T) {
	s := serve(t, map[string]bytesOf{
		metricTotal:     ints("", map[int64]int64{0: 96 * gib, 1: 96 * gib, 2: 96 * gib, 3: 96 * gib}),
		metricUsed:      ints("", map[int64]int64{0: 1 * gib, 1: 2 * gib, 2: 4 * gib, 3: 8 * gib}),
		metricDuty:      floats("", map[int64]float64{0: 75, 1: 25}),
		metricBandwidth: floats("", map[int64]float64{0: 10, 1: 30, 2: 0, 3: 2}),
		metricIdle:      floats("", map[int64]float64{0: 5, 1: 3, 2: 0, 3: 9}),
		metricQueue: answer("", metric(byOrdinal(varint(3, 0), "tensor_core"), gaugeInt(1)), metric(byOrdinal(varint(3, 1), "tensor_core"), gaugeInt(2)),
			metric(byOrdinal(varint(3, 1), "sparse_core"), gaugeInt(4)), metric(byOrdinal(varint(3, 2), "tensor_core"), gaugeInt(8)), metric(byOrdinal(varint(3, 3), "tensor_core"), gaugeInt(0))),
		// Only one of four devices has run a program: its id is its index.
		metricPrograms: answer("", metric(byOrdinal(varint(3, 3), "tensor_core"), exponential(1, 1, 1, 2, 1, 0, 1))),
	})
	root := tree{}.vfioChip("0000:00:04.0", "0x0076", "7").vfioChip("0000:00:05.0", "0x0076", "12").
		process(1, "python3", s.port(), "/dev/vfio/12", "/dev/vfio/7", "/dev/vfio/vfio").write(t, t.TempDir())
	samples, err := settled(t, devices(t, open(t, Options{Root: root})), busy)
	if err != nil {
		t.Error(err)
	}
	var got []string
	for _, s := range samples {
		m, _ := s.Memory.Used.Get()
		got = append(got, fmt.Sprint(s.ID.Index, s.ID.Model, m/gib, s.Memory.Total, s.Utilization, s.Runtime.Queue, s.Runtime.Idle, len(s.Runtime.Latencies), unnumbered(s.Aliases)))
	}
	want := []string{
		fmt.Sprint(0, "TPU 7x", 3, of(192*gib), device.Engines{Compute: of(0.75), Memory: of(0.2)}, of(7), of(3), 0, []string{"7"}),
		fmt.Sprint(1, "TPU 7x", 12, of(192*gib), device.Engines{Compute: of(0.25), Memory: of(0.01)}, of(8), of(0), 1, []string{"12"}),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Every generation: which file it is used through, and the order by number, not as strings.
func TestDiscovery(t *testing.T) {
	f := func(name string, m tree, want ...string) {
		t.Helper()
		found, err := find(m.write(t, t.TempDir()), testMachine)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var got []string
		for _, s := range found {
			got = append(got, fmt.Sprintf("%d %s %s %s %v", s.id.Index, s.id.Model, s.id.PCI, s.nodes, unnumbered(s.alias)))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	accel := func(m tree, pci, id, sub, link string) tree {
		dir := "sys/bus/pci/devices/" + pci + "/"
		m[dir+"vendor"], m[dir+"device"], m[dir+"subsystem_device"] = "0x1ae0\n", id+"\n", sub+"\n"
		if link != "" {
			m[dir+"accel/"+link+"/"] = ""
		}
		return m
	}
	f("v2", accel(tree{}, "0000:00:04.0", "0x0027", "0x004e", ""), "0 TPU v2 0000:00:04.0 [/dev/accel0 /dev/accel/accel0] [accel0 0]")
	f("v3", accel(tree{}, "0000:00:04.0", "0x0027", "0x004f", "accel3"), "3 TPU v3 0000:00:04.0 [/dev/accel3 /dev/accel/accel3] [accel3 3]")
	f("not a TPU", accel(tree{}, "0000:00:04.0", "0x0027", "0x0001", ""))
	f("v4", accel(accel(tree{}, "0000:00:05.0", "0x005e", "0x0", ""), "0000:00:0A.0", "0x005e", "0x0", ""),
		"0 TPU v4 0000:00:05.0 [/dev/accel0 /dev/accel/accel0] [accel0 0]", "1 TPU v4 0000:00:0a.0 [/dev/accel1 /dev/accel/accel1] [accel1 1]")
	f("v5e", tree{}.vfioChip("0000:00:04.0", "0x0063", "3"), "0 TPU v5e 0000:00:04.0 [/dev/vfio/3] [3]")
	f("v5p", tree{}.vfioChip("0000:00:04.0", "0x0062", "0"), "0 TPU v5p 0000:00:04.0 [/dev/vfio/0] [0]")
	f("order", tree{}.vfioChip("0000:00:04.0", "0x006f", "10").vfioChip("0000:00:05.0", "0x006f", "9").vfioChip("0000:00:06.0", "0x006f", "100"),
		"0 TPU v6e 0000:00:05.0 [/dev/vfio/9] [9]", "1 TPU v6e 0000:00:04.0 [/dev/vfio/10] [10]", "2 TPU v6e 0000:00:06.0 [/dev/vfio/100] [100]")
	m := tree{}.vfioChip("0000:00:04.0", "0x006f", "x").vfioChip("0000:00:05.0", "0x006f", "1")
	m["sys/bus/pci/devices/0000:00:05.0/vfio-dev/vfio7/"] = ""
	f("no group", m, "0 TPU v6e 0000:00:05.0 [/dev/vfio/1 /dev/vfio/devices/vfio7] [1]", "1 TPU v6e 0000:00:04.0 [] []")
}

// Sixteen chips with gaps in their file numbers are ordered by number, not as strings.
func TestSixteenChips(t *testing.T) {
	m, groups := tree{}, []int{0, 1, 2, 4, 5, 7, 8, 10, 11, 12, 15, 16, 20, 21, 30, 100}
	var want []string
	for i, group := range groups {
		m.vfioChip(fmt.Sprintf("0000:00:%02x.0", 31-i), "0x006f", fmt.Sprint(group)) // the bus order is reversed
		want = append(want, fmt.Sprint(i, " /dev/vfio/", group))
	}
	var got []string
	for _, d := range devices(t, open(t, Options{Root: m.write(t, t.TempDir())})) {
		got = append(got, fmt.Sprint(d.ID().Index, " ", d.(*chip).nodes[0]))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A chip that cannot be identified affects no other, and the error names the file.
func TestBrokenChip(t *testing.T) {
	m := v6e()
	delete(m, "sys/bus/pci/devices/0000:00:04.0/device")
	m["sys/bus/pci/devices/0000:00:04.0/device/"] = ""
	r := open(t, Options{Root: m.write(t, t.TempDir())})
	list, err := r.Devices(t.Context())
	if len(list) != 3 || err == nil || !strings.Contains(err.Error(), "0000:00:04.0/device") {
		t.Errorf("%d devices, %v", len(list), err)
	}
	m = v6e()
	m["sys/bus/pci/devices/0000:00:05.0/numa_node/"] = ""
	delete(m, "sys/bus/pci/devices/0000:00:05.0/numa_node")
	list = devices(t, open(t, Options{Root: m.write(t, t.TempDir())}))
	got, err := readAll(t, list, device.Static)
	want := []device.Sample{sample(0), sample(1), sample(2), sample(3)}
	want[1].Info.NUMA = ""
	if diff := cmp.Diff(want, got); diff != "" || err == nil || !strings.Contains(err.Error(), "numa_node") {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
}

func TestAbsent(t *testing.T) {
	for _, m := range []tree{{}, {"sys/bus/pci/devices/0000:00:03.0/vendor": "0x10de\n"}, {"sys/bus/pci/devices/0000:00:03.0/vendor/": ""}} {
		if _, err := Open(t.Context(), Options{Root: m.write(t, t.TempDir())}); !errors.Is(err, device.ErrAbsent) {
			t.Errorf("error %v", err)
		}
	}
	for range 3 { // without a process nothing is known: no 0, and no error
		got, err := readAll(t, devices(t, open(t, Options{Root: v6e().write(t, t.TempDir())})), device.Slow)
		if diff := cmp.Diff([]device.Sample{sample(0), sample(1), sample(2), sample(3)}, got); diff != "" || err == nil {
			t.Errorf("error %v (-want +got):\n%s", err, diff) // there is no /proc in this tree
		}
	}
}

// The same chip keeps its Device, another chip gets a new one, and a removed chip is lost.
func TestRediscovery(t *testing.T) {
	root := v6e().write(t, t.TempDir())
	if err := os.MkdirAll(filepath.Join(root, "proc"), 0o700); err != nil {
		t.Fatal(err)
	}
	r := open(t, Options{Root: root})
	first := devices(t, r)
	if again := devices(t, r); !slices.Equal(first, again) {
		t.Errorf("%v, then %v", first, again)
	}
	gone := filepath.Join(root, "sys/bus/pci/devices/0000:00:07.0")
	if err := os.RemoveAll(gone); err != nil {
		t.Fatal(err)
	}
	if s, err := first[3].Read(t.Context(), device.Fast); !errors.Is(err, device.ErrLost) || !cmp.Equal(s, device.Sample{ID: first[3].ID()}) {
		t.Errorf("%v, %v", s, err)
	}
	if _, err := first[2].Read(t.Context(), device.Fast); err != nil {
		t.Error(err)
	}
	if list := devices(t, r); len(list) != 3 || list[2] != first[2] {
		t.Errorf("%v", list)
	}
	tree{}.vfioChip("0000:00:04.0", "0x0076", "0").write(t, root)
	if list := devices(t, r); list[0] == first[0] || list[0].ID().Model != "TPU 7x" || list[1] != first[1] {
		t.Errorf("%v", list)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := first[2].Read(ctx, device.Fast); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// Close leaves nothing behind, whatever the server does.
func TestClose(t *testing.T) {
	before := goleak.IgnoreCurrent()
	s := serve(t, everything())
	s.delay = time.Hour
	root := v6e().process(42, "python3", s.port(), v6eFiles...).write(t, t.TempDir())
	r, err := Open(t.Context(), Options{Root: root, Exporter: "http://127.0.0.1:1/metrics"})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = readAll(t, devices(t, r), device.Static)
	if err := r.Close(); err != nil { // must not wait for the server
		t.Error(err)
	}
	s.stop()
	goleak.VerifyNone(t, before)
}

// unnumbered returns a chip's aliases with each number once.
func unnumbered(names []string) []string {
	var out []string
	for _, name := range names {
		if n, ok := strings.CutPrefix(name, "google.com/"); ok {
			name = n
		}
		if !strings.HasPrefix(name, "tpu.google.com/") {
			out = append(out, name)
		}
	}
	return out
}
