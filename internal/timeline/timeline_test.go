package timeline

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// epoch is the time 0 of the tests, whose times are seconds.
var epoch = time.Date(2026, 11, 19, 10, 0, 0, 0, time.UTC)

func at(seconds float64) int64 { return epoch.UnixNano() + int64(seconds*1e9) }

// world is a machine with one GPU per entry of gpus.
type world struct {
	Timeline
	gpus []*gpu
}

// gpu is what the next tick says. The energy of a workload is known when the counter is read, as in
// node's ledger.
type gpu struct {
	util, temp, used, watts float64
	throttle                device.Buckets
	down                    bool
	pids                    []uint32
	holders                 []*tenant
}

type tenant struct {
	id, unit      string
	share, joules float64
	since         float64
	ended         bool
}

func newWorld(gpus int) *world {
	w := &world{}
	for range gpus {
		w.gpus = append(w.gpus, &gpu{holders: []*tenant{{id: "a", share: 1}}})
	}
	return w
}

func (w *world) tick(seconds float64) {
	t := &node.Tick{Time: epoch.Add(time.Duration(seconds * 1e9))}
	for i, g := range w.gpus {
		r := node.Reading{Up: !g.down, Sample: device.Sample{ID: device.ID{UUID: fmt.Sprint("GPU-", i), Index: i, Model: "H200"}}}
		if r.Up {
			r.Busy = device.Of(g.util)
			r.Memory = device.Memory{Used: device.Of(g.used), Total: device.Of(100)}
			r.Temperatures = []device.Temperature{{Sensor: "edge", Value: device.Of(g.temp)}}
			r.Powers = []device.Power{{Scope: "gpu", Instant: device.Of(g.watts)}}
			r.Throttles = []device.Throttle{{Cause: "x", Buckets: g.throttle, Active: g.throttle != 0}}
		}
		for _, pid := range g.pids {
			r.Processes = append(r.Processes, device.Process{PID: pid})
		}
		for _, h := range g.holders {
			r.Holders = append(r.Holders, node.Holder{
				Workload: workload.Workload{ID: h.id, Kind: "job", Name: "job " + h.id}, Since: epoch.Add(time.Duration(h.since * 1e9)),
				Utilization: device.Of(g.util * h.share), Power: device.Of(g.watts * h.share), Energy: device.Of(h.joules), Ended: h.ended, Partition: h.unit,
			})
		}
		t.Readings = append(t.Readings, r)
	}
	w.See(t)
}

// ask asks for the workload "a".
func (w *world) ask(spans ...Span) [][]State {
	var a Answer
	w.Ask(Subject{Workloads: []string{"a"}}, spans, &a)
	var all [][]State
	for i := range spans {
		all = append(all, append([]State(nil), a.Of(i)...))
	}
	return all
}

func span(from, to float64) Span { return Span{at(from), at(to), -1} }

// joules asks for the joules of spans on all devices.
func (w *world) joules(spans ...Span) []float64 {
	var list []float64
	for _, states := range w.ask(spans...) {
		sum := 0.0
		for _, s := range states {
			sum += s.Joules.Default(math.NaN())
		}
		list = append(list, sum)
	}
	return list
}

var near = cmp.Options{cmpopts.EquateApprox(1e-9, 1e-9), cmpopts.EquateNaNs(), cmp.AllowUnexported(optional.Float{}), cmpopts.IgnoreUnexported(State{})}

func of(v float64) device.Value { return device.Of(v) }

