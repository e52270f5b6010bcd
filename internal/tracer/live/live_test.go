//go:build linux

package live

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/tracer"
)

// A process that ended is told once more, with its last numbers, and then no more; the
// kernel is told to forget it after that reading, not before.
func TestExit(t *testing.T) {
	m := newMachine(t, Options{})
	m.start(10, time.Minute)
	m.start(11, time.Hour+time.Minute)
	m.scan(0)
	m.kernel.processes[10] = tracer.Process{PID: 10, Name: "old", Ops: []tracer.OpStat{{Op: "cuLaunchKernel"}}}
	m.kernel.processes[11] = tracer.Process{PID: 11}
	got := m.snapshot(time.Second).Processes
	want := []tracer.Process{
		{PID: 10, Name: "old", Older: true, Ops: []tracer.OpStat{{Op: "cuLaunchKernel"}}},
		{PID: 11, Name: "python"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	// The event comes while the process can still be seen.
	m.kernel.events = []tracer.Event{{PID: 10, Type: "exit"}}
	s := m.snapshot(time.Second)
	want[0].Ended = true
	if d := cmp.Diff(want, s.Processes); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]tracer.Event{{PID: 10, Type: "exit"}}, s.Events); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]uint32{10}, m.kernel.forgotten); d != "" {
		t.Error(d)
	}
	// The event of the other was lost.
	m.stop(11)
	want[1].Ended = true
	if d := cmp.Diff(want[1:], m.snapshot(time.Second).Processes); d != "" {
		t.Error(d)
	}
	if got := m.snapshot(time.Second); len(got.Processes)+len(got.Events) != 0 {
		t.Errorf("%+v", got)
	}
	if len(m.tracer.known)+len(m.tracer.memory) != 0 {
		t.Error("something is kept of processes that are gone")
	}
}

// An exit that was told is not forgotten because a reading failed; and a process that we may
// not look at is no process that ended.
func TestExitAndFailedReading(t *testing.T) {
	m := newMachine(t, Options{})
	m.start(10, time.Minute)
	m.kernel.events = []tracer.Event{{PID: 10, Type: "exit"}}
	m.kernel.fail = errors.New("interrupted")
	m.snapshot(time.Second)
	if m.tracer.Err() == nil {
		t.Error("a reading that failed is no error")
	}
	m.kernel.fail = nil
	m.kernel.processes[10] = tracer.Process{PID: 10}
	if got := m.snapshot(time.Second).Processes; len(got) != 1 || !got[0].Ended || m.tracer.Err() != nil {
		t.Errorf("%+v, %v", got, m.tracer.Err())
	}
	m.tracer.o.Proc = "/dev/null"
	if !m.tracer.alive(10) {
		t.Error("it ended because we cannot see it")
	}
}

// A number that is used again within one interval is two processes, which share nothing;
// and the time a process was first seen never changes, whatever the clocks say.
func TestNumberTwice(t *testing.T) {
	m := newMachine(t, Options{Kernels: 1})
	m.start(10, time.Minute)
	first, second := m.now.Add(-time.Hour), m.now.Add(time.Second)
	kernels := func(n uint64) []tracer.Kernel {
		return []tracer.Kernel{{Symbol: "a", Count: n}, {Symbol: "b", Count: 1, Time: 1}}
	}
	m.kernel.processes[10] = tracer.Process{PID: 10, Since: first, Kernels: kernels(100)}
	m.snapshot(time.Second)
	m.kernel.processes[10] = tracer.Process{PID: 10, Since: first.Add(time.Microsecond), Kernels: kernels(100)}
	if got := m.snapshot(time.Second).Processes[0].Since; !got.Equal(first) {
		t.Errorf("it was first seen at %v, then at %v", first, got)
	}
	m.kernel.events = []tracer.Event{{PID: 10, Type: "exit"}}
	m.tracer.mu.Lock()
	m.tracer.drain()
	m.tracer.mu.Unlock()
	m.now = m.now.Add(time.Minute)
	m.tracer.reap(m.now)
	m.kernel.processes[10] = tracer.Process{PID: 10, Since: second, Kernels: []tracer.Kernel{{Symbol: "a", Count: 5}}}
	got := m.snapshot(time.Second).Processes
	if len(got) != 2 || !got[0].Ended || !got[0].Since.Equal(first) || got[1].Ended || !got[1].Since.Equal(second) || got[1].Kernels[0].Count != 5 {
		t.Errorf("%+v", got)
	}
}

