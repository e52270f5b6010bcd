package cudareceiver

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// proc returns a process on one device with this many launches of 4 us each.
func proc(pid uint32, device, launches int) tracer.Process {
	return tracer.Process{
		PID: pid, Name: "python3", Since: at(1),
		Devices: []tracer.Device{{
			Ordinal: 0, UUID: uuid(device), Busy: time.Duration(launches) * time.Millisecond, Wait: time.Duration(launches) * 100 * time.Microsecond,
			Memory: tracer.Memory{Reserved: 1000, Peak: 2000},
		}},
		Ops: []tracer.OpStat{{Op: "cuLaunchKernel", Class: tracer.Launch, Device: 0, Time: spread(times(launches, 4*time.Microsecond)...)}},
	}
}

func ended(p tracer.Process) tracer.Process {
	p.Ended = true
	return p
}

const llmOn0 = "gpu.index=0,gpu.model=H200,gpu.uuid=GPU-0,gpu.vendor=nvidia,gpu.workload.kind=deployment,gpu.workload.name=llm,gpu.workload.team=search,k8s.namespace.name=ml,k8s.pod.name=llm-0"

// Catches two processes of a workload on one device in two series, two devices in one series, and the
// end of a process that subtracts its sums or loses its last activity.
func TestProcessesOfAWorkloadAreSummed(t *testing.T) {
	b := newBench(t, machine(2), whoIs{1: llm, 2: llm, 3: llm}, nil)
	busy := func(lines []string) []string { return only(lines, "gpu.cuda.busy.time") }
	f := func(got []string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, busy(got)); diff != "" {
			t.Error(diff)
		}
	}
	on0, on1 := "gpu.cuda.busy.time{"+llmOn0+"} ", "gpu.cuda.busy.time{gpu.index=1,gpu.model=H200,gpu.uuid=GPU-1"+llmOn0[len("gpu.index=0,gpu.model=H200,gpu.uuid=GPU-0"):]+"} "
	f(b.read(10, proc(1, 0, 1000), proc(2, 0, 500), proc(3, 1, 10)), on0+"1.5 since 1s", on1+"0.01 since 1s")
	f(b.read(20, proc(1, 0, 2000), ended(proc(2, 0, 700)), proc(3, 1, 10)), on0+"2.7 since 1s", on1+"0.01 since 1s")
	f(b.read(30, proc(1, 0, 2000), proc(3, 1, 10)), on0+"2.7 since 1s", on1+"0.01 since 1s")
	// The same PID, another process.
	again := proc(2, 0, 100)
	again.Since = at(35)
	f(b.read(40, proc(1, 0, 2000), again, proc(3, 1, 10)), on0+"2.8 since 1s", on1+"0.01 since 1s")
}

// Catches gauges that outlive the last process, sums that do not end five minutes later with a final
// point, and a returning workload without a new start time.
func TestSeriesEnd(t *testing.T) {
	b := newBench(t, machine(1), whoIs{1: llm}, nil)
	f := func(seconds int, list []tracer.Process, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, only(b.read(seconds, list...), "gpu.cuda.busy.time", "gpu.cuda.memory.reserved")); diff != "" {
			t.Errorf("at %d s: %s", seconds, diff)
		}
	}
	busy, reserved := "gpu.cuda.busy.time{"+llmOn0+"} ", "gpu.cuda.memory.reserved{"+llmOn0+"} "
	f(10, []tracer.Process{proc(1, 0, 1000)}, busy+"1 since 1s", reserved+"1000")
	f(20, []tracer.Process{ended(proc(1, 0, 1500))}, busy+"1.5 since 1s", reserved+"ended")
	f(30, nil, busy+"1.5 since 1s")
	f(310, nil, busy+"1.5 since 1s")
	f(320, nil, busy+"ended since 1s")
	f(330, nil)
	again := proc(1, 0, 10)
	again.Since = at(335)
	f(340, []tracer.Process{again}, busy+"0.01 since 5m35s", reserved+"1000")
}

// Catches a process whose owner becomes known late and whose activity is counted twice or not moved.
func TestOwnerBecomesKnown(t *testing.T) {
	known := whoIs{}
	b := newBench(t, machine(1), known, nil)
	rest := "gpu.cuda.busy.time{gpu.index=0,gpu.model=H200,gpu.uuid=GPU-0,gpu.vendor=nvidia,gpu.workload.kind=unattributed} "
	if diff := cmp.Diff([]string{rest + "1 since 1s"}, only(b.read(10, proc(1, 0, 1000)), "gpu.cuda.busy.time")); diff != "" {
		t.Error(diff)
	}
	known[1] = llm
	want := []string{"gpu.cuda.busy.time{" + llmOn0 + "} 0.2 since 10s", rest + "1 since 1s"}
	if diff := cmp.Diff(want, only(b.read(20, proc(1, 0, 1200)), "gpu.cuda.busy.time")); diff != "" {
		t.Error(diff)
	}
	// The process ended: its PID is unknown, but it still belongs to its owner.
	delete(known, 1)
	want[0] = "gpu.cuda.busy.time{" + llmOn0 + "} 0.3 since 10s"
	if diff := cmp.Diff(want, only(b.read(30, ended(proc(1, 0, 1300))), "gpu.cuda.busy.time")); diff != "" {
		t.Error(diff)
	}
}

