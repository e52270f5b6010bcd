//go:build linux

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/inspect"
	"github.com/gpumeter/gpumeter/internal/tracer/live"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// fakeTracer has a process that makes 1,000 launches in each second.
type fakeTracer struct {
	mu       sync.Mutex
	began    time.Time
	recorded map[uint32]bool
	sent     int
	lost     uint64 // events
}

func (f *fakeTracer) Run(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (f *fakeTracer) Record(pid uint32, on bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recorded[pid] = on
	return nil
}

func (f *fakeTracer) Snapshot(now time.Time, _ map[uint32][]string) tracer.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := fakeSnapshot(now, f.began, uint64(now.Sub(f.began).Milliseconds()))
	if f.recorded[4242] {
		for range 3 {
			f.sent++
			s.Events = append(s.Events, tracer.Event{
				Time: now, PID: 4242, TID: 4243, Type: "call", Op: "cuLaunchKernel", Duration: 4 * time.Microsecond, Kernel: "gemm<float>", Stream: 7,
			})
		}
		s.Events = append(s.Events, tracer.Event{Time: now, PID: 99, Type: "call", Op: "cuMemFree"})
		f.lost++
	}
	s.Losses.Events = f.lost
	return s
}

// fakeSnapshot is a machine after so many launches.
func fakeSnapshot(now, began time.Time, launches uint64) tracer.Snapshot {
	buckets := make([]uint64, tracer.TimeBuckets)
	buckets[tracer.TimeBucket(4000)] = launches
	return tracer.Snapshot{
		Time: now, Started: began,
		Libraries: []tracer.Library{{Path: "/usr/lib/libcuda.so.1", Kind: "cuda", Probes: 70, Mode: "session"}},
		Untraced:  []tracer.Untraced{{PID: 77, Reason: "permission_denied", Detail: "cannot read its maps"}},
		Processes: []tracer.Process{
			{
				PID: 4242, Name: "python3", Since: began,
				Devices: []tracer.Device{{
					UUID: "GPU-0", Busy: time.Duration(launches) * time.Millisecond, Wait: time.Duration(launches) * 700 * time.Microsecond, Bubble: time.Duration(launches) * 10 * time.Microsecond,
					Memory: tracer.Memory{Reserved: 8 << 30, Peak: 9 << 30, Allocated: 6 << 30, Pool: 8 << 30, Framework: true, Oldest: time.Minute, Growth: 1 << 20, Leak: true},
				}},
				Ops: []tracer.OpStat{
					{
						Op: "cuLaunchKernel", Class: tracer.Launch, Time: tracer.Histogram{Count: launches, Sum: float64(launches) * 4e-6, Offset: tracer.TimeOffset, Buckets: buckets},
						Errors: []tracer.CodeCount{{Code: 700, Count: launches / 500}},
					},
					{Op: "cuMemcpyHtoDAsync", Class: tracer.Copy, Kind: "htod", Bytes: launches << 10, Time: tracer.Histogram{Count: launches / 10, Sum: float64(launches) * 1e-6, Offset: tracer.TimeOffset, Buckets: buckets}},
				},
				Kernels: []tracer.Kernel{{Name: "gemm<float>", Symbol: "_Z4gemm", Count: launches, Grid: [3]uint32{132, 2, 1}, Block: [3]uint32{128, 1, 1}}},
				Comms: []tracer.Comm{{
					ID: "0xabc", Rank: 0, Size: 2, Sequence: launches, LastEnter: now.Add(-2 * time.Second), LastOp: "AllReduce",
					Ops: []tracer.CollOp{{Op: "AllReduce", Type: "bfloat16", Reduce: "sum", Peer: -1, Time: tracer.Histogram{Count: launches, Sum: float64(launches) * 3e-5}, Size: tracer.Histogram{Count: launches, Sum: float64(launches) * 1024}}},
				}},
				Host: tracer.Host{Threads: 1, Known: true, RunQueue: time.Duration(launches) * 100 * time.Microsecond, Blocked: time.Duration(launches) * 700 * time.Microsecond},
			},
			{PID: 5000, Name: "other", Since: began},
		},
		Groups: []tracer.CommGroup{{ID: "0xabc", Size: 2, Behind: []int{1}, Waiting: now.Add(-2 * time.Second)}},
	}
}

// fakeMachine has one GPU, and a pod on it.
type fakeMachine struct{}

func (fakeMachine) Tick(_ context.Context, now time.Time) node.Tick {
	return node.Tick{Time: now, Readings: []node.Reading{{Up: true, Sample: device.Sample{
		ID: device.ID{Vendor: "nvidia", UUID: "GPU-0", Index: 3, Model: "H200"}, Processes: []device.Process{{PID: 4242}, {PID: 77}},
	}}}}
}

func (fakeMachine) Learn(ctx context.Context) { <-ctx.Done() }