// Processes that begin and end between two snapshots free their place in the kernel's maps
// before, are all told, and what is beyond the bound is counted.
func TestShortProcesses(t *testing.T) {
	m := newMachine(t, Options{})
	for i := range uint32(maxFinals + 100) {
		pid := 1000 + i
		m.kernel.processes[pid] = tracer.Process{PID: pid}
		m.kernel.events = append(m.kernel.events, tracer.Event{PID: pid, Type: "exit"})
		if i%50 == 0 {
			m.now = m.now.Add(reapEvery)
			m.tracer.mu.Lock()
			m.tracer.drain()
			m.tracer.mu.Unlock()
			m.tracer.reap(m.now)
			if len(m.kernel.processes) != 0 {
				t.Fatal("the kernel still has a process that ended")
			}
		}
	}
	s := m.snapshot(time.Second)
	if len(s.Processes) != maxFinals || s.Losses.MapFull["ended"] != 100 {
		t.Errorf("%d processes, lost %v", len(s.Processes), s.Losses.MapFull)
	}
	if len(m.kernel.processes) != 0 {
		t.Error("the kernel still has a process that ended")
	}
}

// A communicator that ended is told once by the kernel, and a reading for another process
// must not swallow it.
func TestEndedCommunicator(t *testing.T) {
	m := newMachine(t, Options{})
	m.start(10, time.Minute)
	ended := tracer.Comm{ID: "0x1", Ended: true}
	m.kernel.processes[10] = tracer.Process{PID: 10, Comms: []tracer.Comm{ended}}
	m.now = m.now.Add(time.Minute)
	m.tracer.reap(m.now)
	m.kernel.processes[10] = tracer.Process{PID: 10}
	if d := cmp.Diff([]tracer.Comm{ended}, m.snapshot(time.Second).Processes[0].Comms); d != "" {
		t.Error(d)
	}
	if got := m.snapshot(time.Second).Processes[0].Comms; got != nil {
		t.Errorf("told twice: %v", got)
	}
}

// Events beyond the bound are counted as lost, not kept.
func TestEventsAreBounded(t *testing.T) {
	m := newMachine(t, Options{})
	m.kernel.losses.Events = 5
	for range maxEvents/4096 + 2 {
		m.kernel.events = append(m.kernel.events, make([]tracer.Event, 4096)...)
	}
	m.tracer.mu.Lock()
	m.tracer.drain()
	m.tracer.drain()
	m.tracer.mu.Unlock()
	s := m.snapshot(0)
	if len(s.Events) != maxEvents || s.Losses.Events != 5+2*4096 {
		t.Errorf("%d events, %d lost", len(s.Events), s.Losses.Events)
	}
}