// Catches activity lost beyond max_workloads instead of combined in other, and a count of folded
// workloads that grows with every reading, which makes it useless for alerts.
func TestWorkloadsBeyondTheCap(t *testing.T) {
	b := newBench(t, machine(1), whoIs{1: llm, 2: job}, func(c *Config) { c.MaxWorkloads = 1 })
	second := func(launches int) tracer.Process {
		p := proc(2, 0, launches)
		p.Host = tracer.Host{Known: true} // belongs to no device, but to the same workload
		return p
	}
	f := func(seconds int, sum string, list ...tracer.Process) {
		t.Helper()
		want := []string{
			"gpu.cuda.busy.time{" + llmOn0 + "} 1 since 1s",
			"gpu.cuda.busy.time{gpu.index=0,gpu.model=H200,gpu.uuid=GPU-0,gpu.vendor=nvidia,gpu.workload.kind=other} " + sum + " since 1s",
			"gpumeter.tracer.series.dropped{} 1 since 0s",
		}
		if diff := cmp.Diff(want, only(b.read(seconds, list...), "gpu.cuda.busy.time", "gpumeter.tracer.series.dropped")); diff != "" {
			t.Errorf("at %d s: %s", seconds, diff)
		}
	}
	f(10, "0.5", proc(1, 0, 1000), second(500))
	f(20, "0.7", proc(1, 0, 1000), second(700))
	f(30, "0.7", proc(1, 0, 1000), ended(second(700)))
}

// The same for communicators.
func TestCommunicatorsBeyondTheCap(t *testing.T) {
	b := newBench(t, machine(1), whoIs{1: llm}, func(c *Config) { c.MaxCommunicators = 1 })
	for i := 1; i < 4; i++ {
		p := proc(1, 0, 1000)
		for _, id := range []string{"0xa", "0xb", "0xc"} {
			p.Comms = append(p.Comms, tracer.Comm{ID: id, Size: 2, Sequence: uint64(i)})
		}
		if diff := cmp.Diff([]string{"gpumeter.tracer.series.dropped{} 2 since 0s"}, only(b.read(10*i, p), "gpumeter.tracer.series.dropped")); diff != "" {
			t.Errorf("reading %d: %s", i, diff)
		}
	}
}

// Catches launches lost beyond max_kernels, combined kernels counted as dropped, and startup kernels
// that never make room for the kernels of the main work, whose series start then.
func TestKernelsBeyondTheCap(t *testing.T) {
	b := newBench(t, machine(1), whoIs{1: llm}, func(c *Config) { c.MaxKernels = 2 })
	f := func(seconds int, want []string, counts ...uint64) {
		t.Helper()
		p := proc(1, 0, 1000)
		for i, n := range counts {
			name := string(rune('a' + i))
			p.Kernels = append(p.Kernels, tracer.Kernel{Name: name, Symbol: name, Count: n})
		}
		for i, line := range want {
			name, rest, _ := strings.Cut(line, " ")
			want[i] = "gpu.cuda.kernel.launches{gpu.cuda.kernel.name=" + name + "," + llmOn0 + "} " + rest
		}
		want = append(want, "gpumeter.tracer.series.dropped{} 0 since 0s")
		if diff := cmp.Diff(want, only(b.read(seconds, p), "gpu.cuda.kernel.launches", "gpumeter.tracer.series.dropped")); diff != "" {
			t.Errorf("at %d s: %s", seconds, diff)
		}
	}
	f(10, []string{"a 1 since 1s", "b 2 since 1s", "other 3 since 1s"}, 1, 2, 3)
	f(20, []string{"a 1 since 1s", "b 3 since 1s", "other 4 since 1s"}, 1, 3, 4)
	f(310, []string{"a ended since 1s", "b 4 since 1s", "c 2 since 20s", "other 4 since 1s"}, 1, 4, 6)
	f(320, []string{"b 5 since 1s", "c 3 since 20s", "other 5 since 1s"}, 2, 5, 7)
}

// Catches points beyond max_series that are not counted, and the tracer's own metrics among them.
func TestSeriesBeyondTheCap(t *testing.T) {
	b := newBench(t, machine(1), whoIs{1: llm}, func(c *Config) { c.MaxSeries = 2 })
	lines := b.read(10, proc(1, 0, 1000))
	if got := len(only(lines, "gpu.cuda.busy.time", "gpu.cuda.sync.wait", "gpu.cuda.host.bubble", "gpu.cuda.operation.duration", "gpu.cuda.memory.reserved")); got != 2 {
		t.Errorf("%d points of the workload, want 2: %v", got, lines)
	}
	if diff := cmp.Diff([]string{"gpumeter.tracer.series.dropped{} 9 since 0s", "gpumeter.tracer.up{} 1"}, only(lines, "gpumeter.tracer.series.dropped", "gpumeter.tracer.up")); diff != "" {
		t.Error(diff)
	}
}
