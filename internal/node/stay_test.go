package node

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// stay is what the record of a stay reports: when the workload left, since when it was
// there, and what it used. Times are seconds since the start of the test.
type stay struct {
	ID                        string
	Left, Since               float64
	Energy, Allocated, Active float64
	Peak                      device.Value
}

// stays collects the ends of stays in a tick.
func (r *tenancy) stays(tick Tick) []stay {
	var list []stay
	for _, n := range tick.Tenures {
		if n.Ended {
			list = append(list, stay{n.ID, n.At.Sub(r.start).Seconds(), n.Since.Sub(r.start).Seconds(), get(n.Energy), n.Allocated, get(n.Active), n.Peak})
		}
	}
	return list
}

// run lets seconds pass at 400 W and returns the stays that ended. The energy counter is
// read at slow ticks only.
func (r *tenancy) run(t *testing.T, seconds int) []stay {
	t.Helper()
	var list []stay
	for range seconds {
		r.m.devices[0].set(func(g *gpu) {
			g.lazy = true
			g.s.Powers = []device.Power{{Scope: "gpu", Instant: device.Of(400)}}
			g.s.Energy = device.Of(400 * time.Since(r.start).Seconds())
		})
		list = append(list, r.stays(r.tick(t))...)
	}
	return list
}

// uses puts a process of w on GPU 0, without a grant, or removes it.
func (r *tenancy) uses(w *workload.Workload) {
	r.give()
	r.holdings, r.whose = nil, nil
	r.m.devices[0].set(func(g *gpu) {
		g.s.Processes = nil
		if w != nil {
			g.s.Processes, g.s.Memory.Used = []device.Process{{PID: 7, MemoryUsed: device.Of(5)}}, device.Of(5)
			g.s.Utilization.Compute = device.Of(0.5)
		}
	})
	if w != nil {
		r.holdings = []workload.Holding{{Workload: *w, Device: "A", Evidence: workload.ByProcess}}
		r.whose = map[uint32]workload.Workload{7: *w}
	}
}

// A container that comes and goes between two readings of the energy counter is recorded
// with its joules: the record waits until the counter has been read.
func TestStayIsComplete(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		r.cfg.SlowInterval = 30 * time.Second
		c := workload.Workload{ID: "container/c", Kind: "container", Name: "c"}
		r.give()
		got := r.run(t, 2)
		r.uses(&c)
		got = append(got, r.run(t, 22)...) // from second 2 to 24
		r.uses(nil)
		got = append(got, r.run(t, 5)...)
		if diff := cmp.Diff([]stay{{c.ID, 24, 2, 8800, 22, 21, device.Of(5)}}, got); diff != "" {
			t.Errorf("stays (-want +got):\n%s", diff)
		}
	})
}

// A kubelet that forgets a pod for 3 s three times makes four stays of it. Each record is
// that stay alone, and together with what nobody held they are what the device used.
func TestStaysAddUp(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		r.cfg.SlowInterval = 30 * time.Second
		a := pod("a")
		var got []stay
		for range 3 {
			r.give(a)
			got = append(got, r.run(t, 8)...)
			r.give()
			got = append(got, r.run(t, 3)...)
		}
		r.give(a)
		got = append(got, r.run(t, 5)...)
		r.give()
		got = append(got, r.run(t, 1)...)
		want := []stay{
			{a.ID, 8, 0, 3200, 8, 7, device.Value{}},
			{a.ID, 19, 11, 3200, 8, 7, device.Value{}},
			{a.ID, 30, 22, 3200, 8, 7, device.Value{}},
			{a.ID, 38, 33, 2000, 5, 4, device.Value{}},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("stays (-want +got):\n%s", diff)
		}
		all := map[string]used{a.ID: {11600, 29, 25, true}, "unallocated": {3600, 9, 0, false}, "unattributed": {0, 0, 0, true}}
		if diff := cmp.Diff(all, usedBy(r.last.Readings[0])); diff != "" {
			t.Errorf("used (-want +got):\n%s", diff)
		}
	})
}

