package cudareceiver

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpumeter/gpumeter/exporter/pageexporter"
	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/ledger"
	"github.com/gpumeter/gpumeter/receiver/cudareceiver/internal/metadata"
)

var update = flag.Bool("update", false, "rewrite golden files")

// traced is a machine with a training process on two GPUs, a rank that lags behind, and a process that
// cannot be traced.
func traced() tracer.Snapshot {
	return tracer.Snapshot{
		Time: at(30), Started: began,
		Processes: []tracer.Process{
			{
				PID: 1, Name: "python3", Since: at(1),
				Devices: []tracer.Device{
					{
						Ordinal: 0, UUID: uuid(0), Busy: 20 * time.Second, Wait: 15 * time.Second, Bubble: 2 * time.Second,
						Memory: tracer.Memory{Reserved: 8 << 30, Peak: 9 << 30, Allocated: 6 << 30, Pool: 8 << 30, Framework: true, Oldest: 25 * time.Second, Growth: 1 << 20, Leak: true},
					},
					{Ordinal: 1, UUID: uuid(1), Busy: 10 * time.Second, Memory: tracer.Memory{Reserved: 1 << 30, Peak: 1 << 30, Oldest: 20 * time.Second}},
				},
				Ops: []tracer.OpStat{
					{Op: "cuLaunchKernelEx", Class: tracer.Launch, Device: 0, Time: spread(append(times(1000, 4*time.Microsecond), times(10, time.Millisecond)...)...)},
					{Op: "cuLaunchKernel", Class: tracer.Launch, Device: 1, Time: spread(times(5, 5*time.Microsecond)...)},
					{Op: "cuMemcpyHtoDAsync", Class: tracer.Copy, Kind: "htod", Device: 0, Bytes: 1 << 20, Time: spread(times(16, 20*time.Microsecond)...)},
					{Op: "cuMemcpyAsync", Class: tracer.Copy, Kind: "default", Device: 0, Bytes: 4096, Time: spread(20 * time.Microsecond)},
					{Op: "cuMemAlloc", Class: tracer.Alloc, Device: 0, Bytes: 8 << 30, Time: spread(times(3, time.Millisecond)...), Errors: []tracer.CodeCount{{Code: 2, Count: 1}}},
					{Op: "cuStreamSynchronize", Class: tracer.Sync, Device: 0, Time: spread(times(100, 150*time.Millisecond)...)},
				},
				Kernels: []tracer.Kernel{
					{Name: "gemm<float>", Symbol: "_Z4gemm", Device: 0, Count: 900, Time: 4 * time.Millisecond, Grid: [3]uint32{132, 2, 1}, Block: [3]uint32{128, 1, 1}},
					{Name: ledger.Other, Device: 0, Count: 110, Time: 10 * time.Millisecond},
					{Name: "unknown", Device: 1, Count: 5, Time: 25 * time.Microsecond, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}},
				},
				KernelsFolded: 7,
				Comms: []tracer.Comm{{
					ID: "0xabc", Rank: 0, Size: 4, Device: 0, Sequence: 51, LastEnter: at(28), LastOp: "AllReduce",
					BarrierWait: spread(times(50, 2*time.Millisecond)...),
					Ops: []tracer.CollOp{
						{Op: "AllReduce", Type: "bfloat16", Reduce: "sum", Peer: -1, Time: spread(times(50, 30*time.Microsecond)...), Size: sized(1<<20, 1<<20, 1<<24)},
						{Op: "Broadcast", Type: "int32", Peer: 0, Time: spread(time.Millisecond), Size: sized(64), Errors: 1},
					},
				}},
				Measured: []tracer.Measured{{Comm: "0xabc", Rank: 0, Size: 4, Op: "AllReduce", Count: 10, Bytes: 1 << 20, Time: 100 * time.Millisecond, Bus: 5e9}},
				Host:     tracer.Host{Threads: 2, RunQueue: time.Second, RunQueueInCall: 400 * time.Millisecond, Blocked: 5 * time.Second, BlockedInCall: 2 * time.Second, Known: true},
			},
			{
				PID: 2, Name: "python3", Since: at(5),
				Devices: []tracer.Device{{Ordinal: 0, UUID: uuid(2), Busy: 3 * time.Second}},
				Comms:   []tracer.Comm{{ID: "0xabc", Rank: 1, Size: 4, Device: 0, Sequence: 50, LastEnter: at(12)}},
			},
		},
		Libraries: []tracer.Library{
			{Path: "/usr/lib/libcuda.so.1", Kind: "cuda", Probes: 70, Slow: 2, Mode: "session"},
			{Path: "/usr/lib/libnccl.so.2", Kind: "nccl", Probes: 20, Mode: "session"},
		},
		Untraced: []tracer.Untraced{{PID: 9, Reason: "permission_denied"}},
		Losses:   tracer.Losses{Events: 3, MapFull: map[string]uint64{"kernels": 2, "ops": 1}, Unnamed: 5},
		Groups: []tracer.CommGroup{{
			ID: "0xabc", Size: 4, Behind: []int{1}, Waiting: at(28),
			Ranks: []tracer.RankSeen{{Rank: 0, PID: 1, Sequence: 51, Last: at(28), LastOp: "AllReduce"}, {Rank: 1, PID: 2, Sequence: 50, Last: at(12), LastOp: "AllReduce"}},
		}},
	}
}

