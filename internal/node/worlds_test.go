package node

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// stepped returns t as a clock shows it that was set forward by d, or back: the time of day
// moves, the monotonic time does not. Times in a synctest bubble have no monotonic time.
func stepped(t time.Time, d time.Duration) time.Time {
	t = t.Add(d)
	(*struct { // as in package time
		wall uint64
		ext  int64 // monotonic, in ns
		loc  *time.Location
	})(unsafe.Pointer(&t)).ext -= int64(d)
	return t
}

// A lab is a machine with one GPU, a kubelet and processes. It knows what each workload
// really used, which the agent has to find out.
type lab struct {
	*View
	r   *rand.Rand
	gpu *gpu

	now   time.Time
	watts float64
	held  []workload.Workload // at most two pods
	half  bool                // each has half of the GPU, else one has all of it
	// forgets: the kubelet lists no pod. The control groups still tell whose process it is.
	forgets bool
	pids    map[uint32]workload.Workload
	lastPID uint32

	// Whose the GPU is since the last tick, and the sole owner of it by grant.
	alloc map[string]float64
	sole  string

	truth    map[string]spent
	recorded map[string]spent // by the records of stays
}

func newLab(seed uint64) *lab {
	w := &lab{
		r: rand.New(rand.NewPCG(seed, 2)), gpu: newGPU(0), now: time.Now(), watts: 100,
		truth: map[string]spent{}, recorded: map[string]spent{},
	}
	w.gpu.lazy = true
	w.gpu.s.Utilization.Compute = device.Of(0.5)
	w.View = New(Config{
		Sources:  []Source{{Name: "test", Open: (&machine{devices: []*gpu{w.gpu}}).open}},
		Interval: 10 * time.Second, SlowInterval: 30 * time.Second,
		Owners: &workload.Resolver{Sources: []workload.Source{w}},
	})
	return w
}

// Grants implements workload.Source.
func (w *lab) Grants() []workload.Grant {
	var list []workload.Grant
	for _, p := range w.held {
		g := workload.Grant{Workload: p, Device: workload.Ref{Resource: "test/gpu", IDs: []string{"A"}}, Held: 1, Replicas: 1}
		if w.half {
			g.Replicas = 2
		}
		if !w.forgets {
			list = append(list, g)
		}
	}
	return list
}

// Process implements workload.Source.
func (w *lab) Process(pid uint32) (workload.Workload, bool) {
	p, ok := w.pids[pid]
	return p, ok
}

// Statuses implements workload.Source.
func (w *lab) Statuses() []workload.Status { return nil }

// chance is true once in n times.
func (w *lab) chance(n int) bool { return w.r.IntN(n) == 0 }

// relabel returns p with another team. The ID stays: it is the same workload.
func (w *lab) relabel(p workload.Workload) workload.Workload {
	p.Team = fmt.Sprint("team ", w.r.IntN(3))
	return p
}

// counter returns the energy counter after joules more. It never falls: a lab in which it
// steps back for one reading belongs here as soon as the ledger disbelieves that.
func (w *lab) counter(joules float64) device.Value { return device.Of(get(w.gpu.s.Energy) + joules) }

