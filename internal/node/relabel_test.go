package node

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// team returns pod a under a team, or without one.
func team(name string) workload.Workload {
	w := pod("a")
	w.Team = name
	return w
}

// billed is what a workload used under one description.
type billed struct {
	Team      string
	Energy    float64
	Allocated float64
	Since     time.Duration // since the start of the test
	Ended     bool
}

func billedOf(r Reading, start time.Time) []billed {
	var list []billed
	for _, h := range r.Holders {
		list = append(list, billed{h.Team, get(h.Energy), h.Allocated, h.Since.Sub(start), h.Ended})
	}
	return list
}

// Catches seconds that are billed to both descriptions of a workload whose label was edited:
// the counters of the new description start at 0, also across a restart, and those of the
// former one keep what they had. For the scheduler it is still one stay.
func TestRelabel(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		dir := t.TempDir()
		r := newTenancy(dir)
		start := r.start
		f := func(joules float64, label string, news int, want ...billed) {
			t.Helper()
			r.give(team(label))
			r.m.devices[0].set(func(g *gpu) { g.s.Energy = device.Of(get(g.s.Energy) + joules) })
			tick := r.tick(t)
			if diff := cmp.Diff(want, billedOf(tick.Readings[0], start)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", label, diff)
			}
			if len(tick.Tenures) != news {
				t.Errorf("%s: %d workloads arrived or left, want %d", label, len(tick.Tenures), news)
			}
		}
		const s = time.Second
		f(0, "red", 1, billed{"red", 0, 0, 0, false})
		f(10, "red", 0, billed{"red", 10, 1, 0, false})
		f(20, "blue", 0, billed{"blue", 0, 0, 2 * s, false}, billed{"red", 30, 2, 0, true})
		f(40, "blue", 0, billed{"blue", 40, 1, 2 * s, false}, billed{"red", 30, 2, 0, true})
		f(80, "red", 0, billed{"red", 30, 2, 0, false}, billed{"blue", 120, 2, 2 * s, true})
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		next := newTenancy(dir)
		next.m.devices = r.m.devices
		r = next
		// Nobody saw whose joules these are; the instance held the device alone before and after.
		f(1000, "", 0, billed{"", 1000, 0, 4 * s, false}, billed{"blue", 120, 2, 2 * s, true}, billed{"red", 30, 2, 0, true})
		f(5, "", 0, billed{"", 1005, 1, 4 * s, false}, billed{"blue", 120, 2, 2 * s, true}, billed{"red", 30, 2, 0, true})
		f(6, "red", 0, billed{"red", 30, 2, 0, false}, billed{"", 1011, 2, 4 * s, true}, billed{"blue", 120, 2, 2 * s, true})
		r.give()
		tick := r.tick(t)
		if len(tick.Tenures) != 1 {
			t.Fatalf("%d workloads left", len(tick.Tenures))
		}
		h := tick.Tenures[0].Holder
		if diff := cmp.Diff(used{30 + 1011 + 120, 7, 6, true}, used{get(h.Energy), h.Allocated, get(h.Active), h.Ended}); diff != "" {
			t.Errorf("stop record (-want +got):\n%s", diff)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