// A workload that is back before its departure was reported never left. The second in
// between is not part of its use.
func TestStayGoesOn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		r.cfg.SlowInterval = 30 * time.Second
		c := workload.Workload{ID: "container/c", Kind: "container", Name: "c"}
		r.uses(&c)
		got := r.run(t, 5)
		r.uses(nil)
		got = append(got, r.run(t, 1)...)
		r.uses(&c)
		got = append(got, r.run(t, 4)...)
		r.uses(nil)
		got = append(got, r.run(t, 3)...)
		if diff := cmp.Diff([]stay{{c.ID, 10, 0, 3600, 9, 7, device.Of(5)}}, got); diff != "" {
			t.Errorf("stays (-want +got):\n%s", diff)
		}
	})
}

// A device that never answers again holds the record of its workload back for 5 minutes,
// not forever: the workload of a lost GPU is the one that people look for.
func TestStayOnLostDevice(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		a := pod("a")
		r.give(a)
		got := r.run(t, 10)
		r.m.devices[0].set(func(g *gpu) { g.err = device.ErrLost })
		got = append(got, r.run(t, 5)...)
		r.give()
		got = append(got, r.run(t, 310)...)
		if diff := cmp.Diff([]stay{{a.ID, 15, 0, 3600, 15, 9, device.Value{}}}, got); diff != "" {
			t.Errorf("stays (-want +got):\n%s", diff)
		}
	})
}

// The record of a stay over a kill of the agent has what was known before it.
func TestStayOverKill(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		dir := t.TempDir()
		r := newTenancy(dir)
		a := pod("a")
		r.give(a)
		r.run(t, 10) // written at second 9
		r.View.saved(true)
		if err := r.store.close(); err != nil { // killed: nothing else is written
			t.Fatal(err)
		}
		next := newTenancy(dir)
		next.start, next.m.devices = r.start, r.m.devices
		next.give(a)
		got := next.run(t, 5)
		next.give()
		got = append(got, next.run(t, 2)...)
		// The second from 9 to 10 was not observed: its joules belong to the sole holder.
		if diff := cmp.Diff([]stay{{a.ID, 15, 0, 6000, 14, 13, device.Value{}}}, got); diff != "" {
			t.Errorf("stays (-want +got):\n%s", diff)
		}
		if err := next.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// The record of a workload that left just before a clean restart of the agent has its joules,
// although the next agent reads them from the counter.
func TestStayOverRestart(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		dir := t.TempDir()
		r := newTenancy(dir)
		r.cfg.SlowInterval = 30 * time.Second
		c := workload.Workload{ID: "container/c", Kind: "container", Name: "c"}
		r.give()
		got := r.run(t, 2)
		r.uses(&c)
		got = append(got, r.run(t, 22)...)
		r.uses(nil)
		got = append(got, r.run(t, 1)...)
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		next := newTenancy(dir)
		next.start, next.m.devices = r.start, r.m.devices
		next.uses(nil)
		got = append(got, next.run(t, 3)...)
		if diff := cmp.Diff([]stay{{c.ID, 24, 2, 8800, 22, 21, device.Of(5)}}, got); diff != "" {
			t.Errorf("stays (-want +got):\n%s", diff)
		}
		if err := next.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// What sharers used before a pause, since the counter was last read, is theirs. Only the
// pause itself belongs to nobody.
func TestSharersBeforePause(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		r.cfg.SlowInterval = 30 * time.Second
		a, b := pod("a"), pod("b")
		r.give(a, b)
		r.run(t, 11) // 10 s are booked
		if err := r.Pause(t.Context(), time.Now(), 3*time.Second); err != nil {
			t.Fatal(err)
		}
		r.run(t, 4)
		want := map[string]used{a.ID: {2000, 5, 5, false}, b.ID: {2000, 5, 5, false}, "unattributed": {1600, 0, 0, true}}
		if diff := cmp.Diff(want, usedBy(r.last.Readings[0])); diff != "" {
			t.Errorf("used (-want +got):\n%s", diff)
		}
	})
}