// Catches any change in what users see of a traced machine: a name, a unit, a label, a bucket, a number.
func TestGoldenPage(t *testing.T) {
	cfg := createDefaultConfig().(*Config)
	cfg.Metrics.GpuCudaKernelBlockSize.Enabled = true
	cfg.Metrics.GpuCudaKernelGridSize.Enabled = true
	l, e := ledger.New(cfg.ledger()), newEmitter(cfg, receivertest.NewNopSettings(metadata.Type), began)
	l.Owners = whoIs{1: llm, 2: job}
	s, tick := traced(), machine(3, []uint32{1}, []uint32{1}, []uint32{2, 9})
	tick.Time = s.Time
	l.Observe(&s, ledger.NewPlaces(tick))
	for _, sub := range l.Subjects[:1] {
		sub.Anomalies["host_delay"]++
	}
	md := e.emit(l, &s, tick)
	var page strings.Builder
	if err := pageexporter.Render(&page, md, []string{"host.name"}, false); err != nil {
		t.Fatal(err)
	}
	const file = "testdata/page.prom"
	if *update {
		if err := os.WriteFile(file, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		t.Errorf("%s was rewritten: review the difference", file)
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(page.String(), "\n")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Catches altered kernel buckets, and explicit buckets that need an estimate: each explicit bound is
// also a kernel bound.
func TestHistograms(t *testing.T) {
	p := proc(1, 0, 0)
	// 1 us is at most 2^-19.9 s; 2^-20 s itself is in the first bucket.
	p.Ops[0].Time = spread(500*time.Nanosecond, 953*time.Nanosecond, 1000*time.Nanosecond, 4*time.Microsecond, 15*time.Second, 17*time.Second, time.Minute)
	name := "gpu.cuda.operation.duration{gpu.cuda.class=launch," + llmOn0 + "} "
	f := func(form, want string) {
		t.Helper()
		b := newBench(t, machine(1), whoIs{1: llm}, func(c *Config) { c.Histograms = form })
		if diff := cmp.Diff([]string{name + want}, only(b.read(10, p), "gpu.cuda.operation.duration")); diff != "" {
			t.Error(diff)
		}
	}
	f(explicit, "n=7 sum=92.0000065 [2 1 1 0 0 0 0 0 0 0 0 0 1 2] since 1s")
	f(exponential, "n=7 sum=92.0000065 scale=1 offset=-42 [1 1 1 0 0 0 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 1 0 0 1] since 1s")
}

// Catches functions of one class in several histograms, and histograms of startup functions, unless
// per_operation is set.
func TestHistogramsOfClasses(t *testing.T) {
	p := proc(1, 0, 2)
	p.Ops = append(p.Ops,
		tracer.OpStat{Op: "cuLaunchKernelEx", Class: tracer.Launch, Time: spread(time.Second, time.Nanosecond)},
		tracer.OpStat{Op: "cuModuleLoadData", Class: tracer.Load, Time: spread(time.Second)},
	)
	f := func(each bool, want ...string) {
		t.Helper()
		for i := range want {
			class, rest, _ := strings.Cut(want[i], " ")
			want[i] = "gpu.cuda.operation.duration{gpu.cuda.class=" + class + "," + llmOn0 + "} " + rest + " since 1s"
		}
		b := newBench(t, machine(1), whoIs{1: llm}, func(c *Config) { c.PerOperation = each })
		if diff := cmp.Diff(want, only(b.read(10, p), "gpu.cuda.operation.duration")); diff != "" {
			t.Error(diff)
		}
	}
	f(false, "launch n=4 sum=1.000008 [1 0 2 0 0 0 0 0 0 0 0 1 0 0]")
	f(
		true,
		"launch,gpu.cuda.operation=cuLaunchKernel n=2 sum=8e-06 [0 0 2 0 0 0 0 0 0 0 0 0 0 0]",
		"launch,gpu.cuda.operation=cuLaunchKernelEx n=2 sum=1 [1 0 0 0 0 0 0 0 0 0 0 1 0 0]",
		"load,gpu.cuda.operation=cuModuleLoadData n=1 sum=1 [0 0 0 0 0 0 0 0 0 0 0 1 0 0]",
	)
}

// Catches a change in the number of series that PyTorch training on one device has by default, as the
// page shows them. docs/tracing.md documents this number: users pay per series.
func TestSeriesOfAProcess(t *testing.T) {
	p := proc(1, 0, 1000)
	p.Devices[0].Memory = tracer.Memory{Reserved: 8, Peak: 9, Allocated: 6, Pool: 8, Framework: true, Oldest: time.Second}
	p.Host = tracer.Host{Known: true}
	for op, class := range map[string]tracer.Class{ // the functions called on an H200
		"cuMemAlloc": tracer.Alloc, "cuMemHostAlloc": tracer.Alloc, "cuMemFree": tracer.Free, "cuMemsetD8Async": tracer.Set,
		"cuMemcpyDtoDAsync": tracer.Copy, "cuMemcpyDtoHAsync": tracer.Copy, "cuMemcpyHtoDAsync": tracer.Copy,
		"cuLaunchKernelEx": tracer.Launch, "cuCtxSynchronize": tracer.Sync, "cuStreamSynchronize": tracer.Sync,
		"cuDevicePrimaryCtxRetain": tracer.Load, "cuKernelGetFunction": tracer.Load, "cuLibraryGetKernel": tracer.Load,
		"cuLibraryLoadData": tracer.Load, "cuModuleGetFunction": tracer.Load, "cuModuleLoadData": tracer.Load,
	} {
		o := tracer.OpStat{Op: op, Class: class, Time: spread(time.Millisecond)}
		if class == tracer.Copy {
			o.Kind = op[len("cuMemcpy"):]
		}
		p.Ops = append(p.Ops, o)
	}
	for i := range 40 {
		name := fmt.Sprint("kernel", i)
		p.Kernels = append(p.Kernels, tracer.Kernel{Name: name, Symbol: name, Count: 5, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}})
	}
	cfg := createDefaultConfig().(*Config)
	l, e := ledger.New(cfg.ledger()), newEmitter(cfg, receivertest.NewNopSettings(metadata.Type), began)
	tick := machine(1)
	tick.Time = at(10)
	l.Observe(&tracer.Snapshot{Time: at(10), Started: began, Processes: []tracer.Process{p}}, ledger.NewPlaces(tick))
	for _, cause := range []string{"host_delay", "neighbour", "power_cap"} {
		l.Subjects[0].Anomalies[cause]++
	}
	var page strings.Builder
	if err := pageexporter.Render(&page, e.emit(l, nil, tick), []string{"host.name"}, false); err != nil {
		t.Fatal(err)
	}
	series := 0
	for line := range strings.Lines(page.String()) {
		if strings.HasPrefix(line, "gpu_") || strings.HasPrefix(line, "nccl_") || strings.HasPrefix(line, "gpumeter_anomaly") {
			series++
		}
	}
	const documented = 144
	if series != documented {
		t.Errorf("%d series, %d are documented:\n%s", series, documented, page.String())
	}
}

// Catches process attributes on series without per_process.
func TestPerProcess(t *testing.T) {
	b := newBench(t, machine(1), whoIs{1: llm, 2: llm}, func(c *Config) { c.PerProcess = true })
	want := []string{
		"gpu.cuda.busy.time{" + llmOn0 + ",process.pid=1} 1 since 1s",
		"gpu.cuda.busy.time{" + llmOn0 + ",process.pid=2} 2 since 1s",
	}
	if diff := cmp.Diff(want, only(b.read(10, proc(1, 0, 1000), proc(2, 0, 2000)), "gpu.cuda.busy.time")); diff != "" {
		t.Error(diff)
	}
}

// Catches a guessed device: if CUDA does not report the device of an ordinal, only the driver's list or
// the machine's only device decides.
func TestDeviceOfAProcess(t *testing.T) {
	f := func(devices int, pids [][]uint32, want string) {
		t.Helper()
		p := proc(1, 0, 1000)
		p.Devices[0].UUID = ""
		b := newBench(t, machine(devices, pids...), nil, nil)
		if diff := cmp.Diff([]string{"gpu.cuda.busy.time{" + want + "gpu.workload.kind=unattributed} 1 since 1s"}, only(b.read(10, p), "gpu.cuda.busy.time")); diff != "" {
			t.Error(diff)
		}
	}
	const on1 = "gpu.index=1,gpu.model=H200,gpu.uuid=GPU-1,gpu.vendor=nvidia,"
	f(1, nil, "gpu.index=0,gpu.model=H200,gpu.uuid=GPU-0,gpu.vendor=nvidia,")
	f(2, [][]uint32{{7}, {1}}, on1)
	f(2, [][]uint32{{1}, {1}}, "")
	f(2, nil, "")
	// Two ordinals, but the driver lists one device: either may be the one.
	p := proc(1, 0, 1000)
	p.Devices = []tracer.Device{{Ordinal: 0, Busy: time.Second}, {Ordinal: 1, Busy: time.Second}}
	b := newBench(t, machine(2, nil, []uint32{1}), nil, nil)
	if diff := cmp.Diff([]string{"gpu.cuda.busy.time{gpu.workload.kind=unattributed} 2 since 1s"}, only(b.read(10, p), "gpu.cuda.busy.time")); diff != "" {
		t.Error(diff)
	}
}

// Catches a receiver without a tracer that does not report that, or reports anything else.
func TestWithoutATracer(t *testing.T) {
	b := newBench(t, machine(1), nil, nil)
	tick := *b.tick
	want := []string{"gpumeter.tracer.series.dropped{} 0 since 0s", "gpumeter.tracer.up{} 0"}
	if diff := cmp.Diff(want, render(b.emit(b.Ledger, nil, &tick))); diff != "" {
		t.Error(diff)
	}
}

// Catches a library whose launches are not probed, because probing is too slow, and that is not reported.
func TestSkippedProbes(t *testing.T) {
	b := newBench(t, machine(1), nil, nil)
	got := only(b.readAll(tracer.Snapshot{Time: at(10), Started: began, Libraries: []tracer.Library{
		{Kind: "cuda", Mode: "session", Probes: 60, Slow: 2, Skipped: 7}, {Kind: "cuda", Mode: "session", Probes: 67, Skipped: 1}, {Kind: "nccl", Mode: "session", Probes: 20},
	}}), "gpumeter.tracer.probes")
	var want []string
	for _, p := range []string{"fast,cuda 125", "fast,nccl 20", "skipped,cuda 8", "slow,cuda 2"} {
		cost, rest, _ := strings.Cut(p, ",")
		kind, n, _ := strings.Cut(rest, " ")
		want = append(want, "gpumeter.tracer.probes{gpumeter.probe.cost="+cost+",gpumeter.probe.library="+kind+",gpumeter.probe.mode=session} "+n)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
