package node

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// The sole holder of a device that is idle for 20 s and busy for 20 s in turn is active for
// half of the time. How much its process ran is read at slow ticks only: if that says that
// the process was idle, it must not hold until the next one.
func TestSoleHolderGoesByDevice(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		r.cfg.Interval, r.cfg.SlowInterval = 10*time.Second, 30*time.Second
		r.give(pod("a"))
		r.whose = map[uint32]workload.Workload{7: pod("a")}
		var got Reading
		for at := 0; at <= 240; at += 10 {
			busy := device.Of(0)
			if at > 0 && (at-1)/20%2 == 1 {
				busy = device.Of(0.9)
			}
			r.m.devices[0].set(func(g *gpu) {
				g.s.Utilization.Compute = busy
				if at%30 == 0 {
					g.s.Processes = []device.Process{{PID: 7, Utilization: busy}}
				}
			})
			got = r.Tick(t.Context(), time.Now()).Readings[0]
			time.Sleep(10 * time.Second)
		}
		if diff := cmp.Diff(map[string]used{pod("a").ID: {0, 240, 120, false}}, usedBy(got)); diff != "" {
			t.Errorf("used (-want +got):\n%s", diff)
		}
	})
}

// bases returns the basis of each holder.
func bases(r Reading) map[string]Basis {
	all := map[string]Basis{}
	for _, h := range r.Holders {
		all[h.ID] = h.Basis
	}
	return all
}

// Sharers whose processes were all idle at the last slow tick, on a device that is busy
// now, are divided by allocation and say so: the per-process values are older than the
// device's reading.
func TestSharersSayOldShares(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		a, b := pod("a"), pod("b")
		r.give(a, b)
		r.whose = map[uint32]workload.Workload{1: a, 2: b}
		f := func(x, y device.Value, busy float64, basis Basis, want map[string]used) {
			t.Helper()
			r.m.devices[0].set(func(g *gpu) {
				g.s.Utilization.Compute = device.Of(busy)
				g.s.Processes = []device.Process{{PID: 1, Utilization: x}, {PID: 2, Utilization: y}}
			})
			got := r.pass(t, 100)
			if diff := cmp.Diff(want, usedBy(got)); diff != "" {
				t.Errorf("used (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(map[string]Basis{a.ID: basis, b.ID: basis}, bases(got)); diff != "" {
				t.Errorf("bases (-want +got):\n%s", diff)
			}
		}
		of := device.Of
		f(of(0), of(0), 0, ByProcess, map[string]used{a.ID: {}, b.ID: {}})
		f(of(0), of(0), 0.9, ByGrant, map[string]used{a.ID: {50, 0.5, 0.5, false}, b.ID: {50, 0.5, 0.5, false}})
		f(of(0.25), of(0.75), 0.9, ByProcess, map[string]used{a.ID: {75, 1, 1, false}, b.ID: {125, 1, 1, false}})
		f(of(0.25), device.Value{}, 0.9, ByGrant, map[string]used{a.ID: {125, 1.5, 1.5, false}, b.ID: {175, 1.5, 1.5, false}})
		f(of(0), of(0), 0, ByProcess, map[string]used{a.ID: {175, 2, 1.5, false}, b.ID: {225, 2, 1.5, false}})
	})
}

// A pod that starts a new process for each tick, beside one with a long process, is charged
// for its half: each process is known to one tick only.
func TestProcessesShorterThanTick(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		a, b := pod("a"), pod("b")
		r.give(a, b)
		var got Reading
		for i := range uint32(11) {
			pid := 100 + i
			r.m.devices[0].set(func(g *gpu) {
				g.s.Processes = []device.Process{{PID: 1, Utilization: device.Of(0.5)}, {PID: pid, Utilization: device.Of(0.5)}}
			})
			r.whose = map[uint32]workload.Workload{1: a, pid: b}
			got = r.pass(t, 100)
		}
		if diff := cmp.Diff(map[string]used{a.ID: {500, 5, 5, false}, b.ID: {500, 5, 5, false}}, usedBy(got)); diff != "" {
			t.Errorf("used (-want +got):\n%s", diff)
		}
	})
}

// A process that exits before its owner can be looked up again still belongs to the workload
// that the last tick found for it.
func TestProcessExitsDuringTick(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		a, b := pod("a"), pod("b")
		r.give(a, b)
		r.m.devices[0].set(func(g *gpu) {
			g.s.Processes = []device.Process{{PID: 1, Utilization: device.Of(0.5)}, {PID: 2, Utilization: device.Of(0.5)}}
		})
		r.whose = map[uint32]workload.Workload{1: a, 2: b}
		r.pass(t, 0)
		r.whose = map[uint32]workload.Workload{1: a}
		want := map[string]used{a.ID: {50, 0.5, 0.5, false}, b.ID: {50, 0.5, 0.5, false}, "unattributed": {}}
		if diff := cmp.Diff(want, usedBy(r.pass(t, 100))); diff != "" {
			t.Errorf("used (-want +got):\n%s", diff)
		}
	})
}

// A program without a grant that comes and goes is charged for the work of the interval in
// which it came, but not for holding the device before: its first joules are not those of
// an unknown workload.
func TestProcessArrives(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		shell := workload.Workload{ID: "process/1000/train", Kind: "process", Name: "train"}
		r.give()
		r.pass(t, 0) // draws 100 W without a process: idle
		run := func(yes bool, watts float64) Reading {
			r.holdings, r.whose = nil, nil
			if yes {
				r.holdings = []workload.Holding{{Workload: shell, Device: "A", Evidence: workload.ByProcess}}
				r.whose = map[uint32]workload.Workload{7: shell}
			}
			r.m.devices[0].set(func(g *gpu) {
				g.s.Processes, g.s.Utilization.Compute = nil, device.Of(0)
				if yes {
					g.s.Processes, g.s.Utilization.Compute = []device.Process{{PID: 7, Utilization: device.Of(1)}}, device.Of(1)
				}
				g.s.Powers = []device.Power{{Scope: "gpu", Instant: device.Of(watts)}}
			})
			return r.pass(t, watts)
		}
		got := run(true, 400)
		want := map[string]used{shell.ID: {300, 0, 0, false}, "unallocated": {100, 1, 0, true}}
		if diff := cmp.Diff(want, usedBy(got)); diff != "" {
			t.Errorf("arrives (-want +got):\n%s", diff)
		}
		got = run(true, 400)
		want[shell.ID] = used{700, 1, 1, false}
		if diff := cmp.Diff(want, usedBy(got)); diff != "" {
			t.Errorf("stays (-want +got):\n%s", diff)
		}
		got = run(false, 100)
		want = map[string]used{shell.ID: {800, 2, 1, true}, "unallocated": {100, 1, 0, false}}
		if diff := cmp.Diff(want, usedBy(got)); diff != "" {
			t.Errorf("leaves (-want +got):\n%s", diff)
		}
	})
}
