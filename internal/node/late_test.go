package node

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

// Catches a device that is down on every third tick because its slow read takes longer than
// the interval: the read is only late itself, its values come a tick later, no joule is lost
// and the device does not leave. A slow read that does not return is a hung device.
func TestSlowReadIsLate(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		r.give(pod("a"))
		r.pass(t, 0)
		g := r.m.devices[0]
		r.notices = nil
		var late []bool
		for range 9 {
			gate := make(chan struct{})
			timer := time.AfterFunc(1200*time.Millisecond, func() { close(gate) })
			g.set(func(g *gpu) {
				g.s.Energy = device.Of(get(g.s.Energy) + 100)
				g.slowHang = gate
			})
			tick := r.tick(t)
			wantUp(t, tick, 0)
			late = append(late, tick.Readings[0].Late)
			if timer.Stop() {
				close(gate)
			}
			synctest.Wait()
		}
		if !slices.Contains(late, true) || !slices.Contains(late, false) {
			t.Errorf("late ticks: %v", late)
		}
		g.set(func(g *gpu) { g.slowHang = nil })
		r.cfg.SlowInterval = time.Second
		got := r.pass(t, 100)
		if diff := cmp.Diff(map[string]used{pod("a").ID: {1000, 10, 10, false}}, usedBy(got)); diff != "" {
			t.Errorf("used (-want +got):\n%s", diff)
		}
		if len(r.notices) > 0 {
			t.Errorf("notices: %q", r.notices)
		}

		hung := make(chan struct{})
		g.set(func(g *gpu) { g.slowHang = hung })
		var up []bool
		for range 7 {
			up = append(up, r.tick(t).Readings[0].Up)
		}
		if diff := cmp.Diff([]bool{true, true, true, true, true, false, false}, up); diff != "" {
			t.Errorf("up while the device hangs (-want +got):\n%s", diff)
		}
		if len(r.notices) != 1 || !strings.Contains(r.notices[0], "does not answer") {
			t.Errorf("notices: %q", r.notices)
		}
		close(hung)
		synctest.Wait()
	})
}

// Catches a device that is up without a value: its first read outlasted the tick and was
// discarded, and the slow read after it was late as well.
func TestLateBeforeFirstValues(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		r.give(pod("a"))
		g := r.m.devices[0]
		first, second := make(chan struct{}), make(chan struct{})
		g.set(func(g *gpu) { g.hang = first })
		tick := r.tick(t)
		close(first)
		synctest.Wait()
		g.set(func(g *gpu) { g.hang, g.slowHang = nil, second })
		r.lastSlow = time.Time{}
		again := r.tick(t)
		for i, got := range []Reading{tick.Readings[0], again.Readings[0]} {
			if got.Up || got.Late {
				t.Errorf("tick %d: the device is up: %+v", i, got)
			}
		}
		close(second)
		synctest.Wait()
		wantUp(t, r.tick(t), 0)
		for _, n := range r.notices {
			if strings.Contains(n, "does not answer") {
				t.Errorf("notices: %q", r.notices)
			}
		}
	})
}
