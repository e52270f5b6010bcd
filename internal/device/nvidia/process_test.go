//go:build linux

package nvidia

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
)

// utilizations reads d and returns the utilization of each process.
func utilizations(t *testing.T, d device.Device, tier device.Tier) map[uint32]device.Value {
	t.Helper()
	s, err := d.Read(t.Context(), tier)
	if err != nil {
		t.Fatal(err)
	}
	got := map[uint32]device.Value{}
	for _, p := range s.Processes {
		got[p.PID] = p.Utilization
	}
	return got
}

// A process that has just started and has no sample yet was not idle: with 0 its neighbors
// would pay for it.
func TestNewProcessIsNotIdle(t *testing.T) {
	h := nvmltest.New(t, "process 0 7 compute 1 na")
	c := newClock()
	d := devices(t, openFake(t, h, c))[0]
	f := func(tier device.Tier, want map[uint32]device.Value) {
		t.Helper()
		if diff := cmp.Diff(want, utilizations(t, d, tier)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		c.advance(time.Minute)
	}
	f(device.Slow, map[uint32]device.Value{7: device.Of(0)})
	h.Script(t, "process 0 7 compute 1 na\nprocess 0 8 compute 1 na")
	f(device.Slow, map[uint32]device.Value{7: device.Of(0), 8: {}})
	f(device.Slow, map[uint32]device.Value{7: device.Of(0), 8: device.Of(0)})
}

// Processes that divide a GPU are sampled as often as its utilization. Between slow ticks a
// process that started has no share otherwise, and the one that was busy at the last slow
// tick pays for everything.
func TestSharersAreSampledFast(t *testing.T) {
	h := nvmltest.New(t, "process 0 7 compute 1 90")
	c := newClock()
	d := devices(t, openFake(t, h, c))[0]
	f := func(script string, tier device.Tier, want map[uint32]device.Value) {
		t.Helper()
		h.Script(t, script)
		c.advanceBoth(t, h, time.Minute)
		if diff := cmp.Diff(want, utilizations(t, d, tier)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", script, diff)
		}
	}
	of := device.Of
	f("process 0 7 compute 1 90", device.Slow, map[uint32]device.Value{7: of(0.9)})
	f("process 0 7 compute 1 10", device.Fast, map[uint32]device.Value{7: of(0.9)}) // the only user: the GPU's own utilization is newer
	f("process 0 7 compute 1 30\nprocess 0 8 compute 1 60", device.Fast, map[uint32]device.Value{7: of(0.3), 8: of(0.6)})
	f("process 0 7 compute 1 20\nprocess 0 9 compute 1 70", device.Fast, map[uint32]device.Value{7: of(0.2), 9: of(0.7)})
}

// A clock that is set back by an hour leaves the driver without a sample that is newer than
// the newest one seen: all processes looked idle for an hour. Samples from before the step
// are not the newest.
func TestClockSetBack(t *testing.T) {
	h := nvmltest.New(t, "process 0 7 compute 1 30\nprocess 0 8 compute 1 60")
	c := newClock()
	d := devices(t, openFake(t, h, c))[0]
	want := map[uint32]device.Value{7: device.Of(0.3), 8: device.Of(0.6)}
	if diff := cmp.Diff(want, utilizations(t, d, device.Slow)); diff != "" {
		t.Errorf("before (-want +got):\n%s", diff)
	}
	c.advanceBoth(t, h, -time.Hour)
	if diff := cmp.Diff(want, utilizations(t, d, device.Slow)); diff != "" {
		t.Errorf("after (-want +got):\n%s", diff)
	}
}