// Catches a value that is not the one of the script: at the start, the end, in between, by time.
func TestState(t *testing.T) {
	w := newWorld(1)
	g := w.gpus[0]
	for i, util := range []float64{0.1, 0.5, 0.9, 0.3} {
		g.util, g.temp, g.used, g.watts = util, 40+10*float64(i), 10*float64(i+1), 100*float64(i+1)
		if g.throttle = 0; i == 2 {
			g.throttle = device.BucketThermal | device.BucketSW
		}
		g.holders[0].joules = 1000 * float64(i)
		w.tick(10 * float64(i))
	}
	got := w.ask(span(5, 32), span(12, 13), span(20, 20))
	id := device.ID{UUID: "GPU-0", Model: "H200"}
	r := func(start, end, mean, highest, since float64) Range {
		return Range{of(start), of(end), of(mean), of(highest), at(since)}
	}
	want := [][]State{{{
		ID: id, Utilization: r(0.1, 0.3, (5*0.1+10*0.5+10*0.9+2*0.3)/27, 0.9, 20), Temperature: r(40, 70, (5*40+10*50+10*60+2*70)/27., 70, 30),
		Memory: r(10, 40, (5*10+10*20+10*30+2*40)/27., 40, 30), MemoryTotal: of(100), Power: of((5*100 + 10*200 + 10*300 + 2*400) / 27.),
		Throttles: true, Thermal: 10, SW: 10, Throttled: 10, ThrottledAt: at(20), Causes: device.BucketThermal | device.BucketSW,
		Own: of((5*0.1 + 10*0.5 + 10*0.9 + 2*0.3) / 27), Others: of(0),
		Joules: of(500 - 0 + 800 + 1000 + 800), Workload: of(500 + 1000 + 1000 + 800), // 5 to 10: 1000 J in 10 s; after 30: 400 W
	}}, {{
		ID: id, Utilization: r(0.5, 0.5, 0.5, 0.5, 12), Temperature: r(50, 50, 50, 50, 12), Memory: r(20, 20, 20, 20, 12), MemoryTotal: of(100), Power: of(200),
		Throttles: true, Own: of(0.5), Others: of(0), Joules: of(50), Workload: of(100), Counted: true, Age: 2e9,
	}}, {{
		ID: id, Utilization: r(0.9, 0.9, 0.9, 0.9, 20), Temperature: r(60, 60, 60, 60, 20), Memory: r(30, 30, 30, 30, 20), MemoryTotal: of(100), Power: of(300),
		Throttles: true, ThrottledAt: at(20), Causes: device.BucketThermal | device.BucketSW, Own: of(0.9), Others: of(0), Joules: of(0), Workload: of(0), Counted: true,
	}}}
	want[0][0].Joules = of(500 + 200 + 50 + 700 + 1000 + 800) // the second span ran from 12 to 13, at 100 W
	if diff := cmp.Diff(want, got, near); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
}

