package node

import (
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// A device that hangs while pod a is replaced by pod b: each is charged for its time, not b
// for everything since the device last answered.
func TestHandOverWhileHung(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		a, b := pod("a"), pod("b")
		r.give(a)
		r.pass(t, 0)
		r.pass(t, 100)
		hang := make(chan struct{})
		r.m.devices[0].set(func(g *gpu) { g.hang = hang })
		r.pass(t, 100)
		r.pass(t, 100)
		r.give(b)
		r.pass(t, 100) // until now a held it
		r.pass(t, 100)
		r.m.devices[0].set(func(g *gpu) { g.hang = nil })
		close(hang)
		synctest.Wait()
		got := r.pass(t, 100)
		if diff := cmp.Diff(map[string]used{a.ID: {400, 4, 1, true}, b.ID: {200, 2, 1, false}}, usedBy(got)); diff != "" {
			t.Errorf("used (-want +got):\n%s", diff)
		}
	})
}

// A device that hangs when the agent starts is held by whom the scheduler gave it to, and
// the time counts. What it used before it first answered is unknown, as is who worked.
func TestHungAtStart(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		a, b := pod("a"), pod("b")
		r.give(a)
		hang := make(chan struct{})
		r.m.devices[0].set(func(g *gpu) { g.hang = hang })
		got := r.pass(t, 100)
		if len(got.Holders) != 1 || got.Holders[0].ID != a.ID || got.Holders[0].Allocation != 1 || got.Owner == nil {
			t.Errorf("the device hangs and is held by %+v", got.Holders)
		}
		r.pass(t, 100)
		r.give(b)
		r.pass(t, 100)
		r.m.devices[0].set(func(g *gpu) { g.hang = nil })
		close(hang)
		synctest.Wait()
		r.pass(t, 100)
		got = r.pass(t, 100)
		if diff := cmp.Diff(map[string]used{a.ID: {0, 2, 0, true}, b.ID: {100, 2, 2, false}}, usedBy(got)); diff != "" {
			t.Errorf("used (-want +got):\n%s", diff)
		}
	})
}

// A GPU that hangs over a restart of the agent: the joules since the last agent belong to
// the workload that held the GPU throughout, else to nobody.
func TestHungOverRestart(t *testing.T) {
	f := func(name string, later workload.Workload, want map[string]used) {
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
				next := newTenancy(dir)
				next.m.devices = r.m.devices
				next.give(pod("a"))
				next.m.devices[0].set(func(g *gpu) { g.err = device.ErrNeedsReset })
				next.pass(t, 100)
				next.give(later)
				next.pass(t, 100)
				next.give(pod("a"))
				next.m.devices[0].set(func(g *gpu) { g.err = nil })
				next.pass(t, 100)
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
	f("the same", a, map[string]used{a.ID: {315, 4, 3, false}})
	f("another in between", b, map[string]used{a.ID: {15, 3, 2, false}, b.ID: {0, 1, 1, true}, "unattributed": {300, 0, 0, true}})
}

// A program without a grant still holds a device that does not answer, as long as it lives.
func TestProcessOnHungDevice(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		w := workload.Workload{ID: "process/1000/train", Kind: "process", Name: "train"}
		r.uses(&w)
		r.cfg.Owners = &workload.Resolver{Sources: []workload.Source{&alive{pids: map[uint32]workload.Workload{7: w}}}}
		r.pass(t, 100)
		r.m.devices[0].set(func(g *gpu) { g.err = device.ErrNeedsReset })
		r.pass(t, 100)
		got := r.pass(t, 100)
		if diff := cmp.Diff(map[string]used{w.ID: {0, 2, 0, false}}, usedBy(got)); diff != "" {
			t.Errorf("while it hangs (-want +got):\n%s", diff)
		}
		r.cfg.Owners = &workload.Resolver{Sources: []workload.Source{&alive{}}}
		r.pass(t, 100)
		got = r.pass(t, 100)
		if diff := cmp.Diff(map[string]used{w.ID: {0, 3, 0, true}, "unallocated": {0, 1, 0, false}}, usedBy(got)); diff != "" {
			t.Errorf("after the program exited (-want +got):\n%s", diff)
		}
	})
}

// alive is a workload source that knows processes only.
type alive struct{ pids map[uint32]workload.Workload }

func (s *alive) Grants() []workload.Grant { return nil }
func (s *alive) Process(pid uint32) (workload.Workload, bool) {
	w, ok := s.pids[pid]
	return w, ok
}
func (s *alive) Statuses() []workload.Status { return nil }
