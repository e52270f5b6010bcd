package node

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// tenancy is a rig whose GPU 0 draws 100 W, counts it, and belongs to the workload that the
// test sets.
type tenancy struct {
	*rig
	start    time.Time
	mu       sync.Mutex // guards holdings, which change while a device is read
	holdings []workload.Holding
	whose    map[uint32]workload.Workload
	statuses []workload.Status
}

func newTenancy(dir string) *tenancy {
	r := &tenancy{rig: newRig(1), start: time.Now()}
	r.cfg.StateDir, r.cfg.BootID = dir, "boot"
	r.cfg.Owners = r
	r.m.devices[0].set(func(g *gpu) {
		g.s.Powers = []device.Power{{Scope: "gpu", Instant: device.Of(100)}}
		g.s.Utilization.Compute = device.Of(0.5)
	})
	return r
}

// Resolve implements Owners.
func (r *tenancy) Resolve(q workload.Question) workload.Answer {
	known := func(h workload.Holding) bool {
		return slices.ContainsFunc(q.Devices, func(d workload.Device) bool { return d.ID.UUID == h.Device })
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	holdings := slices.DeleteFunc(slices.Clone(r.holdings), func(h workload.Holding) bool { return !known(h) })
	return workload.Answer{Holdings: holdings, Processes: r.whose, Statuses: r.statuses}
}

// Process implements Owners.
func (r *tenancy) Process(pid uint32) (workload.Workload, bool) {
	w, ok := r.whose[pid]
	return w, ok
}

// Container implements Owners.
func (*tenancy) Container(string) (workload.Workload, bool) { return workload.Workload{}, false }

// pass lets a second pass in which GPU 0 used joules, and ticks.
func (r *tenancy) pass(t *testing.T, joules float64) Reading {
	t.Helper()
	r.m.devices[0].set(func(g *gpu) { g.s.Energy = device.Of(get(g.s.Energy) + joules) })
	return r.tick(t).Readings[0]
}

func (r *tenancy) give(to ...workload.Workload) {
	r.m.devices[0].set(func(g *gpu) { g.s.Utilization.Compute = device.Of(0.5 * float64(min(1, len(to)))) })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holdings = nil
	for _, w := range to {
		r.holdings = append(r.holdings, workload.Holding{Workload: w, Device: "A", Part: 1 / float64(len(to)), Evidence: workload.ByDevice})
	}
}

// used is a workload's total use, in joules and seconds.
type used struct {
	Energy, Allocated, Active float64
	Ended                     bool
}

func usedBy(r Reading) map[string]used {
	all := map[string]used{}
	for _, h := range r.Holders {
		all[h.ID] = used{get(h.Energy), h.Allocated, get(h.Active), h.Ended}
	}
	return all
}

// A GPU that goes from a to b and back: each workload is charged for its own use only, its
// sums continue, and they stay visible after it left.
func TestHandOver(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		a, b := pod("a"), pod("b")
		f := func(joules float64, owner string, want map[string]used) {
			t.Helper()
			got := r.pass(t, joules)
			if diff := cmp.Diff(want, usedBy(got)); diff != "" {
				t.Errorf("used (-want +got):\n%s", diff)
			}
			name := ""
			if got.Owner != nil {
				name = got.Owner.Name
			}
			if name != owner {
				t.Errorf("the owner is %q, want %q", name, owner)
			}
		}
		r.give(a)
		f(0, "a", map[string]used{a.ID: {}})
		f(10, "a", map[string]used{a.ID: {10, 1, 1, false}})
		f(20, "a", map[string]used{a.ID: {30, 2, 2, false}})
		r.give(b)
		f(40, "b", map[string]used{a.ID: {70, 3, 3, true}, b.ID: {}}) // until now a held it
		f(80, "b", map[string]used{a.ID: {70, 3, 3, true}, b.ID: {80, 1, 1, false}})
		r.give(a)
		f(160, "a", map[string]used{a.ID: {70, 3, 3, false}, b.ID: {240, 2, 2, true}})
		f(320, "a", map[string]used{a.ID: {390, 4, 4, false}, b.ID: {240, 2, 2, true}})
		r.give()
		f(1, "", map[string]used{a.ID: {391, 5, 4, true}, b.ID: {240, 2, 2, true}, "unallocated": {}})
		f(2, "", map[string]used{a.ID: {391, 5, 4, true}, b.ID: {240, 2, 2, true}, "unallocated": {2, 1, 0, false}})
		time.Sleep(keepEnded)
		f(3, "", map[string]used{"unallocated": {5, 302, 0, false}})
	})
}

// A GPU that works without a visible user, because processes are hidden, is used by an
// unknown workload: what it draws above idle is not the cost of an idle GPU.
func TestHiddenUse(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		r.give()
		r.pass(t, 0)
		r.m.devices[0].set(func(g *gpu) {
			g.s.Utilization.Compute = device.Of(1)
			g.s.Powers = []device.Power{{Scope: "gpu", Instant: device.Of(400)}}
		})
		got := usedBy(r.pass(t, 400))
		if diff := cmp.Diff(map[string]used{"unallocated": {100, 1, 0, false}, "unattributed": {300, 0, 0, false}}, got); diff != "" {
			t.Errorf("used (-want +got):\n%s", diff)
		}
	})
}