// change changes who holds the GPU and whether the GPU and the kubelet answer. end: all
// leave, and everything answers.
func (w *lab) change(end bool) {
	down := !end && w.chance(4)
	if !down {
		w.forgets = !end && w.chance(4)
		w.watts = 50 + 600*w.r.Float64() // what a GPU that does not answer draws is unknown: constant here
		w.gpu.err = nil
	} else {
		w.gpu.err = device.ErrNeedsReset
	}
	pods := []workload.Workload{pod("a"), pod("b"), pod("c")}
	if end {
		w.held = nil
	} else if w.chance(2) && (!down || !w.forgets) { // otherwise nobody knows who comes
		w.r.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
		w.half = w.chance(2)
		n := w.r.IntN(2)
		if w.half {
			n = w.r.IntN(3)
		}
		w.held = pods[:n]
	}
	for i := range w.held {
		if w.chance(3) {
			w.held[i] = w.relabel(w.held[i])
		}
	}
	if down { // processes go on, unless their pod is gone
		maps.DeleteFunc(w.pids, func(_ uint32, p workload.Workload) bool {
			return !slices.ContainsFunc(w.held, func(h workload.Workload) bool { return h.ID == p.ID })
		})
		return
	}
	w.pids, w.gpu.s.Processes = map[uint32]workload.Workload{}, nil
	for _, p := range w.held { // each with a process of its own at every tick
		w.lastPID++
		w.pids[w.lastPID] = p
		w.gpu.s.Processes = append(w.gpu.s.Processes, device.Process{PID: w.lastPID, Utilization: device.Of(float64(1+w.r.IntN(3)) / 4)})
	}
}

// shares returns who did the work since the last tick.
func (w *lab) shares() map[string]float64 {
	work := map[string]float64{}
	switch {
	case w.sole != "":
		work[w.sole] = 1
	case w.gpu.err == nil && len(w.pids) > 0:
		for _, p := range w.gpu.s.Processes {
			work[w.pids[p.PID].ID] += get(p.Utilization)
		}
	case len(w.alloc) > 1 || w.alloc[workload.Unallocated] == 0:
		maps.Copy(work, w.alloc)
		delete(work, workload.Unallocated)
	case w.gpu.err == nil: // busy, but nobody is there
		work[workload.Unattributed] = 1
	default:
		work[workload.Unallocated] = 1
	}
	sum := 0.0
	for _, v := range work {
		sum += v
	}
	for id := range work {
		work[id] /= sum
	}
	return work
}

// tick lets up to 4 s pass, changes the world, and ticks.
func (w *lab) tick(t *testing.T, end bool) Tick {
	seconds := float64(1 + w.r.IntN(4))
	w.now = w.now.Add(time.Duration(seconds * float64(time.Second)))
	w.gpu.s.Energy = w.counter(w.watts * seconds)
	joules := w.watts * seconds
	w.change(end)
	if w.gpu.err == nil { // the reading shows the power of the time that has passed
		w.gpu.s.Powers = []device.Power{{Scope: "gpu", Instant: device.Of(joules / seconds)}}
	}
	work := w.shares()
	for id, share := range work {
		w.truth[id] = w.truth[id].plus(spent{Energy: joules * share})
	}
	for id, alloc := range w.alloc {
		use := spent{Allocated: alloc * seconds}
		if w.gpu.err == nil && work[id] > 0 {
			use.Active = use.Allocated
		}
		w.truth[id] = w.truth[id].plus(use)
	}
	at := w.now
	if w.chance(5) { // from now on
		w.now = stepped(w.now, time.Duration(w.r.IntN(7200)-3600)*time.Second)
		at = w.now
	}
	tick := w.View.Tick(t.Context(), at)
	for _, n := range tick.Tenures {
		if n.Ended {
			w.recorded[n.ID] = w.recorded[n.ID].plus(spent{get(n.Energy), n.Allocated, get(n.Active)})
		}
	}
	w.settle()
	return tick
}

// settle sets whose the GPU is from now on.
func (w *lab) settle() {
	w.alloc, w.sole = map[string]float64{}, ""
	left := 1.0
	for _, p := range w.held {
		switch {
		case w.forgets: // those with a process divide what was granted to nobody
			w.alloc[p.ID] = 1 / float64(len(w.held))
		case w.half:
			w.alloc[p.ID] = 0.5
		default:
			w.alloc[p.ID], w.sole = 1, p.ID
		}
		left -= w.alloc[p.ID]
	}
	if left > 0 {
		w.alloc[workload.Unallocated] = left
	}
}

