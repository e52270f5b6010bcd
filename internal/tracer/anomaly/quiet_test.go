package anomaly

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/tracer"
)

// An hour without faults: noise with heavy tails, single slow windows, facts that drift,
// epochs that end with a pause or an evaluation. A detector that reports anything here is not
// trusted when it matters.
func TestQuietHour(t *testing.T) {
	for seed := range uint64(20) {
		m := newMachine(seed)
		m.jitter = []float64{0.005, 0.02, 0.05}[seed%3]
		m.barrier = 3e-6
		// The less is known, the more is noise.
		m.noSched, m.noHost, m.noDriver = seed%4 > 0, seed%4 > 1, seed%4 > 2
		d := NewDetector()
		train, evaluate := m.mix, map[string]float64{"gemm": 0.3, "relu": 0.3, "argmax": 0.4}
		event := 0 // the last window with one
		for i := range 360 {
			m.asleep, m.queued, m.mix, m.gpu, m.storm = 0, 0.01*m.rand.Float64(), train, 80e-6, 0
			m.neighbour, m.capped, m.faults = 0, 0, 0
			switch epoch := i % 45; {
			case epoch >= 41: // evaluation has other kernels and another pace
				m.mix, m.gpu = evaluate, 200e-6
			case epoch == 40: // it begins within a window, after a pause
				m.asleep = m.rand.Float64()
			case epoch == 20 || epoch == 21: // a checkpoint across two windows
				m.asleep, m.storm, m.queued = 0.4, 1e9, 0.05
			}
			what := m.rand.IntN(30)
			if i < event+2 { // in two windows in a row it would be no quiet hour
				what = -1
			} else if what < 2 {
				event = i
			}
			switch what {
			case 0: // somebody looks in on the GPU
				m.neighbour = 0.3
			case 1: // a burst of the host
				m.queued = 0.3
			case 2: // at full load a GPU is at its power cap now and then
				m.capped, m.clock = 1, 0.97
			case 3:
				m.faults = 100
			}
			for _, a := range d.Observe(m.next()) {
				t.Errorf("seed %d, window %d: %s", seed, i, a.Text())
			}
			m.clock = 1
		}
	}
}

// A server whose load varies over the day, with pauses, is not slow when there is little to
// do.
func TestQuietServer(t *testing.T) {
	for seed := range uint64(10) {
		m := newMachine(seed)
		m.jitter = 0.03
		d := NewDetector()
		load := 0.5
		for i := range 720 {
			load = min(0.95, max(0.02, load+0.08*m.rand.NormFloat64()))
			if m.rand.IntN(60) == 0 {
				load = m.rand.Float64()
			}
			m.events = seed%2 == 0 // it never synchronises, but waits for events
			m.asleep, m.queued = 1-load, 0.02*m.rand.Float64()*load
			for _, a := range d.Observe(m.next()) {
				t.Errorf("seed %d, window %d: %s", seed, i, a.Text())
			}
		}
	}
}

// A server that gets half as many requests, or none, is not slower. Without host facts it
// might be.
func TestLessAsked(t *testing.T) {
	for _, part := range []float64{0.3, 0.5, 0.8, 0.99, 1} {
		m := newMachine(3)
		m.asleep = 0.1
		d := NewDetector()
		m.run(d, 20)
		m.asleep = part
		if told := m.run(d, 60); len(told) > 0 {
			t.Errorf("asleep %.0f %%: %s", 100*part, told[0].Text())
		}
		m.queued = 0.5
		m.asleep = 0.1
		if told := m.run(d, 3); len(told) != 1 || told[0].Cause() != HostDelay {
			t.Errorf("after that a CPU hog gives %+v", told)
		}
	}
}