func (fakeMachine) Process(pid uint32) (workload.Workload, bool) {
	if pid != 4242 {
		return workload.Workload{}, false
	}
	return workload.Workload{ID: "pod/u1/c", Kind: "deployment", Name: "llm", Attributes: map[string]string{
		"k8s.namespace.name": "ml", "k8s.pod.name": "llm-0", "slurm.job.id": "9", "slurm.array.job.id": "7", "slurm.array.task.id": "2",
	}}, true
}

func fakeEnv(err error) traceEnv {
	return traceEnv{
		tracer: func(live.Options) (inspect.Tracer, error) {
			if err != nil {
				return nil, err
			}
			return &fakeTracer{began: time.Now(), recorded: map[uint32]bool{}}, nil
		},
		view: func(local.Config) (inspect.Machine, error) { return fakeMachine{}, nil },
	}
}

// runTrace runs the command on the fake machine.
func runTrace(t *testing.T, fail error, args ...string) (string, error) {
	t.Helper()
	cmd := (&traceCommand{traceEnv: fakeEnv(fail)}).command()
	var out strings.Builder
	cmd.SetOut(&out)
	cmd.SetArgs(args)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// What people see of a process: its owner, what it waits for, its calls, kernels, memory,
// collectives, and who is waited for.
func TestTraceReport(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	c := &traceCommand{}
	c.PIDs = []uint{4242, 77}
	before, now := fakeSnapshot(began.Add(time.Second), began, 1000), fakeSnapshot(began.Add(3*time.Second), began, 3000)
	tick := fakeMachine{}.Tick(t.Context(), now.Time)
	r := traceReport{Report: (&inspect.Session{Machine: fakeMachine{}}).Report(&c.Choice, before, now, &tick)}
	var out strings.Builder
	r.print(&out)
	want := `12:00:03  2 processes traced, 1 of them not chosen; 70 probes in 1 library,
session
Process 77 is on a GPU and not traced: permission denied: cannot read its maps.

python3 (pid 4242, ml/llm-0): KIND
  waits for VERDICT
  GPU 3     has work 100%; the host waits for it 70%, it for the host 1%
    memory  8.0 GiB reserved, peak 9.0 GiB, oldest 1m0s; PyTorch uses 6.0 GiB
            (25% fragmented)
            LEAK? It grows by 1.0 MiB/s, and less is freed than taken.
  host      launching threads: ready without a CPU 10% (0% in calls), asleep 70%
            (0% in calls)
  NCCL      0xabc, rank 0 of 2: 3000 collectives, the last 2s ago (AllReduce)
            AllReduce bfloat16 sum: 1000/s of 1.0 KiB, 1000.0 KiB/s, 30.0 us a
            call
            WAITS for rank 1 since 2s
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
	tick := fakeMachine{}.Tick(t.Context(), began)
	r := traceReport{Report: (&inspect.Session{Machine: fakeMachine{}}).Report(&inspect.Choice{}, fakeSnapshot(began, began, 0), fakeSnapshot(began.Add(time.Second), began, 1000), &tick)}
	draw := func(width, height int) []string {
		r.width, r.height = width, height
		var out strings.Builder
		r.print(&out)
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

// What is older than the tracer has reserved and named what nobody saw: that is not 0, and
// not a kernel called unknown.
func TestTraceReportOfOlderProcess(t *testing.T) {
	t.Parallel()
	p := tracer.Process{
		PID: 1, Name: "train", Older: true, Devices: []tracer.Device{{Ordinal: -1}},
		Ops:     []tracer.OpStat{{Op: "cuLaunchKernel", Time: tracer.Histogram{Count: 10, Sum: 1e-5}}},
		Kernels: []tracer.Kernel{{Name: tracer.KernelUnknown, Count: 10}},
	}
	r := traceReport{Report: &inspect.Report{Seconds: 1, Processes: []inspect.Process{{Process: p, Delta: p}, {Process: tracer.Process{PID: 2, Name: "idle"}}}}}
	var out strings.Builder
	r.print(&out)
	for _, want := range []string{
		"train (pid 1): not judged yet\n  It ran before the tracer came", "memory  not known: reserved before", "unknown (named before the tracer came)",
		"idle (pid 2): no calls in these 1.0 s",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}

// One object an interval, that others can parse, and nothing else.
func TestTraceJSON(t *testing.T) {
	t.Parallel()
	out, err := runTrace(t, nil, "--json", "--pod", "ml/llm-0", "--interval", "200ms", "--duration", "700ms")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) < 2 {
		t.Fatalf("%d reports: %s", len(lines), out)
	}
	for _, line := range lines {
		var r inspect.Report
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if len(r.Processes) != 1 || r.Processes[0].PID != 4242 || r.Processes[0].Workload.Name != "llm" || r.Others != 1 || r.Seconds <= 0 {
			t.Errorf("report %s", line)
		}
		if len(r.Processes[0].Ops) != 2 || r.Processes[0].Ops[0].Time.Count == 0 {
			t.Errorf("nothing was called: %s", line)
		}
	}
}

// A time that is shorter than the interval has a report, too: of that time.
func TestTraceShorterThanTheInterval(t *testing.T) {
	t.Parallel()
	out, err := runTrace(t, nil, "--interval", "1m", "--duration", "200ms")
	if err != nil || strings.Count(out, "python3 (pid 4242") != 1 {
		t.Errorf("%v: %s", err, out)
	}
}

// A report of the screen is drawn over the one before, one of a pipe is not.
func TestTraceRedraws(t *testing.T) {
	t.Parallel()
	for _, terminal := range []bool{true, false} {
		c := &traceCommand{traceEnv: fakeEnv(nil), terminal: terminal}
		cmd := c.command()
		var out strings.Builder
		cmd.SetOut(&out)
		cmd.SetArgs([]string{"--interval", "200ms", "--duration", "500ms"})
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out.String(), "\x1b[H") != terminal || !strings.Contains(out.String(), "gemm<float>") {
			t.Errorf("on a terminal %v: %q", terminal, out.String())
		}
	}
}

// Communicators that are older than the trace have no ID, and a rank that nobody knows.
func TestTraceReportOfOlderCommunicators(t *testing.T) {
	t.Parallel()
	p := tracer.Process{PID: 1, Comms: []tracer.Comm{{Key: "a", Rank: -1}, {Key: "b", Rank: -1}, {Key: "c", Rank: -1}}}
	var out strings.Builder
	(&traceReport{Report: &inspect.Report{Seconds: 1}}).collectives(&out, &p)
	if strings.Contains(out.String(), "rank -1") || strings.Count(out.String(), "older than the trace, rank not known: ") != 3 {
		t.Error(out.String())
	}
}

// unreadable is a tracer whose readings fail.
type unreadable struct{ *fakeTracer }

func (unreadable) Err() error { return errors.New("cannot read ops: no memory") }

// Numbers that stand still because they cannot be read are not a process that rests.
func TestTraceReportSaysWhatFailed(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	tick := fakeMachine{}.Tick(t.Context(), now)
	r := traceReport{Report: (&inspect.Session{Machine: fakeMachine{}, Tracer: unreadable{}}).Report(&inspect.Choice{}, fakeSnapshot(now, now, 0), fakeSnapshot(now.Add(time.Second), now, 0), &tick)}
	var out strings.Builder
	r.print(&out)
	if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), "The last reading failed, numbers are those of the one before: cannot read ops: no memory.") {
		t.Error(out.String())
	}
}

// What cannot be meant is refused with a word on what can.
func TestTraceRefuses(t *testing.T) {
	t.Parallel()
	f := func(want string, args ...string) {
		t.Helper()
		if out, err := runTrace(t, nil, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q; %s", args, err, want, out)
		}
	}
	f("--duration must be above 0", "--duration", "-1s")
	f("at most 1m0s", "--perfetto", "x", "--duration", "2m")
	f("leave --json out", "--perfetto", "x", "--json")
	f("between 200ms and 5m", "--interval", "1ms")
	f("must be NAMESPACE/NAME", "--pod", "llm")
	f("one choice", "--pod", "ml/llm", "--pid", "1")
	f("did not call CUDA", "--perfetto", filepath.Join(t.TempDir(), "x"), "--job", "1", "--duration", "300ms")
	missing := errors.New("CAP_BPF is missing: nothing can be traced")
	if _, err := runTrace(t, missing, "--duration", "1s"); err == nil || !errors.Is(err, missing) {
		t.Error(err)
	}
}

// The recording is one that viewers read, has the calls of the chosen process only, and
// says how many it has not.
func TestTracePerfetto(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "calls.json")
	out, err := runTrace(t, nil, "--perfetto", file, "--pid", "4242", "--duration", "600ms")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	type traceEvent struct { // of Chrome's format
		Name string
		Cat  string
		Ph   string
		TS   float64
		Dur  float64
		PID  uint32
		TID  uint32
		Args map[string]any
	}
	var got struct {
		TraceEvents []traceEvent
		Metadata    map[string]any
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	calls := 0
	for _, e := range got.TraceEvents {
		if e.PID != 4242 {
			t.Errorf("a call of process %d", e.PID)
		}
		if e.Ph == "M" {
			if diff := cmp.Diff(traceEvent{Name: "process_name", Ph: "M", PID: 4242, TID: 4242, Args: map[string]any{"name": "python3"}}, e); diff != "" {
				t.Error(diff)
			}
			continue
		}
		calls++
		want := traceEvent{Name: "gemm<float>", Cat: "launch", Ph: "X", TS: e.TS, Dur: 4, PID: 4242, TID: 4243, Args: map[string]any{"call": "cuLaunchKernel", "device": 0.0, "stream": 7.0}}
		if diff := cmp.Diff(want, e); diff != "" {
			t.Error(diff)
		}
	}
	if calls == 0 || calls%3 != 0 || got.Metadata["gpumeter.calls"] != float64(calls) || got.Metadata["gpumeter.lost"] != float64(calls/3) {
		t.Errorf("%d calls, metadata %v", calls, got.Metadata)
	}
	if !strings.Contains(out, "calls of 1 process written") {
		t.Errorf("output %q", out)
	}
}
