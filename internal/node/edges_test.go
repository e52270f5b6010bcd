package node

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// A reloaded driver counts energy from 0: what it has counted since is charged to its
// holder, also if the reload happened while no agent ran. A counter that steps back by
// 1 mJ, or to 0 once, was not reset: its holder would be charged for everything that the
// device used since the driver was loaded.
func TestCounterReset(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		dir := t.TempDir()
		r := newTenancy(dir)
		shows := func(r *tenancy, rejected uint64, want used, joules ...float64) {
			t.Helper()
			var tick Tick
			for _, n := range joules { // a slow read every three seconds
				r.m.devices[0].set(func(g *gpu) { g.s.Energy = device.Of(n) })
				tick = r.tick(t)
			}
			if diff := cmp.Diff(map[string]used{pod("a").ID: want}, usedBy(tick.Readings[0])); diff != "" {
				t.Errorf("used with %v J (-want +got):\n%s", joules, diff)
			}
			if n := tick.Sources[0].Rejected; n != rejected {
				t.Errorf("%d readings were rejected with %v J, want %d", n, joules, rejected)
			}
		}
		r.give(pod("a"))
		shows(r, 0, used{0, 0, 0, false}, 500e6)
		shows(r, 1, used{6, 3, 3, false}, 500e6-0.001, 500e6-0.001, 500e6+6)
		shows(r, 2, used{20, 6, 6, false}, 0, 0, 500e6+20)
		shows(r, 3, used{27, 9, 9, false}, 5, 6, 7)
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		next := newTenancy(dir)
		next.m.devices = r.m.devices
		next.give(pod("a"))
		shows(next, 1, used{31, 12, 12, false}, 2, 2, 3, 4)
		if err := next.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// unready is a tenancy whose sources have not answered yet.
type unready struct {
	*tenancy
	ready bool
}

func (u *unready) Ready() bool { return u.ready }

// Until its sources have answered, no holder is reported: otherwise each start would report
// the device, and its past energy, as unallocated. The wait is bounded.
func TestNobodyBeforeReady(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		u := &unready{tenancy: r}
		r.cfg.Owners = u
		for i := range 6 {
			if got := r.pass(t, 1); (len(got.Holders) > 0) != (i >= 5) {
				t.Errorf("after %d s: %+v", i, got.Holders)
			}
		}
		r = newTenancy("")
		r.give(pod("a"))
		r.cfg.Owners = &unready{tenancy: r}
		r.pass(t, 1)
		r.cfg.Owners.(*unready).ready = true
		r.pass(t, 1)
		if diff := cmp.Diff(map[string]used{pod("a").ID: {5, 1, 1, false}}, usedBy(r.pass(t, 5))); diff != "" {
			t.Errorf("used (-want +got):\n%s", diff)
		}
	})
}

// The power of a busy device is not its idle power, even if no process is visible.
func TestIdlePower(t *testing.T) {
	f := func(utilization device.Value, want *float64) {
		t.Helper()
		var l ledger
		l.learnIdle(cut{device: &Reading{Sample: device.Sample{
			Powers: []device.Power{{Scope: "gpu", Instant: device.Of(500)}}, Utilization: device.Engines{Compute: utilization},
		}, Up: true}})
		if diff := cmp.Diff(want, l.IdlePower); diff != "" {
			t.Errorf("idle power at %v (-want +got):\n%s", utilization, diff)
		}
	}
	f(device.Of(0.9), nil)
	f(device.Value{}, nil)
	f(device.Of(0), new(500.0))
}

// A device that was reallocated while it was read has its energy counter read at the next
// tick: the first query saw the old owner, and the next would see no change.
func TestRegrantedWhileRead(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		r.cfg.SlowInterval = time.Hour
		r.give(pod("a"))
		r.tick(t)
		r.tick(t)
		hang := make(chan struct{})
		r.m.devices[0].set(func(g *gpu) { g.hang = hang })
		time.AfterFunc(500*time.Millisecond, func() {
			r.give(pod("b"))
			close(hang)
		})
		r.tick(t)
		r.m.devices[0].set(func(g *gpu) { g.hang = nil })
		r.tick(t)
		want := []device.Tier{device.Static, device.Fast, device.Fast, device.Slow}
		if diff := cmp.Diff(want, r.m.devices[0].asked()); diff != "" {
			t.Errorf("tiers (-want +got):\n%s", diff)
		}
	})
}

// The sums of a workload keep their labels when its partition is gone: without the profile
// they would be new series that start at the full value.
func TestEndedKeepsProfile(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	gpu := &Reading{Sample: device.Sample{ID: device.ID{UUID: "A"}}, Up: true}
	part := &Reading{Sample: device.Sample{ID: device.ID{UUID: "M", Parent: "A", Profile: "3g.71gb"}, Slice: device.Slice{Held: 7, Of: 7}}, Up: true}
	o := owners{holdings: []workload.Holding{{Workload: pod("a"), Device: "M", Part: 1}}}
	var l ledger
	whole := cut{gpu, []*Reading{part}}
	l.advance(now, whole, owners{}, o, true)
	before := l.holders(whole)[0]
	after := cut{device: gpu}
	l.advance(now.Add(time.Second), after, o, owners{}, true)
	for _, h := range l.holders(after) {
		if h.ID == before.ID && (h.Profile != "3g.71gb" || h.Partition != "M" || !h.Ended) {
			t.Errorf("before %+v, after %+v", before, h)
		}
	}
}

// Ended workloads make room for new ones: otherwise a node with many short jobs would count
// running jobs under workload.Other.
func TestGoneMakeRoom(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	c := cut{device: &Reading{Sample: device.Sample{ID: device.ID{UUID: "A"}, Energy: device.Of(0)}, Up: true}}
	var l ledger
	var before owners
	for i := range maxOwned + 20 {
		after := owners{holdings: []workload.Holding{{Workload: pod(fmt.Sprint(i)), Device: "A", Part: 1}}}
		now = now.Add(time.Second)
		l.advance(now, c, before, after, true)
		before = after
	}
	for _, h := range l.holders(c) {
		if h.Kind == workload.Other {
			t.Errorf("%+v, although workloads ran one at a time", h)
		}
	}
	if len(l.Owned) > maxOwned {
		t.Errorf("%d accounts are kept", len(l.Owned))
	}
}

// The memory of pods on a device that does not answer is absent, not 0.
func TestMemoryWhileDown(t *testing.T) {
	c := cut{device: &Reading{Sample: device.Sample{ID: device.ID{UUID: "A"}}}}
	var o owners
	for _, name := range []string{"a", "b"} {
		o.holdings = append(o.holdings, workload.Holding{Workload: pod(name), Device: "A", Part: 0.5})
	}
	for _, s := range c.shares(o) {
		if s.memory.OK() {
			t.Errorf("%s has %v bytes of a device that is down", s.ID, s.memory)
		}
	}
}