// Unknown facts explain nothing and do not panic.
func TestAbsent(t *testing.T) {
	m := newMachine(4)
	m.noDriver, m.noHost, m.noSched = true, true, true
	d := NewDetector()
	m.run(d, 20)
	m.clock, m.capped, m.queued = 0.6, 1, 0.2
	if told := m.run(d, patient-1); len(told) != 0 {
		t.Errorf("what is unexplained is said too early: %+v", told)
	}
	told := m.run(d, 1)
	if len(told) != 1 || told[0].Cause() != Unexplained || told[0].Unexplained != 1 || len(told[0].Explanations) != 0 {
		t.Fatalf("got %+v", told)
	}
	t.Log(told[0].Text())
	for _, w := range []Window{
		{},
		{Snapshot: tracer.Snapshot{Time: noon.Add(time.Hour)}},
		{Snapshot: tracer.Snapshot{Time: noon.Add(2 * time.Hour), Processes: []tracer.Process{{PID: 1}}}},
		{Snapshot: tracer.Snapshot{Time: noon.Add(2*time.Hour + window), Processes: []tracer.Process{{PID: 1}}, Groups: []tracer.CommGroup{{Behind: []int{1}}}}},
	} {
		d.Observe(w)
		NewDetector().Observe(w)
	}
}

// More work for the device at the same clock, such as a larger batch, is not slow, and is the
// new normal at once.
func TestMoreWork(t *testing.T) {
	m := newMachine(5)
	d := NewDetector()
	m.run(d, 20)
	for _, gpu := range []float64{120e-6, 80e-6, 300e-6} {
		m.gpu = gpu
		if told := m.run(d, 120); len(told) != 0 {
			t.Fatalf("%v s of work: %+v", gpu, told)
		}
	}
	m.queued = 0.5
	if told := m.run(d, 3); len(told) != 1 || told[0].Cause() != HostDelay {
		t.Errorf("slower than that: %+v", told)
	}
}

// Without the driver's time per process, longer waits for a device are more work, unless its clock
// is known to be lower.
func TestMoreWorkUnseen(t *testing.T) {
	f := func(name string, hide func(*machine), want int) {
		t.Helper()
		m := newMachine(5)
		hide(m)
		d := NewDetector()
		m.run(d, 20)
		m.gpu = 120e-6
		if want > 0 {
			m.gpu, m.clock = 80e-6, 0.67
		}
		if told := m.run(d, 2*patient); len(told) != want {
			t.Errorf("%s: %+v", name, told)
		}
	}
	f("no time per process", func(m *machine) { m.noProcUtil, m.unlisted = true, true }, 0)
	f("no time per process, and a lower clock", func(m *machine) { m.noProcUtil, m.unlisted = true, true }, 1)
	f("no driver", func(m *machine) { m.noDriver = true }, 0)
}

// A level that persists becomes the new normal, which is reported once. Then the old speed is
// not an anomaly, and anything slower than the new level is.
func TestAdopted(t *testing.T) {
	m := newMachine(5)
	d := NewDetector()
	m.run(d, 20)
	m.host = 55e-6 // a slower program: nobody can know why
	told := m.run(d, 120)
	if len(told) != 2 || told[0].State != Open || told[1].State != Adopted || told[0].Cause() != Unexplained {
		t.Fatalf("got %+v", told)
	}
	if at := told[1].Time.Sub(told[1].Since); at != normal*window {
		t.Errorf("it took %v", at)
	}
	t.Log(told[1].Text())
	m.host = 15e-6
	if told := m.run(d, 30); len(told) != 0 {
		t.Errorf("faster: %+v", told)
	}
	m.queued = 0.5
	if told := m.run(d, 3); len(told) != 1 || told[0].Cause() != HostDelay {
		t.Errorf("slower than that: %+v", told)
	}
}

// A synchronization that does not return is one anomaly and never the new normal.
func TestHang(t *testing.T) {
	m := newMachine(6)
	d := NewDetector()
	m.run(d, 20)
	m.hung = m.at
	told := m.run(d, 100)
	if len(told) != 1 || told[0].Op != Sync || told[0].Cause() != Unexplained || told[0].Time.Sub(told[0].Since) != patient*window {
		t.Fatalf("got %+v", told)
	}
	t.Log(told[0].Text())
	if active := d.Active(); len(active) != 1 || active[0].Lost != 100*window {
		t.Errorf("active are %+v", active)
	}
	m.hung = time.Time{}
	if told := m.run(d, 3); len(told) != 1 || told[0].State != Ended {
		t.Errorf("when it returns: %+v", told)
	}
	m.hung = m.at // it has had such long ones
	if told := m.run(d, 100); len(told) != 0 {
		t.Errorf("again: %+v", told)
	}
}