// An energy counter that was read and did not move is final for one owner: the next owner
// must not share its joules with the estimate for the last one.
func TestCounterStandsStill(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		r.give(pod("a"))
		r.pass(t, 0)
		r.pass(t, 0)
		r.give(pod("b"))
		r.pass(t, 0)
		r.pass(t, 0)
		r.pass(t, 60)
		got := usedBy(r.pass(t, 0))
		if diff := cmp.Diff(map[string]used{pod("a").ID: {0, 2, 2, true}, pod("b").ID: {60, 3, 3, false}}, got); diff != "" {
			t.Errorf("used (-want +got):\n%s", diff)
		}
	})
}

// A change of owner makes the tick read the energy counter, which fast reads do not:
// otherwise the next owner would pay for the last.
func TestHandOverReadsCounter(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		r.cfg.SlowInterval = time.Hour
		r.give(pod("a"))
		r.tick(t)
		r.tick(t)
		r.give(pod("b"))
		r.tick(t)
		r.tick(t)
		want := []device.Tier{device.Static, device.Fast, device.Slow, device.Fast}
		if diff := cmp.Diff(want, r.m.devices[0].asked()); diff != "" {
			t.Errorf("tiers (-want +got):\n%s", diff)
		}
	})
}

// Energy used while no agent ran is charged to the workload that held the device alone
// before and after, else to nobody. Time is not counted, and no sum is lost.
func TestLedgerOverRestart(t *testing.T) {
	f := func(name string, after []workload.Workload, want map[string]used) {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				dir := t.TempDir()
				r := newTenancy(dir)
				r.give(pod("a"))
				r.pass(t, 0)
				r.pass(t, 10)
				if err := r.Close(); err != nil {
					t.Fatal(err)
				}
				r.m.devices[0].set(func(g *gpu) { g.s.Energy = device.Of(get(g.s.Energy) + 1000) })
				time.Sleep(time.Minute)
				next := newTenancy(dir)
				next.m.devices = r.m.devices
				next.give(after...)
				next.pass(t, 0)
				if diff := cmp.Diff(want, usedBy(next.pass(t, 5))); diff != "" {
					t.Errorf("used (-want +got):\n%s", diff)
				}
				if err := next.Close(); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
	a, b := pod("a"), pod("b")
	f("the same", []workload.Workload{a}, map[string]used{a.ID: {1015, 2, 2, false}})
	f("another", []workload.Workload{b}, map[string]used{a.ID: {10, 1, 1, true}, b.ID: {5, 1, 1, false}, "unattributed": {1000, 0, 0, true}})
	f("one more", []workload.Workload{a, b}, map[string]used{a.ID: {12.5, 1.5, 1.5, false}, b.ID: {2.5, 0.5, 0.5, false}, "unattributed": {1000, 0, 0, true}})
}

// Sums that were exported but not saved before a kill must not decrease: they restart with
// a new start time. What was used meanwhile is not lost.
func TestLedgerAfterKill(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		dir := t.TempDir()
		r := newTenancy(dir)
		r.cfg.SlowInterval = time.Hour // nothing is written after the first tick
		r.give(pod("a"))
		r.pass(t, 0)
		for range 5 {
			r.pass(t, 0)
		}
		shown := r.pass(t, 0).Holders[0]
		r.saved(true)
		if err := r.store.close(); err != nil { // killed: nothing else is written
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		next := newTenancy(dir)
		next.m.devices = r.m.devices
		next.give(pod("a"))
		next.pass(t, 70)
		got := next.pass(t, 5)
		if h := got.Holders[0]; h.Allocated < shown.Allocated && h.Since.Equal(shown.Since) {
			t.Errorf("a sum fell from %v to %v s, both since %s", shown.Allocated, h.Allocated, h.Since)
		}
		if diff := cmp.Diff(map[string]used{pod("a").ID: {75, 1, 1, false}}, usedBy(got)); diff != "" {
			t.Errorf("used (-want +got):\n%s", diff)
		}
		if err := next.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// A counter that fails once, or at the first tick, loses nothing and counts nothing twice.
func TestCounterFails(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		dir := t.TempDir()
		r := newTenancy(dir)
		r.give(pod("a"))
		r.pass(t, 0)
		r.pass(t, 10)
		counter := r.m.devices[0].s.Energy
		r.m.devices[0].set(func(g *gpu) { g.s.Energy = device.Value{} })
		r.tick(t)
		r.m.devices[0].set(func(g *gpu) { g.s.Energy = counter })
		if diff := cmp.Diff(map[string]used{pod("a").ID: {40, 3, 3, false}}, usedBy(r.pass(t, 30))); diff != "" {
			t.Errorf("used (-want +got):\n%s", diff)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		next := newTenancy(dir)
		next.m.devices = r.m.devices
		next.give(pod("a"))
		next.m.devices[0].set(func(g *gpu) { g.err = device.ErrNeedsReset })
		next.pass(t, 1000)
		next.m.devices[0].set(func(g *gpu) { g.err = nil })
		next.pass(t, 0)
		if diff := cmp.Diff(map[string]used{pod("a").ID: {1045, 5, 5, false}}, usedBy(next.pass(t, 5))); diff != "" {
			t.Errorf("used after a restart (-want +got):\n%s", diff)
		}
		if err := next.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// A device that does not answer is still held, and its workload is still charged for the
// time.
func TestHeldWhileDown(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		r.give(pod("a"))
		r.pass(t, 0)
		r.m.devices[0].set(func(g *gpu) { g.err = device.ErrNeedsReset })
		r.pass(t, 0)
		r.m.devices[0].set(func(g *gpu) { g.err = nil })
		got := r.pass(t, 30)
		if diff := cmp.Diff(map[string]used{pod("a").ID: {30, 2, 1, false}}, usedBy(got)); diff != "" {
			t.Errorf("used (-want +got):\n%s", diff)
		}
	})
}

// While the drivers are released, devices are still held. Their use meanwhile is not the
// cost of an idle device.
func TestHeldWhilePaused(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		r.give(pod("a"))
		r.pass(t, 0)
		if err := r.Pause(t.Context(), time.Now(), 3*time.Second); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if tick := r.tick(t); !tick.Paused {
				t.Fatal("the View is not paused")
			}
		}
		r.pass(t, 30) // the device is found again, as if another process continued
		got := usedBy(r.pass(t, 20))
		if diff := cmp.Diff(map[string]used{pod("a").ID: {50, 1, 1, false}}, got); diff != "" {
			t.Errorf("used (-want +got):\n%s", diff)
		}
	})
}

