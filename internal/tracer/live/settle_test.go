//go:build linux

package live

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

func histogramOf(n uint64) tracer.Histogram {
	return tracer.Histogram{Count: n, Sum: float64(n), Offset: -48, Buckets: []uint64{n}}
}

// A process that took its context before tracing has calls on an unknown device, and its
// framework names one: everything is assigned to that device, once.
func TestSettle(t *testing.T) {
	older := func() tracer.Process {
		return tracer.Process{
			PID: 10,
			Devices: []tracer.Device{
				{Ordinal: -1, Busy: 5, Wait: 3, WaitingSince: time.Unix(7, 0), Memory: tracer.Memory{Reserved: 10, Peak: 20, Allocations: 2}},
				{Ordinal: 0, Memory: tracer.Memory{Allocated: 1, Pool: 2, Framework: true}},
			},
			Ops: []tracer.OpStat{
				{Op: "cuLaunchKernel", Device: -1, Time: histogramOf(3), Bytes: 1, Errors: []tracer.CodeCount{{Code: 2, Count: 1}}},
				{Op: "cuLaunchKernel", Device: 0, Time: histogramOf(4), Bytes: 2, Errors: []tracer.CodeCount{{Code: 1, Count: 1}, {Code: 2, Count: 5}}},
				{Op: "cuMemcpyAsync", Kind: "default", Device: -1, Time: histogramOf(1)},
			},
			Kernels: []tracer.Kernel{{Symbol: "k", Device: -1, Count: 1}, {Symbol: "k", Device: 0, Count: 2}},
			Comms:   []tracer.Comm{{ID: "1", Device: -1}},
		}
	}
	m := newMachine(t, Options{})
	m.start(10, time.Minute)
	m.kernel.processes[10] = older()
	m.kernel.events = []tracer.Event{{PID: 10, Device: -1}, {PID: 11, Device: -1}}
	s := m.tracer.Snapshot(m.now, map[uint32][]string{10: {"GPU-1"}})
	want := tracer.Process{
		PID: 10,
		Devices: []tracer.Device{{
			Ordinal: 0, UUID: "GPU-1", Busy: 5, Wait: 3, WaitingSince: time.Unix(7, 0),
			Memory: tracer.Memory{Reserved: 10, Peak: 20, Allocations: 2, Allocated: 1, Pool: 2, Framework: true},
		}},
		Ops: []tracer.OpStat{
			{Op: "cuLaunchKernel", Device: 0, Time: histogramOf(7), Bytes: 3, Errors: []tracer.CodeCount{{Code: 1, Count: 1}, {Code: 2, Count: 6}}},
			{Op: "cuMemcpyAsync", Kind: "default", Device: 0, Time: histogramOf(1)},
		},
		Kernels: []tracer.Kernel{{Name: "k", Symbol: "k", Device: 0, Count: 3}}, Launches: map[string]uint64{"k": 3},
		Comms: []tracer.Comm{{ID: "1", Device: 0}},
	}
	if d := cmp.Diff(want, s.Processes[0]); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]tracer.Event{{PID: 10, Device: 0}, {PID: 11, Device: -1}}, s.Events); d != "" {
		t.Error(d)
	}

	// The assignment is decided once, and never if it could be wrong.
	f := func(name string, want int, on []string, asked bool, ordinals ...int) *settled {
		t.Helper()
		var p tracer.Process
		for _, o := range ordinals {
			p.Devices = append(p.Devices, tracer.Device{Ordinal: o, UUID: map[int]string{3: "GPU-3"}[o]})
		}
		set := &settled{}
		set.settle(&p, on, asked)
		got := nowhere
		if set.done {
			got = set.ordinal
		}
		if got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
		return set
	}
	f("the only one that is known, and the driver's", 2, []string{"GPU-1"}, true, -1, 2)
	f("the only one that is known", 2, nil, true, -1, 2)
	f("none is known, the driver has one", 0, []string{"GPU-1"}, true, -1)
	f("the driver has two", nowhere, []string{"GPU-1", "GPU-2"}, true, -1, 0)
	f("two are known", nowhere, nil, true, -1, 0, 1)
	f("two are known, the driver has one of them", 3, []string{"GPU-3"}, true, -1, 0, 3)
	f("nothing is lost", nowhere, []string{"GPU-1"}, true, 0)
	if set := f("nobody knows", nowhere, nil, true, -1); !set.done {
		t.Error("counts that were told as on no device would move later")
	}
	if set := f("nobody was asked", nowhere, nil, false, -1); set.done {
		t.Error("it is decided without the driver")
	}
}

// The device of a process with a single device is the one on which the driver lists it.
func TestSettleUUID(t *testing.T) {
	p := tracer.Process{Devices: []tracer.Device{{Ordinal: 1}}}
	new(settled).settle(&p, []string{"GPU-1"}, true)
	if p.Devices[0].UUID != "GPU-1" {
		t.Errorf("%+v", p.Devices)
	}
	p.Devices[0].UUID = "GPU-9"
	new(settled).settle(&p, []string{"GPU-1"}, true)
	if p.Devices[0].UUID != "GPU-9" {
		t.Error("what CUDA says itself counts")
	}
}