// Exits, reused pids, counter resets and gaps are not slow, and the history of another
// process is not applied.
func TestRestarts(t *testing.T) {
	m := newMachine(7)
	d := NewDetector()
	m.run(d, 20)
	m.queued = 0.5
	if told := m.run(d, 2); len(told) != 1 {
		t.Fatalf("got %+v", told)
	}
	since := m.process.Since.Add(time.Hour)
	fresh := newMachine(8)
	fresh.at, fresh.process.Since, fresh.gpu = m.at, since, 500e-6
	told := fresh.run(d, 1)
	if len(told) != 1 || told[0].State != Ended {
		t.Errorf("the old one: %+v", told)
	}
	if told := fresh.run(d, 30); len(told) != 0 {
		t.Errorf("the new one: %+v", told)
	}
	// Counter reset.
	fresh.process.Ops[0].Time = tracer.Histogram{}
	if told := fresh.run(d, 10); len(told) != 0 {
		t.Errorf("after counters went backwards: %+v", told)
	}
	// A gap of ten minutes; then time stands still or goes back.
	fresh.at = fresh.at.Add(10 * time.Minute)
	if told := fresh.run(d, 3); len(told) != 0 {
		t.Errorf("after a gap: %+v", told)
	}
	fresh.at = fresh.at.Add(-window)
	if told := fresh.run(d, 3); len(told) != 0 {
		t.Errorf("after time stood still: %+v", told)
	}
	fresh.queued = 0.5
	if told := fresh.run(d, 2); len(told) != 1 {
		t.Errorf("it does not see any more: %+v", told)
	}
	fresh.process.Ended = true
	if told := fresh.run(d, 1); len(told) != 1 || told[0].State != Ended || d.Tracked() != 0 {
		t.Errorf("the end: %+v, %d are left", told, d.Tracked())
	}
}

