package anomaly

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// judged returns the verdict on a process that did p in ten seconds.
func judged(t *testing.T, p tracer.Process, groups ...tracer.CommGroup) Verdict {
	t.Helper()
	p.PID, p.Name, p.Since = 12, "python3", noon
	list := Judge(
		tracer.Snapshot{Time: noon, Processes: []tracer.Process{{PID: 12, Name: "python3", Since: noon}}},
		tracer.Snapshot{Time: noon.Add(window), Processes: []tracer.Process{p}, Groups: groups})
	if len(list) != 1 {
		t.Fatalf("got %+v", list)
	}
	return list[0]
}

func op(name string, class tracer.Class, kind string, n uint64, seconds float64, bytes uint64) tracer.OpStat {
	return tracer.OpStat{Op: name, Class: class, Kind: kind, Bytes: bytes, Time: tracer.Histogram{Count: n, Sum: seconds}}
}

func on(busy, wait, bubble float64) []tracer.Device {
	return []tracer.Device{{Busy: dur(busy), Wait: dur(wait), Bubble: dur(bubble)}}
}

// Each kind of work gets its own verdict, because the remedy differs.
func TestJudge(t *testing.T) {
	launch := func(n uint64, seconds float64) tracer.OpStat {
		return op("cuLaunchKernel", tracer.Launch, "", n, seconds, 0)
	}
	sync := func(n uint64, seconds float64) tracer.OpStat {
		return op("cuStreamSynchronize", tracer.Sync, "", n, seconds, 0)
	}
	f := func(name string, want Verdict, p tracer.Process, groups ...tracer.CommGroup) {
		t.Helper()
		want.PID, want.Process = 12, "python3"
		if diff := cmp.Diff(want, judged(t, p, groups...), cmpopts.EquateApprox(0, 1e-9)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	f("nothing", Verdict{Kind: Idle, Idle: 1, Text: "python3 (pid 12) hardly uses the device: idle"}, tracer.Process{})
	f("a request now and then",
		Verdict{Kind: Idle, GPU: 0.02, Idle: 0.98, Text: "python3 (pid 12) hardly uses the device: idle"},
		tracer.Process{Ops: []tracer.OpStat{launch(1000, 0.01)}, Devices: on(0.2, 0.2, 9.5)})
	f("waits for the device",
		Verdict{Kind: GPUBound, GPU: 0.85, Host: 0.1, Text: "python3 (pid 12) waits 85 % of the time for the device: GPU-bound"},
		tracer.Process{Ops: []tracer.OpStat{launch(50000, 0.5), sync(100, 8.5)}, Devices: on(9.5, 8.5, 0.5)})
	f("the queue is full and nobody synchronises",
		Verdict{Kind: GPUBound, GPU: 0.8, Host: 0.2, Text: "python3 (pid 12) waits 80 % of the time for the device: GPU-bound"},
		tracer.Process{Ops: []tracer.OpStat{launch(50000, 9)}, Devices: on(10, 0, 0)})
	f("the device waits",
		Verdict{Kind: HostBound, GPU: 0.1, Host: 0.75, Text: "python3 (pid 12) keeps the device waiting 75 % of the time: host-bound"},
		tracer.Process{Ops: []tracer.OpStat{launch(50000, 0.5), sync(100, 1)}, Devices: on(3, 1, 7)})
	f("launches one after the other",
		Verdict{Kind: HostBound, Host: 1, Text: "python3 (pid 12) keeps the device waiting 100 % of the time: host-bound"},
		tracer.Process{Ops: []tracer.OpStat{launch(50000, 0.3)}, Devices: on(10, 0, 0)})
	f("copies that are waited for",
		Verdict{Kind: CopyBound, GPU: 0.1, Host: 0.1, Copy: 0.7, Text: "python3 (pid 12) copies 70 % of the time: copy-bound"},
		tracer.Process{Ops: []tracer.OpStat{launch(5000, 0.05), op("cuMemcpyHtoD", tracer.Copy, "htod", 100, 7, 1e10), sync(100, 1)}, Devices: on(9, 1, 0.95)})
	f("copies that are not",
		Verdict{Kind: CopyBound, GPU: 0.2, Host: 0.1, Copy: 0.6, Text: "python3 (pid 12) copies 60 % of the time: copy-bound"},
		tracer.Process{Ops: []tracer.OpStat{launch(5000, 0.05), op("cuMemcpyHtoDAsync", tracer.Copy, "htod", 100, 0, 300e9), sync(100, 8)}, Devices: on(9, 8, 0.95)})
	comm := []tracer.Comm{{ID: "c", Size: 8, BarrierWait: tracer.Histogram{Count: 1000, Sum: 8}}}
	f("collectives and nothing else",
		Verdict{Kind: CommunicationBound, Communication: 0.8, Barrier: 0.8, Host: 0.05, Text: "python3 (pid 12) waits 80 % of the time for other ranks: communication-bound"},
		tracer.Process{Ops: []tracer.OpStat{launch(1000, 0.01), sync(1000, 8)}, Devices: on(8, 8, 0.49), Comms: comm})
	f("each wait is after a collective, and has the work of a step in it",
		Verdict{Kind: GPUBound, GPU: 0.8, Barrier: 0.8, Host: 0.1, Text: "python3 (pid 12) waits 80 % of the time for the device: GPU-bound, or waits for other ranks: 80 % of the time is in waits after collectives"},
		tracer.Process{Ops: []tracer.OpStat{launch(50000, 0.5), sync(1000, 8)}, Devices: on(8, 8, 0.5), Comms: comm})
	f("waits after collectives are longer than others",
		Verdict{Kind: CommunicationBound, GPU: 0.2, Communication: 0.7, Barrier: 0.8, Host: 0.1, Text: "python3 (pid 12) waits 70 % of the time for other ranks: communication-bound"},
		tracer.Process{Ops: []tracer.OpStat{launch(50000, 0.5), sync(2000, 9)}, Devices: on(9, 9, 0.5), Comms: comm})
	since := tracer.Process{Ops: []tracer.OpStat{launch(100, 0)}, Devices: []tracer.Device{{WaitingSince: noon.Add(-time.Minute)}}}
	f("a wait that does not return", Verdict{Kind: GPUBound, GPU: 1, Text: "python3 (pid 12) waits 100 % of the time for the device: GPU-bound"}, since)
	f("a rank that does not come",
		Verdict{Kind: CommunicationBound, Communication: 1, Barrier: 1, Text: "python3 (pid 12) waits 100 % of the time for other ranks: communication-bound"}, since,
		tracer.CommGroup{ID: "c", Size: 2, Behind: []int{1}, Waiting: noon.Add(-time.Minute), Ranks: []tracer.RankSeen{{Rank: 0, PID: 12}, {Rank: 1, PID: 13}}})
}

// A process in only one snapshot, with a reused pid or after a counter reset gets no verdict,
// nor does an interval of zero.
func TestJudgeNot(t *testing.T) {
	a := tracer.Snapshot{Time: noon, Processes: []tracer.Process{
		{PID: 1, Since: noon}, {PID: 2, Since: noon}, {PID: 3, Since: noon, Ops: []tracer.OpStat{op("x", tracer.Launch, "", 5, 1, 0)}},
	}}
	b := tracer.Snapshot{Time: noon.Add(window), Processes: []tracer.Process{{PID: 2, Since: noon.Add(2 * time.Second)}, {PID: 3, Since: noon}, {PID: 4, Since: noon}}}
	if got := Judge(a, b); len(got) != 0 {
		t.Errorf("got %+v", got)
	}
	if got := Judge(a, a); got != nil {
		t.Errorf("got %+v", got)
	}
}

// Whatever the counters say, shares are fractions of 1.
func TestJudgeShares(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	classes := []tracer.Class{tracer.Launch, tracer.Graph, tracer.Copy, tracer.Sync, tracer.Coll}
	for range 5000 {
		p := tracer.Process{Devices: on(15*r.Float64(), 15*r.Float64(), 15*r.Float64()), Comms: []tracer.Comm{{BarrierWait: tracer.Histogram{Count: r.Uint64N(100), Sum: 15 * r.Float64()}}}}
		for i := range r.IntN(6) {
			p.Ops = append(p.Ops, op(fmt.Sprint(i), classes[r.IntN(len(classes))], "", r.Uint64N(100000), 12*r.Float64(), r.Uint64N(1e12)))
		}
		v := judged(t, p)
		sum := 0.0
		for _, share := range []float64{v.GPU, v.Host, v.Copy, v.Communication, v.Idle} {
			sum += share
			if !(share >= 0 && share <= 1) {
				t.Fatalf("%+v", v)
			}
		}
		if sum > 1+1e-9 || math.IsNaN(sum) || v.Text == "" {
			t.Fatalf("all is %v: %+v", sum, v)
		}
	}
}
