//go:build linux

package render

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/inspect"
	"github.com/gpumeter/gpumeter/internal/tracer/tracertest"
)

// What people see of a process: its owner, what it waits for, its calls, kernels, memory,
// collectives, and who is waited for.
func TestTraceReport(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	c := inspect.Choice{PIDs: []uint{4242, 77}}
	before, now := tracertest.Snapshot(began.Add(time.Second), began, 1000), tracertest.Snapshot(began.Add(3*time.Second), began, 3000)
	tick := tracertest.Machine{}.Tick(t.Context(), now.Time)
	r := (&inspect.Session{Machine: tracertest.Machine{}}).Report(&c, before, now, &tick)
	var out strings.Builder
	Trace(&out, r, 0, 0)
	want := `12:00:03  2 processes traced, 1 of them not selected; 70 probes in 1 library,
session
Process 77 uses a GPU but is not traced: permission denied: cannot read its
maps.

python3 (pid 4242, ml/llm-0): KIND
  waits for VERDICT
  GPU 3     has work 100%; host waits for device 70%, device waits for host 1%
    memory  8.0 GiB reserved, peak 9.0 GiB, oldest 1m0s; PyTorch uses 6.0 GiB
            (25% fragmented)
            LEAK? Growing by 1.0 MiB/s, less is freed than allocated.
  host      launching threads: runnable without a CPU 10% (0% in calls), asleep
            70% (0% in calls)
  NCCL      0xabc, rank 0 of 2: 3000 collectives, the last 2s ago (AllReduce)
            AllReduce bfloat16 sum: 1000/s of 1.0 KiB, 1000.0 KiB/s, 30.0 us per
            call
            WAITING for rank 1 for 2s
  failed    cuLaunchKernel with 700, 4 times
  OPERATION                  CALLS/S  TIME     MEAN       P99    BYTES/S ERRORS
  cuLaunchKernel                1000    0%   4.0 us   <5.4 us          -      4
  cuMemcpyHtoDAsync              100    0%  10.0 us   <5.4 us 1000.0 KiB      -
  LAUNCHES/S        GRID     BLOCK  KERNEL
        1000       132x2       128  gemm<float>
`
	verdict := r.Processes[0].Verdict
	if verdict == nil {
		t.Fatal("there is no verdict")
	}
	want = strings.NewReplacer("VERDICT", verdictWords(verdict), "KIND", strings.ReplaceAll(string(verdict.Kind), "_", "-")).Replace(want)
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(out.String(), "\n")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A terminal that is too small shows what fits, and says that there is more.
func TestTraceReportFits(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	tick := tracertest.Machine{}.Tick(t.Context(), began)
	r := (&inspect.Session{Machine: tracertest.Machine{}}).Report(&inspect.Choice{}, tracertest.Snapshot(began, began, 0), tracertest.Snapshot(began.Add(time.Second), began, 1000), &tick)
	draw := func(width, height int) []string {
		var out strings.Builder
		Trace(&out, r, width, height)
		return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	}
	for _, size := range [][2]int{{80, 24}, {80, 20}, {80, 5}, {60, 10}, {200, 100}} {
		all, lines := draw(size[0], 0), draw(size[0], size[1])
		if len(lines) >= size[1] || (len(all) >= size[1]) != strings.Contains(lines[len(lines)-1], " more lines: ") {
			t.Errorf("%d lines of %d: %s", len(lines), size[1], strings.Join(lines, "\n"))
		}
		for _, line := range lines {
			if len(line) > max(size[0], 80) {
				t.Errorf("more than %d characters: %s", size[0], line)
			}
		}
	}
}

// Allocations and kernel names from before tracing are unknown: neither 0 nor a kernel named
// unknown.
func TestTraceReportOfOlderProcess(t *testing.T) {
	t.Parallel()
	p := tracer.Process{
		PID: 1, Name: "train", Older: true, Devices: []tracer.Device{{Ordinal: -1}},
		Ops:     []tracer.OpStat{{Op: "cuLaunchKernel", Time: tracer.Histogram{Count: 10, Sum: 1e-5}}},
		Kernels: []tracer.Kernel{{Name: tracer.KernelUnknown, Count: 10}},
	}
	r := &inspect.Report{Seconds: 1, Processes: []inspect.Process{{Process: p, Delta: p}, {Process: tracer.Process{PID: 2, Name: "idle"}}}}
	var out strings.Builder
	Trace(&out, r, 0, 0)
	for _, want := range []string{
		"train (pid 1): not judged yet\n  Started before tracing", "memory  unknown: reserved before", "unknown (registered before tracing started)",
		"idle (pid 2): no calls in these 1.0 s",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}

// Communicators created before tracing have no ID and an unknown rank.
func TestTraceReportOfOlderCommunicators(t *testing.T) {
	t.Parallel()
	p := tracer.Process{PID: 1, Comms: []tracer.Comm{{Key: "a", Rank: -1}, {Key: "b", Rank: -1}, {Key: "c", Rank: -1}}}
	var out strings.Builder
	(&traceReport{Report: &inspect.Report{Seconds: 1}}).collectives(&out, &p)
	if strings.Contains(out.String(), "rank -1") || strings.Count(out.String(), "created before tracing, rank unknown: ") != 3 {
		t.Error(out.String())
	}
}

// unreadable is a tracer whose readings fail.
type unreadable struct{ *tracertest.Tracer }

func (unreadable) Err() error { return errors.New("cannot read ops: no memory") }

// Counters that stand still because of a read error must not look like an idle process.
func TestTraceReportSaysWhatFailed(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	tick := tracertest.Machine{}.Tick(t.Context(), now)
	r := (&inspect.Session{Machine: tracertest.Machine{}, Tracer: unreadable{}}).Report(&inspect.Choice{}, tracertest.Snapshot(now, now, 0), tracertest.Snapshot(now.Add(time.Second), now, 0), &tick)
	var out strings.Builder
	Trace(&out, r, 0, 0)
	if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), "The last reading failed, showing the previous one: cannot read ops: no memory.") {
		t.Error(out.String())
	}
}
