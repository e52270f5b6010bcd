//go:build linux

package tpu

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

// parsed returns the only entry of a metric.
func parsed(t *testing.T, attribute, measure bytesOf) entry {
	t.Helper()
	entries, err := parseMetric(answer("x", metric(attribute, measure)))
	if err != nil || len(entries) != 1 {
		t.Fatalf("%v, %v", entries, err)
	}
	return entries[0]
}

// The device of a value may be encoded in several ways; a field of the wrong type is
// ignored.
func TestAttributes(t *testing.T) {
	f := func(name string, attribute bytesOf, want entry) {
		t.Helper()
		want.value, want.hasValue = 1, true
		got := parsed(t, attribute, gaugeInt(1))
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(entry{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	f("int", varint(3, 13), entry{id: 13, hasID: true})
	f("text", text(1, "13"), entry{id: 13, hasID: true})
	f("zero", varint(3, 0), entry{hasID: true})
	f("words", text(1, "thirteen"), entry{})
	f("bool", varint(2, 1), entry{})
	f("double", double(4, 1), entry{})
	f("int as double", double(3, 1), entry{})
	f("list", message(6, pair("device_ordinal", varint(3, 2)), pair("core_type", text(1, "sparse\ncore"))), entry{id: 2, hasID: true, detail: "sparse?core"})
	f("list of texts", message(6, pair("core_type", text(1, "tc")), pair("device_ordinal", text(1, "2"))), entry{id: 2, hasID: true, detail: "tc"})
	f("other keys", message(6, pair("host", varint(3, 2)), pair("buffer-size", text(1, "8MB+"))), entry{detail: "8MB+"})
	f("number for a size", message(6, pair("buffer-size", varint(3, 4096))), entry{detail: "4096"})
	f("long", message(6, pair("buffer-size", text(1, strings.Repeat("x", 1000)))), entry{detail: strings.Repeat("x", maxText)})
	f("deep", message(6, pair("x", message(6, pair("device_ordinal", varint(3, 2))))), entry{})
	f("group", append([]byte{0x0b, 0x0c}, varint(3, 1)...), entry{id: 1, hasID: true}) // a deprecated kind of field
}

func TestMeasures(t *testing.T) {
	f := func(name string, measure bytesOf, want float64, ok bool) {
		t.Helper()
		if got := parsed(t, varint(3, 1), measure); got.value != want || got.hasValue != ok {
			t.Errorf("%s: %v", name, got)
		}
	}
	f("int", gaugeInt(-3), -3, true)
	f("double", gaugeFloat(0.5), 0.5, true)
	f("nothing set", message(3), 0, false)
	f("text", message(3, text(3, "1")), 0, false)
	f("bool", message(3, varint(4, 1)), 0, false)
	f("double as int", message(3, varint(1, 1)), 0, false)
	f("int as double", message(3, double(2, 1)), 0, false)
	f("counter", counterInt(7), 7, true)
	f("high counter", counterInt(-1), math.MaxUint64, true)
	f("summary", message(6, varint(1, 1)), 0, false)
	f("unknown", message(9, varint(1, 1)), 0, false)
}

// The four kinds of buckets, and invalid ones.
func TestDistributions(t *testing.T) {
	f := func(name string, measure bytesOf, want device.Latency) {
		t.Helper()
		e := parsed(t, varint(3, 1), measure)
		got, err := e.dist.latency("program", "", 1)
		want.Operation = "program"
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: error %v (-want +got):\n%s", name, err, diff)
		}
	}
	options := func(count int64, kind bytesOf, counts ...int64) bytesOf {
		return dist(varint(1, count), double(2, 2), double(3, 1), double(4, 3), double(5, 1), message(6, kind), packed(7, counts...))
	}
	with := func(count uint64, bounds []float64, counts ...uint64) device.Latency {
		return device.Latency{Count: count, Seconds: 2 * float64(count), Bounds: bounds, Counts: counts}
	}
	f("exponential", exponential(6, 2, 2, 10, 5, 1, 2, 3, 0), with(6, []float64{5, 50, 500}, 1, 2, 3, 0))
	f("zeros left out", exponential(1, 2, 2, 10, 5, 1), with(1, []float64{5, 50, 500}, 1, 0, 0, 0))
	f("linear", options(3, message(4, varint(1, 2), double(2, 10), double(3, 1)), 0, 1, 1, 1), with(3, []float64{1, 11, 21}, 0, 1, 1, 1))
	f("explicit", options(3, message(3, packedDoubles(1, 1, 2.5)), 1, 1, 1), with(3, []float64{1, 2.5}, 1, 1, 1))
	f("explicit one by one", options(3, message(3, double(1, 1), double(1, 2.5)), 1, 1, 1), with(3, []float64{1, 2.5}, 1, 1, 1))
	f("regular, all at once", options(2, message(1, varint(1, 2), message(2, double(1, 10), double(2, 5))), 0, 1, 1), with(2, []float64{5, 15, 25}, 0, 1, 1, 0))
	f("regular, one by one", options(2, message(1, varint(1, 2), message(2, double(1, 1), double(2, 5)), message(2, double(1, 4), double(2, 6))), 0, 2), with(2, []float64{5, 6, 10}, 0, 2, 0, 0))
	f("regular with a gap", options(2, message(1, varint(1, 2), message(2, double(1, 1), double(2, 5)), message(2, double(1, 4), double(2, 7))), 0, 2), with(2, nil))
	f("unpacked counts", dist(varint(1, 3), double(2, 2), message(6, message(3, double(1, 1))), varint(7, 1), varint(7, 2)), with(3, []float64{1}, 1, 2))
	f("none happened", exponential(0, math.NaN(), 1, 2, 1), device.Latency{Bounds: []float64{1, 2}, Counts: []uint64{0, 0, 0}})
	f("no buckets", dist(varint(1, 3), double(2, 2)), with(3, nil))
	f("too many counts", exponential(3, 2, 1, 2, 1, 1, 1, 1, 0), with(3, nil))
	f("counts above", exponential(3, 2, 1, 2, 1, 4), with(3, nil))
	f("counts below", exponential(3, 2, 1, 2, 1, 2), with(3, nil))
	f("negative counts", exponential(3, 2, 1, 2, 1, 4, -1), with(3, nil))
	f("overflowing counts", exponential(3, 2, 1, 2, 1, math.MaxInt64, math.MaxInt64, 5), with(3, nil))
	f("bounds that fall", exponential(3, 2, 2, 0.5, 1, 3), with(3, nil))
	f("bounds that stay", exponential(3, 2, 2, 1, 1, 3), with(3, nil))
	f("bounds without end", exponential(3, 2, 200, 1e300, 1, 3), with(3, nil))
	f("a million buckets", exponential(3, 2, 1_000_000, 2, 1, 3), with(3, nil))
	f("fewer than none", exponential(3, 2, -5, 2, 1, 3), with(3, nil))
	bad := func(name string, measure bytesOf) {
		t.Helper()
		if l, err := parsed(t, varint(3, 1), measure).dist.latency("", "", 1); err == nil {
			t.Errorf("%s: %v", name, l)
		}
	}
	bad("negative count", exponential(-1, 2, 1, 2, 1))
	bad("negative mean", exponential(1, -2, 1, 2, 1))
	bad("mean is no number", exponential(1, math.NaN(), 1, 2, 1))
	bad("endless mean", exponential(1, math.Inf(1), 1, 2, 1))
	if _, err := parseMetric(answer("x", metric(varint(3, 1), exponential(1, 1, 1, 2, 1, make([]int64, 1000)...)))); err == nil {
		t.Error("a thousand counts are no error")
	}
	if _, err := parseMetric(answer("x", metric(varint(3, 1), dist(message(6, message(3, packedDoubles(1, make([]float64, 1000)...))))))); err == nil {
		t.Error("a thousand bounds are no error")
	}
}

// The histograms of a chip's two devices are merged; if their buckets differ, only the sums
// are kept.
func TestMerged(t *testing.T) {
	a := device.Latency{Operation: "program", Count: 1, Seconds: 2, Bounds: []float64{1}, Counts: []uint64{0, 1}}
	list := merged(merged(nil, a), device.Latency{Operation: "program", Count: 2, Seconds: 1, Bounds: []float64{1}, Counts: []uint64{2, 0}})
	want := []device.Latency{{Operation: "program", Count: 3, Seconds: 3, Bounds: []float64{1}, Counts: []uint64{2, 1}}}
	if diff := cmp.Diff(want, list); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	list = merged(merged(list, device.Latency{Operation: "program", Count: 1, Bounds: []float64{2}, Counts: []uint64{1, 0}}), device.Latency{Operation: "program", Detail: "x"})
	want = []device.Latency{{Operation: "program", Count: 4, Seconds: 3}, {Operation: "program", Detail: "x"}}
	if diff := cmp.Diff(want, list); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// An implausible number of latencies is truncated, with an error.
func TestManyLatencies(t *testing.T) {
	r := newReporter(1, 1)
	var entries []entry
	for i := range 1000 {
		entries = append(entries, entry{id: 0, hasID: true, detail: fmt.Sprint(i), dist: &distribution{}})
	}
	if err := r.add(metricPrograms, entries); err == nil || len(r.report.chips[0].latencies) != maxLatencies {
		t.Errorf("%d, %v", len(r.report.chips[0].latencies), err)
	}
	if err := r.add(megascale("grpc_tcp_min_rtt"), entries); err == nil || len(r.report.latencies) != maxLatencies {
		t.Errorf("%d, %v", len(r.report.latencies), err)
	}
}

// The only device of a process needs no id.
func TestOnlyDevice(t *testing.T) {
	r := newReporter(1, 1)
	if err := r.add(metricDuty, []entry{{value: 5, hasValue: true}}); err != nil || r.report.chips[0].duty != of(0.05) {
		t.Errorf("%v, %v", r.report, err)
	}
}

func TestUnknown(t *testing.T) {
	got := unknown([]string{"b", metricDuty, "a", "b", megascale("mxla_compute_latencies")})
	if diff := cmp.Diff([]string{"a", "b"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got, err := parseSupported(slices.Concat(message(1, text(1, "a")), message(1), message(2, text(1, "no")), message(1, text(1, "b\x00")))); err != nil || !cmp.Equal(got, []string{"a", "b?"}) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := parseSupported([]byte(strings.Repeat(string(message(1, text(1, "a"))), 5000))); err == nil {
		t.Error("5000 names are no error")
	}
}

// The ports that a workload was given, from an arbitrary environment.
func TestMetricPorts(t *testing.T) {
	f := func(environ string, want ...uint16) {
		t.Helper()
		if got := metricPorts(strings.NewReader(environ)); !slices.Equal(got, want) {
			t.Errorf("%.80q: %v", environ, got)
		}
	}
	f("")
	f("TPU_RUNTIME_METRICS_PORTS=8431,8432\x00", 8431, 8432)
	f("A=1\x00TPU_RUNTIME_METRICS_PORTS= 8431 ,x,0,70000,-1,9", 8431, 9)
	f("XTPU_RUNTIME_METRICS_PORTS=1\x00TPU_RUNTIME_METRICS_PORT=2\x00TPU_RUNTIME_METRICS_PORTSX=3\x00")
	f("A=TPU_RUNTIME_METRICS_PORTS=1\x00")
	f("TPU_RUNTIME_METRICS_PORTS=\x00")
	f(strings.Repeat("A="+strings.Repeat("x", 10000)+"\x00", 100)+"TPU_RUNTIME_METRICS_PORTS=5\x00", 5)
	f("TPU_RUNTIME_METRICS_PORTS="+strings.Repeat("1,", 100000), slices.Repeat([]uint16{1}, maxPorts)...)
	for n := range 40 { // wherever the reads are split
		f(strings.Repeat("x", 4096-n)+"\x00TPU_RUNTIME_METRICS_PORTS=77\x00", 77)
	}
}

func TestListeners(t *testing.T) {
	f := func(table string, want map[uint64]uint16) {
		t.Helper()
		got := map[uint64]uint16{}
		listeners(strings.NewReader(table), []uint16{8431, 8432}, got)
		if !maps.Equal(got, want) {
			t.Errorf("%q: %v", table, got)
		}
	}
	f(tcpHeader+listenLine(8431, 7)+listenLine(22, 8)+listenLine(8432, 9), map[uint64]uint16{7: 8431, 9: 8432})
	f(strings.Replace(listenLine(8431, 7), " 0A ", " 01 ", 1), nil) // a connection
	f("0: 00000000000000000000000001000000:20EF 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 11 1", map[uint64]uint16{11: 8431})
	f("0: x 0 0A 0 0 0 0 0 11 1\n0: :zzzz 0 0A 0 0 0 0 0 11 1\n0: 0:20EF 0 0A 0 0 0 0 0 x\n0: 0:20EF 0 0A\n", nil)
}

// A captured exporter page from a machine with two-device chips. It is truncated to two
// accelerators, which a machine with two chips accepts.
func TestCapturedPage(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("../../../../shared/fixtures/tpu", "gke-tpu-device-plugin-v1.35.7-tpu7x.prom"))
	if err != nil {
		t.Skipf("no captures found: %v", err)
	}
	all, err := parsePage(b)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pick(all, 2, 2, 0)
	want := values{duty: of(0), bandwidth: of(0.425), tensor: of(0)}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(values{})); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	got, err = pick(all, 2, 2, 1)
	want = values{duty: of(0), used: of(176938736128), total: of(203465670656)}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(values{})); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	if _, err := pick(all, 4, 2, 0); err == nil {
		t.Error("no error for two of four, one of them with number 4")
	}
}

// Captured output of Google's own tool: its chip numbers are not indexes, because
// multi-host slices number them over all machines.
func TestCapturedTool(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("../../../../shared/fixtures/tpu", "tpu-info-0.14.2-README-output.txt"))
	if err != nil {
		t.Skipf("no captures found: %v", err)
	}
	var ids []int64
	for _, m := range regexp.MustCompile(`\| (\d+) +\| +[\d.]+ GiB / 31.25 GiB +\| +100.00% \|`).FindAllStringSubmatch(string(b), -1) {
		var id int64
		_, _ = fmt.Sscan(m[1], &id)
		ids = append(ids, id)
	}
	if len(ids) != 8 {
		t.Fatalf("%v", ids)
	}
	if got := place(ids[4:], 4, 1); !maps.Equal(got, map[int64]int{8: 0, 9: 1, 12: 2, 13: 3}) {
		t.Errorf("%v", got)
	}
}

// Devices of one chip on the page: sums of what adds up, absent if a part is absent.
func TestPickDevices(t *testing.T) {
	all := map[string]values{
		"i-0": {duty: of(0.2), used: of(1), total: of(4), bandwidth: of(0.25), tensor: of(0)},
		"i-1": {duty: of(0.6), used: of(2), bandwidth: of(0.75), tensor: of(1)},
		"i-2": {},
		"i-3": {duty: of(0)},
	}
	f := func(mine int, want values) {
		t.Helper()
		got, err := pick(all, 2, 2, mine)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(values{}), approx); diff != "" || err != nil {
			t.Errorf("error %v (-want +got):\n%s", err, diff)
		}
	}
	f(0, values{duty: of(0.6), used: of(3), bandwidth: of(0.5), tensor: of(0.5)})
	f(1, values{duty: of(0)})
	if got, err := pick(nil, 2, 2, 0); err != nil || got.duty.OK() {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := pick(map[string]values{"a-1": {}, "b-1": {}}, 2, 1, 0); err == nil {
		t.Error("two of one number are no error")
	}
	if got, err := pick(map[string]values{"a-2": {duty: of(1)}}, 4, 1, 2); err != nil || got.duty != of(1) {
		t.Errorf("%v, %v", got, err)
	}
}

func FuzzParseMetric(f *testing.F) {
	for name, b := range everything() {
		f.Add(name, b)
	}
	f.Fuzz(func(t *testing.T, name string, b []byte) {
		_, _ = parseSupported(b)
		entries, err := parseMetric(b)
		if len(entries) > maxEntries {
			t.Error("too many")
		}
		if err != nil {
			return
		}
		r := newReporter(2, 2)
		_ = r.add(name, entries)
		rep, _ := r.finish()
		for _, c := range rep.chips {
			for _, v := range []device.Value{c.duty, c.bandwidth} {
				if x, ok := v.Get(); ok && !(x >= 0 && x <= 1) {
					t.Errorf("%v", c)
				}
			}
			for _, v := range []device.Value{c.used, c.total, c.idle, c.queue} {
				if x, ok := v.Get(); ok && !(x >= 0 && x < 1e16) {
					t.Errorf("%v", c)
				}
			}
			for _, l := range slices.Concat(c.latencies, rep.latencies) {
				var sum uint64
				for _, n := range l.Counts {
					sum += n
				}
				if l.Counts != nil && (len(l.Counts) != len(l.Bounds)+1 || sum != l.Count) || !slices.IsSorted(l.Bounds) || !(l.Seconds >= 0) {
					t.Errorf("%+v", l)
				}
			}
		}
	})
}

func FuzzParsePage(f *testing.F) {
	f.Add([]byte("# TYPE duty_cycle gauge\nduty_cycle{accelerator_id=\"1-0\"} 5\nmemory_used_node{accelerator_id=\"1-1\"} 5\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := parsePage(b)
		if err != nil {
			return
		}
		v, _ := pick(all, 2, 2, 0)
		if x, ok := v.duty.Get(); ok && !(x >= 0 && x <= 1) {
			t.Errorf("%v", v)
		}
	})
}

func FuzzProc(f *testing.F) {
	f.Add("A=1\x00TPU_RUNTIME_METRICS_PORTS=8431,9\x00B=2", tcpHeader+listenLine(8431, 5))
	f.Fuzz(func(t *testing.T, environ, table string) {
		ports := metricPorts(strings.NewReader(environ))
		if len(ports) > 0 && !strings.Contains(environ, portsVariable+"=") {
			t.Errorf("invented %v", ports)
		}
		found := map[uint64]uint16{}
		listeners(strings.NewReader(table), ports, found)
		for _, p := range found {
			if !slices.Contains(ports, p) {
				t.Errorf("invented %d", p)
			}
		}
	})
}