// The status of a source is reported once, when it changes.
func TestAttributionSaid(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		r.notices = nil
		f := func(want []string, list ...workload.Status) {
			t.Helper()
			r.statuses, r.notices = list, nil
			r.tick(t)
			if diff := cmp.Diff(want, slices.DeleteFunc(r.notices, func(s string) bool { return s == "GPU 0 found" || s == "test: driver opened" })); diff != "" {
				t.Errorf("said (-want +got):\n%s", diff)
			}
		}
		f([]string{}, workload.Status{Source: "kubelet", Reason: workload.Absent})
		f([]string{"workloads by kubelet are not all known: permission denied: open it"}, workload.Status{Source: "kubelet", Reason: workload.PermissionDenied, Detail: "open it"})
		f(nil, workload.Status{Source: "kubelet", Reason: workload.PermissionDenied, Detail: "open it please"})
		f([]string{"workloads by kubelet are known"}, workload.Status{Source: "kubelet", Reason: workload.OK})
	})
}

// Workloads beyond the limit are counted together, so that no sum loses anything.
func TestTooManyOwners(t *testing.T) {
	var l ledger
	now := time.Unix(1_000_000, 0)
	c := cut{device: &Reading{Sample: device.Sample{ID: device.ID{UUID: "A"}, Energy: device.Of(0), Utilization: device.Engines{Compute: device.Of(1)}}, Up: true}}
	var o owners
	const n = maxOwned + 50
	for i := range n {
		o.holdings = append(o.holdings, workload.Holding{Workload: pod(fmt.Sprint(1000 + i)), Device: "A", Part: 1.0 / n})
	}
	l.advance(now, c, owners{}, o, true)
	c.device.Energy = device.Of(n)
	l.advance(now.Add(n*time.Second), c, o, o, true)
	holders := l.holders(c)
	if len(holders) != maxOwned+1 {
		t.Errorf("%d holders are distinguished, want %d plus one for the others", len(holders), maxOwned)
	}
	var energy, time, share float64
	for _, h := range holders {
		energy += get(h.Energy)
		time += h.Allocated
		share += h.Share
		if h.Kind == workload.Other && !near(h.Allocated, 50) {
			t.Errorf("the others have %v s, want 50", h.Allocated)
		}
	}
	if !near(energy, n) || !near(time, n) || !near(share, 1) {
		t.Errorf("%v J, %v s, %v of the work are counted, want %d, %d and 1", energy, time, share, n, n)
	}
}

// Owners is asked to refresh just before each tick, so that a workload that left is gone
// from the next tick and not only from the one after.
func TestAskedBeforeTick(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		start := time.Now()
		var asked, ticked []time.Duration
		r.cfg.Ask = func() { asked = append(asked, time.Since(start)) }
		ticks, cancel := r.Subscribe()
		defer cancel()
		ctx, stop := context.WithTimeout(t.Context(), 3500*time.Millisecond)
		defer stop()
		if err := r.Run(ctx); err != nil {
			t.Fatal(err)
		}
		for len(ticks) > 0 {
			ticked = append(ticked, (<-ticks).Time.Sub(start))
		}
		const ms = time.Millisecond
		if diff := cmp.Diff([]time.Duration{900 * ms, 1900 * ms, 2900 * ms}, asked); diff != "" {
			t.Errorf("asked (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]time.Duration{0, 1000 * ms, 2000 * ms, 3000 * ms}, ticked); diff != "" {
			t.Errorf("ticked (-want +got):\n%s", diff)
		}
	})
}