// A process that only copies is judged by its operations.
func TestCopiesOnly(t *testing.T) {
	d := NewDetector()
	var o tracer.OpStat
	o.Op, o.Class, o.Kind = "cuMemcpyDtoH", tracer.Copy, "dtoh"
	var told []Anomaly
	for i := range 30 {
		each := 1e-3
		if i >= 20 {
			each = 3e-3
		}
		count(&o, 1000, 1000*each, 1e6)
		w := Window{Snapshot: tracer.Snapshot{Time: noon.Add(time.Duration(i) * window), Started: noon, Processes: []tracer.Process{{PID: 5, Name: "dump", Since: noon, Ops: []tracer.OpStat{o}}}}}
		told = append(told, d.Observe(w)...)
	}
	if len(told) != 1 || told[0].Op != "cuMemcpyDtoH dtoh" || told[0].Cause() != Unexplained {
		t.Fatalf("got %+v", told)
	}
	const want = "dump (pid 5) takes 3 ms instead of 1 ms for cuMemcpyDtoH dtoh since 12:03:10; 12.0 s of 60.0 s lost: unexplained"
	if got := told[0].Text(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Ten thousand processes that come and go leave nothing behind.
func TestBounded(t *testing.T) {
	d := NewDetector()
	at := noon
	measure := func() uint64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	before := measure()
	for i := range 100 {
		var w Window
		at = at.Add(window)
		w.Snapshot.Time = at
		for k := range 100 {
			p := tracer.Process{PID: uint32(i*100 + k), Since: at, Devices: []tracer.Device{{UUID: gpuA}}}
			for n := range 40 {
				p.Ops = append(p.Ops, tracer.OpStat{Op: fmt.Sprint("op", n), Class: tracer.Launch, Time: tracer.Histogram{Count: 1000, Sum: 1}})
			}
			w.Snapshot.Processes = append(w.Snapshot.Processes, p)
		}
		if told := d.Observe(w); len(told) != 0 {
			t.Fatalf("got %+v", told)
		}
	}
	d.Observe(Window{Snapshot: tracer.Snapshot{Time: at.Add(window)}})
	if after := measure(); d.Tracked() != 0 || after > before+4<<20 {
		t.Errorf("%d processes are left, and the heap grew from %d to %d", d.Tracked(), before, after)
	}

	// More processes at once than are tracked, with as much state as possible.
	for i := range 8 {
		var w Window
		at = at.Add(window)
		w.Snapshot.Time = at
		for pid := range uint32(maxTracked + 10) {
			p := tracer.Process{PID: pid, Since: noon}
			for n := range 70 {
				p.Ops = append(p.Ops, tracer.OpStat{Op: fmt.Sprint("op", n), Class: tracer.Launch, Time: tracer.Histogram{Count: uint64(100 * i), Sum: float64(i)}})
			}
			w.Snapshot.Processes = append(w.Snapshot.Processes, p)
		}
		d.Observe(w)
	}
	if after := measure(); d.Tracked() != maxTracked || d.Refused() != 80 || after > before+64<<20 {
		t.Errorf("%d processes are looked at, %d were refused, and the heap grew from %d to %d", d.Tracked(), d.Refused(), before, after)
	}
	runtime.KeepAlive(d)
}

// Whatever happens, shares are fractions of 1 and add up to 1.
func TestShares(t *testing.T) {
	told := 0
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 2))
		m := newMachine(seed)
		d := NewDetector()
		m.run(d, 10)
		for range 60 {
			if r.IntN(4) == 0 {
				m.clock, m.capped, m.hot = 0.1+r.Float64(), 2*r.Float64(), 2*r.Float64()
				m.neighbour, m.queued, m.storm, m.barrier = 0.9*r.Float64()*float64(r.IntN(2)), 0.9*r.Float64()*float64(r.IntN(2)), 30e9*r.Float64()*float64(r.IntN(2)), 1e-4*r.Float64()
				m.noSched, m.noHost, m.noDriver, m.noProcUtil = r.IntN(5) == 0, r.IntN(5) == 0, r.IntN(5) == 0, r.IntN(5) == 0
			}
			w := m.next()
			if r.IntN(10) == 0 && len(w.Devices) > 0 {
				odd := optional.Of([]float64{math.NaN(), math.Inf(1), -1, 0}[r.IntN(4)])
				w.Devices[0].SMClock, w.Devices[0].PowerCapped, w.Devices[0].Processes[0].Utilization = odd, odd, odd
			}
			for _, a := range d.Observe(w) {
				told++
				sum := a.Unexplained
				for _, e := range append(a.Explanations, Explanation{Share: a.Unexplained}) {
					if !(e.Share >= 0 && e.Share <= 1) {
						t.Errorf("a share is %v: %s", e.Share, a.Text())
					}
				}
				for _, e := range a.Explanations {
					sum += e.Share
				}
				if math.Abs(sum-1) > 1e-6 {
					t.Errorf("all shares are %v: %s", sum, a.Text())
				}
				if a.Lost < 0 || a.Lost > a.Over {
					t.Errorf("%s", a.Text())
				}
			}
		}
	}
	if told == 0 {
		t.Error("nothing was found in all of that")
	}
}

// The cost of a window with eight processes.
func BenchmarkObserve(b *testing.B) {
	m := newMachine(1)
	for i := range 40 {
		m.process.Ops = append(m.process.Ops, tracer.OpStat{Op: fmt.Sprint("cuOther", i), Class: tracer.Alloc})
	}
	d := NewDetector()
	b.ReportAllocs()
	for b.Loop() {
		w := m.next()
		for i := range m.process.Ops {
			m.process.Ops[i].Time.Count += 100
		}
		for pid := range uint32(7) {
			p := w.Snapshot.Processes[0]
			p.PID = 100 + pid
			w.Snapshot.Processes = append(w.Snapshot.Processes, p)
		}
		d.Observe(w)
	}
}