// Run ends with its context, and nothing of it stays.
func TestRunReleases(t *testing.T) {
	before := runtime.NumGoroutine()
	m := newMachine(t, Options{Interval: 5 * time.Millisecond})
	m.start(10, time.Minute, buildLibrary(t, "libcuda.so.1", fakeCUDA, "aa"))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- m.tracer.Run(ctx) }()
	await.True(t, "probes", func() bool { return m.kernel.open() == 1 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if m.kernel.open() != 0 || !m.kernel.closed {
		t.Error("probes stay")
	}
	m.snapshot(0, 10) // must not bring them back
	m.scan(time.Minute)
	if m.kernel.open() != 0 {
		t.Error("probes came back")
	}
	await.True(t, "the end of all goroutines", func() bool { return runtime.NumGoroutine() <= before })
}

const mib = 1 << 20

// grow feeds a history, one sample each 10 s.
func grow(samples int, reserved func(i int) uint64, allocs, frees func(i int) uint64) (float64, bool) {
	h := &history{}
	for i := range samples {
		h.add(time.Unix(1e9, 0).Add(time.Duration(i)*sampleEvery), tracer.Memory{Reserved: reserved(i), Allocations: allocs(i), Frees: frees(i)})
	}
	return h.growth()
}

// Memory that only grows is a leak; a warm-up, a cycle and a program that gives back as
// much as it takes are not.
func TestLeak(t *testing.T) {
	each := func(i int) uint64 { return uint64(i) }
	none := func(int) uint64 { return 0 }
	f := func(name string, n int, reserved, allocs, frees func(i int) uint64, wantSlope float64, want bool) {
		t.Helper()
		slope, leak := grow(n, reserved, allocs, frees)
		if leak != want || wantSlope >= 0 && (slope < wantSlope*0.99 || slope > wantSlope*1.01) {
			t.Errorf("%s: %v bytes a second, leak %t", name, slope, leak)
		}
	}
	steady := func(i int) uint64 { return uint64(i) * 10 * mib }
	f("steady growth", 30, steady, each, none, mib, true)
	f("steady growth, for long", 100, steady, each, none, mib, true)
	f("too short to tell", 12, steady, each, none, mib, false)
	f("constant", 30, func(int) uint64 { return mib }, none, none, 0, false)
	f("shrinks", 30, func(i int) uint64 { return uint64(100-i) * mib }, none, each, -1, false)
	f("warm-up and plateau", 30, func(i int) uint64 { return uint64(min(i, 20)) * mib }, func(i int) uint64 { return uint64(min(i, 20)) }, none, -1, false)
	f("cycle", 30, func(i int) uint64 { return uint64(i%6)*mib + uint64(i)*10 }, each, each, -1, false)
	f("all is freed in the end", 30, steady, each, each, mib, false)
	f("saw on a ramp", 30, func(i int) uint64 { return uint64(i+5*(i%3)) * mib }, func(i int) uint64 { return uint64(2 * i) }, each, -1, true)
	f("peaks that grow, and all is given back", 30, func(i int) uint64 { return uint64(i) * uint64(i%3) * mib }, func(i int) uint64 { return uint64(2 * i) }, each, -1, false)
	f("a floor that rises below the same peaks", 30, func(i int) uint64 { return max(uint64(i), 100*uint64(i%3)) * mib }, func(i int) uint64 { return uint64(2 * i) }, each, -1, false)
	f("steps with a long rest", 30, func(i int) uint64 { return uint64(i/15) * mib }, each, none, -1, false)
}

// The memory of each process and device is followed apart, at its own pace.
func TestGrowthInSnapshot(t *testing.T) {
	m := newMachine(t, Options{})
	m.start(10, time.Minute)
	var s tracer.Snapshot
	for i := range 61 {
		m.kernel.processes[10] = tracer.Process{PID: 10, Devices: []tracer.Device{
			{Ordinal: 0, Memory: tracer.Memory{Reserved: uint64(i) * 2 * mib, Allocations: uint64(i)}},
			{Ordinal: 1, Memory: tracer.Memory{Reserved: 5 * mib, Allocations: 1}},
		}}
		s = m.snapshot(2 * time.Second)
	}
	d := s.Processes[0].Devices
	if !d[0].Memory.Leak || d[0].Memory.Growth < 0.99*mib || d[0].Memory.Growth > 1.01*mib || d[1].Memory.Leak || d[1].Memory.Growth != 0 {
		t.Errorf("%+v", d)
	}
}

// rank is a process with one communicator.
func rank(pid uint32, rank int, sequence uint64, last time.Time) tracer.Process {
	return tracer.Process{
		PID: pid, Name: "python",
		Devices: []tracer.Device{{Ordinal: 0}},
		Comms:   []tracer.Comm{{ID: "0xabc", Rank: rank, Size: 4, Sequence: sequence, LastEnter: last, LastOp: "AllReduce"}},
	}
}

// A hang names the rank that did not come, and nobody else.
func TestBehind(t *testing.T) {
	now := time.Unix(1e9, 0)
	ago := func(s int) time.Time { return now.Add(-time.Duration(s) * time.Second) }
	f := func(name string, processes []tracer.Process, wantBehind []int, wantWaiting time.Time) {
		t.Helper()
		var g groups
		got, _ := g.update(processes, now)
		if len(got) != 1 {
			t.Errorf("%s: %+v", name, got)
			return
		}
		if d := cmp.Diff(wantBehind, got[0].Behind); d != "" || !got[0].Waiting.Equal(wantWaiting) || got[0].Size != 4 {
			t.Errorf("%s: %+v", name, got[0])
		}
	}
	none := time.Time{}
	f("all work", []tracer.Process{rank(1, 0, 100, ago(0)), rank(2, 1, 99, ago(0))}, nil, none)
	f("one is slow", []tracer.Process{rank(1, 0, 100, ago(9)), rank(2, 1, 99, ago(9))}, nil, none)
	f("one did not come", []tracer.Process{rank(1, 0, 100, ago(20)), rank(2, 1, 99, ago(21)), rank(3, 2, 100, ago(19))}, []int{1}, ago(20))
	f("two did not come", []tracer.Process{rank(1, 3, 100, ago(20)), rank(2, 1, 99, ago(21)), rank(3, 0, 98, ago(22))}, []int{0, 1}, ago(20))
	f("one never began", []tracer.Process{rank(1, 0, 1, ago(20)), rank(2, 1, 0, none)}, []int{1}, ago(20))
	f("all wait for a rank elsewhere", []tracer.Process{rank(1, 0, 100, ago(60)), rank(2, 1, 100, ago(60))}, nil, none)
	f("alone on this machine", []tracer.Process{rank(1, 0, 100, ago(60))}, nil, none)

	busy := rank(1, 0, 100, ago(60))
	busy.Devices[0].WaitingSince = ago(3)
	f("it did something else before it waited", []tracer.Process{busy, rank(2, 1, 99, ago(61))}, nil, none)
	busy.Devices[0].WaitingSince = ago(30)
	f("it waits on its device", []tracer.Process{busy, rank(2, 1, 99, ago(61))}, []int{1}, ago(30))

	older := rank(2, -1, 3, ago(60))
	f("older than us, with another count", []tracer.Process{rank(1, 0, 100, ago(60)), older}, nil, none)
	ended := rank(2, 1, 3, ago(60))
	ended.Comms[0].Ended = true
	f("left the communicator", []tracer.Process{rank(1, 0, 100, ago(60)), ended}, nil, none)
}

// A rank whose process died is the one the others wait for, as long as one waits.
func TestBehindGone(t *testing.T) {
	now := time.Unix(1e9, 0)
	var g groups
	died := rank(2, 1, 99, now)
	died.Ended = true
	g.update([]tracer.Process{rank(1, 0, 100, now), died}, now)
	got, _ := g.update([]tracer.Process{rank(1, 0, 100, now)}, now.Add(15*time.Second))
	want := []tracer.CommGroup{{
		ID: "0xabc", Size: 4, Behind: []int{1}, Waiting: now,
		Ranks: []tracer.RankSeen{
			{Rank: 0, PID: 1, Sequence: 100, Last: now, LastOp: "AllReduce"},
			{Rank: 1, PID: 2, Sequence: 99, Last: now, LastOp: "AllReduce"},
		},
	}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	// A new process may take its place.
	if got, _ := g.update([]tracer.Process{rank(1, 0, 100, now), rank(9, 1, 100, now)}, now.Add(20*time.Second)); len(got[0].Ranks) != 2 || got[0].Behind != nil {
		t.Errorf("%+v", got)
	}
	// One that died ahead of the others does not wait for them.
	died.Comms[0].Sequence = 101
	g.update([]tracer.Process{rank(1, 0, 100, now), died}, now)
	if got, _ := g.update([]tracer.Process{rank(1, 0, 100, now)}, now.Add(15*time.Second)); got[0].Behind != nil {
		t.Errorf("%+v", got)
	}
	if got, _ := g.update(nil, now.Add(time.Minute)); got != nil || len(g.gone) != 0 {
		t.Errorf("%v, %v", got, g.gone)
	}
}

// The number of communicators is bounded whatever processes claim.
func TestGroupsAreBounded(t *testing.T) {
	p := tracer.Process{PID: 1}
	for i := range 2 * maxGroups {
		p.Comms = append(p.Comms, tracer.Comm{ID: fmt.Sprint(i), Size: 1})
	}
	var g groups
	if got, _ := g.update([]tracer.Process{p}, time.Unix(1e9, 0)); len(got) != maxGroups {
		t.Errorf("%d groups", len(got))
	}
	p.Ended = true
	if g.update([]tracer.Process{p}, time.Unix(1e9, 0)); len(g.gone) > maxRanks {
		t.Errorf("%d ranks kept", len(g.gone))
	}
}