// Processes shorter than a tick, labels that change, a GPU that does not answer while it
// changes hands, a clock that jumps and a kubelet that forgets: every joule and every second
// is charged to the workload that used it, and the records of stays say the same.
func TestWorldsStayExact(t *testing.T) {
	worlds := uint64(300)
	if testing.Short() {
		worlds = 60
	}
	about := cmpopts.EquateApprox(1e-9, 1e-6)
	for seed := range worlds {
		w := newLab(seed)
		w.View.Tick(t.Context(), w.now) // finds the GPU, which nobody holds
		w.settle()
		for tick := range 50 {
			got := map[string]spent{}
			for _, h := range w.tick(t, false).Readings[0].Holders {
				got[h.ID] = got[h.ID].plus(spent{Allocated: h.Allocated, Active: get(h.Active)})
			}
			want := map[string]spent{}
			for id, s := range w.truth {
				want[id] = spent{Allocated: s.Allocated, Active: s.Active}
			}
			for _, all := range []map[string]spent{got, want} {
				maps.DeleteFunc(all, func(_ string, s spent) bool { return s == spent{} })
			}
			if diff := cmp.Diff(want, got, about); diff != "" {
				t.Fatalf("seed %d tick %d: held (-want +got):\n%s", seed, tick, diff)
			}
		}
		var last Tick
		for range 3 {
			w.lastSlow = time.Time{} // read the energy counter, so that nothing is an estimate
			last = w.tick(t, true)
		}
		got, want := map[string]spent{}, map[string]spent{}
		maps.Copy(got, w.recorded)
		maps.Copy(want, w.truth)
		for _, h := range last.Readings[0].Holders { // these have no stays
			if isRest(h.Kind) {
				got[h.ID] = spent{get(h.Energy), h.Allocated, get(h.Active)}
			}
		}
		maps.DeleteFunc(got, func(_ string, s spent) bool { return s == spent{} })
		if diff := cmp.Diff(want, got, about); diff != "" {
			t.Fatalf("seed %d: recorded (-want +got):\n%s", seed, diff)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// The totals of a workload that left before a restart are shown for 5 minutes, and not for
// an hour longer because the clock was set back after it.
func TestClockSetBackAfterRestart(t *testing.T) {
	now := time.Now()
	var l ledger
	c := cut{device: &Reading{Sample: device.Sample{ID: device.ID{UUID: "A"}}, Up: true}}
	held := owners{holdings: []workload.Holding{{Workload: pod("a"), Device: "A", Part: 1, Evidence: workload.ByDevice}}}
	l.advance(now, c, owners{}, held, true)
	l.advance(now.Add(time.Minute), c, held, owners{}, true)
	s := newState("boot", now)
	s.Devices["A"] = &record{Ledger: &l}
	data, err := s.encode()
	if err != nil {
		t.Fatal(err)
	}
	if s, err = decodeState(data, now.Add(2*time.Minute)); err != nil {
		t.Fatal(err)
	}
	next := s.Devices["A"].Ledger
	f := func(after time.Duration, want ...string) {
		t.Helper()
		next.advance(stepped(now.Add(after), -time.Hour), c, owners{}, owners{}, true)
		var got []string
		for _, h := range next.holders(c) {
			got = append(got, h.ID)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("after %s (-want +got):\n%s", after, diff)
		}
	}
	f(3*time.Minute, workload.Unallocated, pod("a").ID)
	f(7*time.Minute, workload.Unallocated)
}

// A jump of the clock is no time that passes: stepped must move the time of day alone.
func TestStepped(t *testing.T) {
	now := time.Now()
	later := stepped(now, -time.Hour).Add(time.Second)
	if d := later.Sub(now); d != time.Second {
		t.Errorf("%s passed, want 1 s", d)
	}
	if d := later.Round(0).Sub(now.Round(0)); math.Abs(d.Seconds()+3599) > 1e-9 {
		t.Errorf("the time of day moved by %s", d)
	}
}
