package anomaly

import (
	"fmt"
	"testing"
	"time"
)

// The limit accepts small deviations, and the usual values of a signal with two levels or
// with noise.
func TestLimit(t *testing.T) {
	f := func(name string, values []float64, want float64) {
		t.Helper()
		var s signal
		for _, v := range values {
			s.add(v)
		}
		got, ok := s.limit()
		if ok != (want > 0) || got < want-1e-6 || got > want+1e-6 {
			t.Errorf("%s: the limit is %v, %v, want %v", name, got, ok, want)
		}
		if len(s.values) > history {
			t.Errorf("%s: it remembers %d", name, len(s.values))
		}
	}
	times := func(n int, list ...float64) []float64 {
		var out []float64
		for range n {
			out = append(out, list...)
		}
		return out
	}
	f("nothing", nil, 0)
	f("too few", times(enough-1, 1), 0)
	f("steady", times(20, 1), 1.1)
	f("with an outlier", append(times(20, 1), 50), 1.1)
	f("with two levels", times(6, 1, 1, 1, 1, 2), 2)
	f("restless", times(8, 8, 9, 10, 11, 12), 10+5*1.4826)
	f("long", append(times(100, 9), times(history, 1)...), 1.1)
	var none *signal
	if _, ok := none.limit(); ok {
		t.Error("a nil signal has a limit")
	}
}

// Below, at and above the line.
func TestMaterial(t *testing.T) {
	f := func(slower float64, want int) {
		t.Helper()
		m := newMachine(14)
		m.jitter = 0
		d := NewDetector()
		m.run(d, 20)
		m.neighbour = slower
		if told := m.run(d, 10); len(told) != want {
			t.Errorf("a neighbour with %.2f gives %+v", slower, told)
		}
	}
	f(0.05, 0)
	f(0.10, 0)
	f(0.15, 1)
}

// A cause with hardly any share in one of two windows does not join them.
func TestSteady(t *testing.T) {
	m := newMachine(15)
	d := NewDetector()
	m.run(d, 20)
	m.queued = 0.3
	told := m.run(d, 1)
	m.gpu, m.queued = 110e-6, 0.005
	if told = append(told, m.run(d, 2)...); len(told) != 0 {
		t.Errorf("got %+v", told)
	}
}

// Ranks that are slightly apart at the moment of reading are not a hang, and the rank that is
// behind does not wait for others.
func TestBehind(t *testing.T) {
	m := newMachine(16)
	d := NewDetector()
	m.run(d, 20)
	for range 20 {
		w := m.next()
		m.behind, m.hung = []int{3}, m.at.Add(-3*time.Second)
		w.Snapshot.Groups = m.window(0).Snapshot.Groups
		m.behind, m.hung = nil, time.Time{}
		if told := d.Observe(w); len(told) != 0 {
			t.Fatalf("3 s: %+v", told)
		}
	}
	m.behind, m.hung = []int{0}, m.at
	if told := m.run(d, patient); len(told) != 1 || told[0].Op != Sync {
		t.Errorf("the one behind: %+v", told)
	}
}

// A window after a gap, or after a restart of the tracer, is neither slow nor learned from; a
// different interval is fine.
func TestGap(t *testing.T) {
	m := newMachine(17)
	d := NewDetector()
	m.run(d, 20)
	learned := func() int { return len(d.processes[12].phases[0].signals[Step].values) }
	before := learned()
	m.at = m.at.Add(60 * time.Second)
	m.run(d, 1)
	if d.processes[12].episode != nil || learned() != before {
		t.Error("a gap is judged")
	}
	m.run(d, 1)
	if learned() != before+1 {
		t.Error("the window after a gap is not judged")
	}
	w := m.next()
	w.Snapshot.Started = noon.Add(time.Second)
	d.Observe(w)
	if learned() != before+1 {
		t.Error("a restarted tracer is judged")
	}
}

func TestPhaseBounded(t *testing.T) {
	p := newPhase(map[string]float64{})
	for i := range 1000 {
		p.learn(map[string]float64{fmt.Sprint("op ", i): 1}, map[string]float64{fmt.Sprint(i): 1})
	}
	p.learn(map[string]float64{Step: 1}, nil)
	if len(p.signals) != maxSignals+1 || p.signals[Step] == nil || len(p.mix) > 2*maxKernels {
		t.Errorf("it has %d signals and %d kernels", len(p.signals), len(p.mix))
	}
	m := newMachine(18)
	d := NewDetector()
	for i := range 50 {
		m.mix = map[string]float64{fmt.Sprint(i): 1}
		m.run(d, 2)
	}
	if n := len(d.processes[12].phases); n > maxPhases {
		t.Errorf("there are %d phases", n)
	}
}
