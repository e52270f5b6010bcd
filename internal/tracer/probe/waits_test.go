package probe

import (
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// gained is what a process did between two readings.
type gained struct{ busy, wait, bubble time.Duration }

// stages reads the state of a program at each of its steps.
type stages struct {
	m    *machine
	r    *running
	last tracer.Device
}

func (s *stages) next(step string) (gained, tracer.Process) {
	s.m.t.Helper()
	s.r.reaches(step)
	p := s.m.read(s.r.pid)
	if len(p.Devices) != 1 {
		s.m.t.Fatalf("%d devices, want 1", len(p.Devices))
	}
	d := p.Devices[0]
	if !d.WaitingSince.IsZero() {
		s.m.t.Errorf("%s: it waits since %v", step, d.WaitingSince)
	}
	g := gained{d.Busy - s.last.Busy, d.Wait - s.last.Wait, d.Bubble - s.last.Bubble}
	s.last = d
	s.r.goOn()
	return g, p
}

// within fails unless low <= got <= high.
func within(t *testing.T, what string, got, low, high time.Duration) {
	t.Helper()
	if got < low || got > high {
		t.Errorf("%s is %v, want %v to %v", what, got, low, high)
	}
}

// Defect: a loop that waits for events was never busy. Work behind the event was not waited for.
func TestEventWaits(t *testing.T) {
	t.Parallel()
	inModes(t, Options{}, []string{"cuLaunchKernel", "cuStream", "cuEvent"}, func(t *testing.T, m *machine) {
		began := time.Now()
		s := &stages{m: m, r: m.start("events")}
		g, _ := s.next("waited")
		within(t, "wait for events", g.wait, 100*time.Millisecond, time.Since(began))
		within(t, "busy until the events", g.busy, g.wait, time.Since(began)-40*time.Millisecond) // not while it slept
		within(t, "bubble between them", g.bubble, 40*time.Millisecond, time.Since(began)-g.busy)
		g, _ = s.next("more")
		within(t, "busy, with work behind the event", g.busy, 0, 0)
		g, _ = s.next("synced")
		within(t, "busy until all was synchronized", g.busy, 20*time.Millisecond, time.Since(began))
		g, _ = s.next("both")
		within(t, "busy of a stream and of the one it waited for", g.busy, 20*time.Millisecond, time.Since(began))
		s.r.ends()
		m.lossless()
	})
}

// Defect: a loop whose steps end in a copy of its result, as loss.item() does, was copy-bound with 4 bytes
// a step: its waiting counted as copying, and the device was never busy.
func TestCopyWaits(t *testing.T) {
	t.Parallel()
	inModes(t, Options{}, []string{"cuLaunchKernel", "cuStream", "cuMemcpy"}, func(t *testing.T, m *machine) {
		const first = 20 * time.Microsecond // until the first byte
		began := time.Now()
		s := &stages{m: m, r: m.start("blocking")}
		// copying returns the time of an operation without waiting, and the waiting.
		copying := func(p tracer.Process, op string) (time.Duration, time.Duration) {
			t.Helper()
			for _, o := range p.Ops {
				if o.Op == op {
					return time.Duration(o.Time.Sum*1e9+0.5) - o.Wait, o.Wait
				}
			}
			t.Fatalf("no %s", op)
			return 0, 0
		}
		g, p := s.next("synchronous")
		copies, waits := copying(p, "cuMemcpyDtoH")
		within(t, "time of synchronous copies", copies, 5*first, 5*first)
		within(t, "their wait", waits, 100*time.Millisecond-5*first, time.Since(began))
		within(t, "wait of the device", g.wait, waits, waits)
		within(t, "busy until the copies", g.busy, waits, time.Since(began)-40*time.Millisecond) // not while it slept
		within(t, "bubble behind them", g.bubble, 40*time.Millisecond, time.Since(began)-g.busy)

		g, p = s.next("not pinned")
		copies, waits = copying(p, "cuMemcpyDtoHAsync")
		within(t, "time of copies to memory that is not pinned", copies, 5*first, 5*first)
		within(t, "wait of the device", g.wait, waits, waits+time.Since(began))
		within(t, "busy until the copies", g.busy, waits, time.Since(began))

		_, asleep := copying(p, "cuMemcpyDtoHAsync")
		_, p = s.next("large")
		once, waits := copying(p, "cuMemcpyHtoD")
		within(t, "wait of a copy without work before it", waits, 0, 0)
		_, p = s.next("large, behind work")
		copies, waits = copying(p, "cuMemcpyHtoD")
		if copies+waits-once > once { // else the machine was so slow that it cannot be told
			within(t, "time of the second copy, as long as the first", copies-once, once-once/50, once+once/50+first)
		}
		_, p = s.next("others")
		_, waits = copying(p, "cuMemcpyDtoD")
		within(t, "wait of a copy on the device", waits, 0, 0)
		_, waits = copying(p, "cuMemcpyDtoHAsync")
		within(t, "wait with a copy in a stream without work", waits, asleep, asleep)
		s.r.ends()
		m.lossless()
	})
}

// Defect: after a capture that failed, all launches of the thread counted as captured, not run.
func TestFailedCapture(t *testing.T) {
	t.Parallel()
	inModes(t, Options{}, []string{"cuLaunchKernel", "cuStream"}, func(t *testing.T, m *machine) {
		began := time.Now()
		p := m.run("capture")
		within(t, "busy after the capture", p.Devices[0].Busy, 20*time.Millisecond, time.Since(began))
	})
}