// Catches joules that are given twice, or to none: spans that overlap, enclose each other, come later, or
// are on several devices.
func TestJoules(t *testing.T) {
	w := newWorld(2)
	for i := range 4 {
		for j, g := range w.gpus {
			g.watts = 100 * float64(j+1)
			g.holders[0].joules = 10 * g.watts * float64(i)
		}
		w.tick(10 * float64(i))
	}
	// Both GPUs together use 300 J each second.
	f := func(name string, got, want []float64) {
		t.Helper()
		if diff := cmp.Diff(want, got, near); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	f("two that overlap", w.joules(span(0, 4), span(2, 6)), []float64{900, 900})
	f("one that comes later", w.joules(span(5, 7)), []float64{300})
	child := span(11, 12)
	child.Parent = 0
	grandchild := span(11.5, 12)
	grandchild.Parent = 1
	f("one in another", w.joules(span(10, 13), child, grandchild), []float64{600, 150, 150})
	f("none left", w.joules(span(10, 13)), []float64{0})
	beside := span(20, 22)
	beside.Parent = 0
	f("two children at once", w.joules(span(20, 24), beside, beside), []float64{600, 300, 300})
	left := span(14, 30)
	left.Parent = 7 // not on the device
	if got, want := w.joules(span(-5, 100))[0], math.NaN(); !cmp.Equal(got, want, near) {
		t.Errorf("a span that began before the readings got %v J", got)
	}
	f("the rest", w.joules(span(7, 30)), []float64{300 * (3 + 1 + 6 + 1 + 5)})
}

// Catches an estimate that stands when the counter has been read: together the spans get what it counted.
func TestEstimate(t *testing.T) {
	w := newWorld(1)
	g := w.gpus[0]
	g.watts = 100
	w.tick(0)
	w.tick(10)
	states := w.ask(span(2, 4), span(10, 12))
	if s := states[0][0]; s.Counted || s.Joules != of(200) {
		t.Errorf("before the counter was read: %+v", s)
	}
	if s := states[1][0]; s.Counted || s.Joules != of(200) {
		t.Errorf("after the last reading: %+v", s)
	}
	defer func() {
		w.tick(40) // not counted yet
		if s := w.ask(span(25, 30))[0][0]; !s.Counted {
			t.Error("a span that ends with the reading of the counter is an estimate")
		}
	}()
	g.holders[0].joules = 2600 // the power was 130 W
	w.tick(20)
	if got := w.joules(span(0, 20))[0]; math.Abs(got-2200) > 1e-6 {
		t.Errorf("the rest got %v J, want 2200", got)
	}
	if s := w.ask(span(0, 20))[0][0]; !s.Counted || s.Joules != of(0) || math.Abs(s.Workload.Default(0)-2600) > 1e-6 {
		t.Errorf("after the counter was read: %+v", s)
	}
	g.holders[0].joules = 2500 // a counter that steps back gives nothing and takes nothing
	w.tick(30)
	if got := w.joules(span(20, 30))[0]; got != 0 {
		t.Errorf("a falling counter gave %v J", got)
	}
}

// A pod is replaced by another in the middle of its span: the values and the joules are those of its time.
func TestReplaced(t *testing.T) {
	w := newWorld(1)
	g := w.gpus[0]
	g.util, g.watts = 0.5, 100
	w.tick(0)
	g.holders[0].joules = 1000
	w.tick(10)
	g.util = 0.9
	g.holders = []*tenant{{id: "a", joules: 2000, ended: true}, {id: "b", since: 20, share: 1}}
	w.tick(20)
	g.holders[1].joules = 1000
	w.tick(30)
	s := w.ask(span(5, 25))[0][0]
	if s.Utilization.End.OK() || s.Utilization.Max != of(0.5) || math.Abs(s.Joules.Default(0)-1500) > 1e-6 || !s.Counted {
		t.Errorf("got %+v", s)
	}
	var a Answer
	w.Ask(Subject{Workloads: []string{"b"}}, []Span{span(5, 25)}, &a)
	if s := a.Of(0)[0]; s.Utilization.Start.OK() || s.Utilization.Max != of(0.9) || math.Abs(s.Joules.Default(0)-500) > 1e-6 {
		t.Errorf("the new pod: %+v", s)
	}
	if got := w.ask(span(21, 25))[0]; len(got) != 0 {
		t.Errorf("the old pod still has a device: %+v", got)
	}
}

// Catches a neighbor that did nothing, and one that is not named.
func TestNeighbours(t *testing.T) {
	w := newWorld(1)
	g := w.gpus[0]
	g.util = 0.8
	w.tick(0)
	g.holders = append(g.holders, &tenant{id: "b", since: 10}) // is there, and does nothing
	w.tick(10)
	g.holders[0].share, g.holders[1].share = 0.25, 0.75
	w.tick(20)
	states := w.ask(span(0, 19), span(15, 25))
	if s := states[0][0]; s.Neighbours != nil {
		t.Errorf("a quiet neighbor was named: %v", s.Neighbours)
	}
	if s := states[1][0]; !cmp.Equal(s.Neighbours, []string{"job b"}) || s.NeighbourAt != at(20) || math.Abs(s.Others.Default(0)-0.3) > 1e-9 || math.Abs(s.Own.Default(0)-0.5) > 1e-9 {
		t.Errorf("got %+v", s)
	}
}

// A process is on one of the two devices of its workload; one that is on none has both.
func TestProcess(t *testing.T) {
	w := newWorld(2)
	w.gpus[1].pids = []uint32{7}
	w.tick(0)
	w.tick(10)
	for pid, want := range map[uint32]int{0: 2, 7: 1, 8: 2} {
		var a Answer
		w.Ask(Subject{Workloads: []string{"a"}, PID: pid}, []Span{span(2, 3)}, &a)
		if got := a.Of(0); len(got) != want || pid == 7 && got[0].ID.Index != 1 {
			t.Errorf("process %d: %+v", pid, got)
		}
	}
}

// Catches old values where there are none: a device that is down, a pause, a clock that was set back, and
// what is no longer remembered.
func TestGaps(t *testing.T) {
	w := newWorld(1)
	g := w.gpus[0]
	g.util = 0.5
	w.tick(0)
	w.tick(10)
	if got := w.ask(span(45, 50))[0]; len(got) != 0 {
		t.Errorf("a reading is in force after 35 s: %+v", got)
	}
	g.down = true
	w.tick(20)
	if s := w.ask(span(22, 23))[0][0]; s.Utilization.Max.OK() || s.Throttles {
		t.Errorf("values of a device that is down: %+v", s)
	}
	g.down, g.util = false, 0.7
	w.tick(15) // the clock was set back
	if s := w.ask(span(16, 17))[0][0]; s.Utilization.Max != of(0.7) || s.Age != 1e9 {
		t.Errorf("after the clock was set back: %+v", s)
	}
	for i := range 2000 {
		w.tick(20 + float64(i))
	}
	if k := w.tracks[0]; len(k.entries) != 600 || len(k.pools[0].slots) > 600 {
		t.Errorf("%d readings and %d slots are remembered", len(k.entries), len(k.pools[0].slots))
	}
	if got := w.ask(span(22, 23))[0]; len(got) != 0 {
		t.Errorf("a span of the past has %+v", got)
	}
	if s := w.ask(span(22, 2018))[0][0]; !s.Late || s.Utilization != (Range{End: of(0.7)}) || s.Joules.OK() {
		t.Errorf("a span that began too early has %+v", s)
	}
	w.gpus = nil
	for i := range 700 {
		w.tick(3000 + float64(i))
	}
	if len(w.tracks) != 0 {
		t.Error("a device that is gone is never forgotten")
	}
}

// Whatever the spans and whenever they come, their joules are never more than what the workload used, and
// all of it if they cover all the time after the counter was read.
func TestJoulesAddUp(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(1 + r.IntN(2))
		total, pending, given, now := 0.0, 0.0, 0.0, 0.0
		estimated := false
		w.tick(0)
		for range 30 {
			next := now + 1 + 9*r.Float64()
			for _, g := range w.gpus {
				g.watts = 50 + 500*r.Float64()
				pending += g.watts * (next - now)
			}
			if r.IntN(3) == 0 { // the counter is read
				for _, g := range w.gpus {
					g.holders[0].joules += pending * 1.1 / float64(len(w.gpus))
				}
				total, pending = total+pending*1.1, 0
			}
			now = next
			w.tick(now)
			var list []Span
			for range r.IntN(20) {
				from := now * r.Float64()
				s := span(from, from+20*r.Float64()*r.Float64())
				if s.To > at(now) {
					s.To = at(now)
				}
				if len(list) > 0 && r.IntN(2) == 0 {
					s.Parent = r.IntN(len(list))
				}
				list = append(list, s)
			}
			for _, j := range w.joules(list...) {
				given += j
			}
			estimated = estimated || pending > 0 && len(list) > 0
		}
		for _, g := range w.gpus {
			g.holders[0].joules += (pending + 100) * 1.1 / float64(len(w.gpus))
		}
		total += (pending + 100) * 1.1
		w.tick(now + 1)
		given += w.joules(span(0, now+1))[0]
		if math.Abs(given-total) > 1e-6*total && (!estimated || given > total*1.3) {
			t.Errorf("seed %d: the spans got %v J of %v", seed, given, total)
		}
		if again := w.joules(span(0, now+1), span(3, now))[0]; again != 0 {
			t.Errorf("seed %d: %v J were given twice", seed, again)
		}
	}
}
