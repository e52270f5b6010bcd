//go:build linux

package agent

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/node"
)

// Whatever falls into a reload goes to the new pipelines, once.
func TestRelay(t *testing.T) {
	r := newRelay()
	n := 0
	publish := func(count int) {
		for range count {
			n++
			r.publish(node.Tick{Time: time.Unix(int64(n), 0)})
		}
	}
	subscribe := func() (times func() []int64) {
		ticks, cancel := r.Subscribe()
		return func() (list []int64) {
			cancel()
			for t := range ticks {
				list = append(list, t.Time.Unix())
			}
			return list
		}
	}
	r.hold()
	a, b := subscribe(), subscribe()
	r.release()
	publish(3)
	r.hold()
	publish(1) // before they are gone
	first, second := a(), b()
	publish(2)
	a, b = subscribe(), subscribe()
	publish(1)
	r.release()
	publish(1)
	f := func(got []int64, want ...int64) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("ticks (-want +got):\n%s", diff)
		}
	}
	f(first, 1, 2, 3)
	f(second, 1, 2, 3)
	f(a(), 4, 5, 6, 7, 8)
	f(b(), 4, 5, 6, 7, 8)

	// Both what is held and what waits for a subscriber is bounded, and the newest stays.
	r.hold()
	publish(maxHeld + 5)
	c := subscribe()
	r.release()
	publish(relayBacklog + 3)
	got := c()
	if len(got) != maxHeld+relayBacklog || got[len(got)-1] != int64(n) || !slices.IsSorted(got) {
		t.Errorf("%d ticks up to %d, want %d up to %d", len(got), got[len(got)-1], maxHeld+relayBacklog, n)
	}
	ticks, cancel := r.Subscribe()
	defer cancel()
	publish(1)
	if lost := (<-ticks).LostTicks; lost != 5+3 {
		t.Errorf("%d lost, want 8", lost)
	}
}
