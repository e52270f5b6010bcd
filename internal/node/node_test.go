package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

func wantUp(t *testing.T, tick Tick, want ...int) {
	t.Helper()
	if diff := cmp.Diff(append([]int{}, want...), up(tick)); diff != "" {
		t.Errorf("GPUs up at %s (-want +got):\n%s", tick.Time.Format(time.TimeOnly), diff)
	}
}

func (r *rig) wantNotice(t *testing.T, parts ...string) {
	t.Helper()
	for _, n := range r.notices {
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(n, p) }) {
			return
		}
	}
	t.Errorf("no notice has %q, there are %q", parts, r.notices)
}

// A hung call affects its own device only: the others are in every tick, in time.
func TestHang(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(4)
		wantUp(t, r.tick(t), 0, 1, 2, 3)
		release := make(chan struct{})
		r.m.devices[2].set(func(g *gpu) { g.hang = release })
		for i := range 5 {
			before := time.Now()
			tick := r.Tick(t.Context(), before)
			wantUp(t, tick, 0, 1, 3)
			// Only the tick in which the call began to hang waits for it, until the
			// deadline.
			if took, want := time.Since(before), time.Duration(0); i > 0 && took != want {
				t.Errorf("tick %d took %s", i, took)
			}
			if p := tick.Readings[2].Problem; !strings.Contains(p, "testRead has not returned") {
				t.Errorf("problem of the hung GPU: %q", p)
			}
			time.Sleep(time.Until(before.Add(time.Second)))
		}
		r.wantNotice(t, "GPU 2 does not answer", "testRead")
		if n := len(r.m.devices[2].asked()); n != 2 {
			t.Errorf("the hung GPU was called %d times, want once before and once for the hang", n)
		}
		r.m.devices[2].set(func(g *gpu) { g.hang = nil })
		close(release)
		synctest.Wait()
		tick := r.tick(t)
		wantUp(t, tick, 0, 1, 2, 3)
		r.wantNotice(t, "GPU 2 answers again")
		if got := r.m.devices[2].asked(); got[len(got)-1] != device.Static {
			t.Errorf("a GPU that came back was read at tier %v, want Static", got[len(got)-1])
		}
		if tick.Sources[0].Errors != 5 {
			t.Errorf("%d errors counted, want one per missed tick", tick.Sources[0].Errors)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// One notice per tick would flood the log of a machine with one dead GPU.
func TestOneNoticePerChange(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(2)
		r.tick(t)
		r.notices = nil
		r.m.devices[0].set(func(g *gpu) { g.err = fmt.Errorf("testCall: %w", device.ErrNeedsReset) })
		r.m.devices[1].set(func(g *gpu) { g.err = fmt.Errorf("no permission") })
		for range 5 {
			wantUp(t, r.tick(t), 1)
		}
		r.m.devices[0].set(func(g *gpu) { g.err = nil })
		r.m.devices[1].set(func(g *gpu) { g.err = nil })
		for range 5 {
			wantUp(t, r.tick(t), 0, 1)
		}
		want := []string{
			"GPU 0 does not answer: testCall: device needs a reset",
			"GPU 1 does not answer some calls: no permission",
			"GPU 0 answers again",
			"GPU 1 answers everything again",
		}
		if diff := cmp.Diff(want, r.notices); diff != "" {
			t.Errorf("notices (-want +got):\n%s", diff)
		}
	})
}

// The library of a hung call must be neither re-initialized nor closed during the call.
func TestHangForbidsDiscoveryAndClose(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(2)
		r.tick(t)
		release := make(chan struct{})
		r.m.devices[0].set(func(g *gpu) { g.hang = release })
		r.m.devices[1].set(func(g *gpu) { g.err = device.ErrLost }) // requests a discovery
		for range 100 {
			r.tick(t)
		}
		if r.m.listed() != 1 {
			t.Errorf("%d discoveries, want only the one before the hang", r.m.listed())
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := r.Pause(ctx, time.Now(), time.Minute); err == nil || !strings.Contains(err.Error(), "testRead") {
			t.Errorf("pausing during a hang: %v, want an error that names the call", err)
		}
		if r.m.closes != 0 {
			t.Error("the reader was closed during a hang")
		}
		r.m.devices[0].set(func(g *gpu) { g.hang = nil })
		close(release)
		synctest.Wait()
		r.tick(t)
		r.tick(t)
		if r.m.listed() < 2 {
			t.Error("no discovery after the hang ended")
		}
	})
}

// A reader that panics counts as failed.
func TestPanic(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(2)
		r.m.devices[0].err = errPanic
		tick := r.tick(t)
		wantUp(t, tick, 1)
		if p := tick.Readings[0].Problem; !strings.Contains(p, "panicked") {
			t.Errorf("problem: %q", p)
		}
	})
}

// A GPU that disappears is reported as down for as long as the agent runs, and is found
// again.
func TestLostAndReturned(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(3)
		r.tick(t)
		lost := r.m.devices[1]
		lost.set(func(g *gpu) { g.err = device.ErrLost })
		wantUp(t, r.tick(t), 0, 2)
		r.m.set(func() { r.m.devices = []*gpu{r.m.devices[0], r.m.devices[2]} })
		for range 90 {
			wantUp(t, r.tick(t), 0, 2)
		}
		if n := r.m.listed(); n > 3 {
			t.Errorf("%d discoveries in 92 s, want one at the start, one for the loss and one per minute", n)
		}
		back := newGPU(1)
		r.m.set(func() { r.m.devices = []*gpu{r.m.devices[0], back, r.m.devices[1]} })
		for range 61 {
			r.tick(t)
		}
		wantUp(t, r.tick(t), 0, 1, 2)
		r.wantNotice(t, "GPU 1 answers again")
	})
}

// A failed discovery says nothing about known devices.
func TestFailedDiscovery(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(2)
		all := r.m.devices
		r.tick(t)
		r.m.set(func() { r.m.devices, r.m.listErr = nil, errors.New("driver is busy") })
		for range 70 {
			wantUp(t, r.tick(t), 0, 1)
		}
		r.wantNotice(t, "test: driver cannot be read: driver is busy")
		r.m.set(func() { r.m.devices, r.m.listErr = all, nil })
		for range 61 {
			wantUp(t, r.tick(t), 0, 1)
		}
		r.wantNotice(t, "test: driver opened")
	})
}

// A device that reports itself as lost at every tick must not have its driver
// re-initialized at every tick.
func TestLossDoesNotStorm(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(1)
		r.m.devices[0].err = device.ErrLost
		for range 60 {
			r.tick(t)
		}
		if n := r.m.listed(); n != 2 {
			t.Errorf("%d discoveries in a minute of loss, want one at the start and one for the loss", n)
		}
	})
}

// Partitions come and go by configuration; that is not a loss.
func TestPartitions(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(1)
		part := newGPU(0)
		part.id.Parent, part.id.UUID, part.id.Profile = "A", "A-1", "1g"
		part.s.ID = part.id
		r.m.devices = append(r.m.devices, part)
		if tick := r.tick(t); len(tick.Readings) != 2 {
			t.Fatalf("%d readings", len(tick.Readings))
		}
		r.m.set(func() { r.m.devices = r.m.devices[:1] })
		for range 61 {
			r.tick(t)
		}
		if tick := r.tick(t); len(tick.Readings) != 1 || !tick.Readings[0].Up {
			t.Errorf("after the partition was removed: %+v", tick.Readings)
		}
		r.wantNotice(t, "GPU 0 partition 1g was removed")
	})
}

// A machine without a driver is a normal state, reported once; a driver that is installed
// later is found.
func TestAbsentThenInstalled(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(1)
		r.m.openErr = fmt.Errorf("no library: %w", device.ErrAbsent)
		for range 130 {
			if tick := r.tick(t); len(tick.Readings) != 0 || tick.Sources[0].State != "absent" || tick.Sources[0].Errors != 0 {
				t.Fatalf("tick without a driver: %+v", tick)
			}
		}
		if diff := cmp.Diff([]string{"test: no device or driver on this machine: no library: not present"}, r.notices); diff != "" {
			t.Errorf("notices (-want +got):\n%s", diff)
		}
		r.m.set(func() { r.m.openErr = nil })
		for range 61 {
			r.tick(t)
		}
		wantUp(t, r.tick(t), 0)
	})
}

// Fast reads do not query what a slow read could not answer, so they are no recovery.
func TestSlowProblemDoesNotFlap(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(1)
		r.tick(t)
		r.notices = nil
		g := r.m.devices[0]
		g.set(func(g *gpu) { g.slowErr = errors.New("no permission") })
		for range 12 {
			r.tick(t)
		}
		g.set(func(g *gpu) { g.slowErr = nil })
		for range 6 {
			r.tick(t)
		}
		want := []string{"GPU 0 does not answer some calls: no permission", "GPU 0 answers everything again"}
		if diff := cmp.Diff(want, r.notices); diff != "" {
			t.Errorf("notices (-want +got):\n%s", diff)
		}
	})
}

// A partition that disappeared from a present GPU is dropped, whatever the state of other
// GPUs.
func TestPartitionGoneBesideLostGPU(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(2)
		part := newGPU(0)
		part.id.Parent, part.id.UUID, part.id.Profile = "A", "A-1", "1g"
		part.s.ID = part.id
		r.m.devices = append(r.m.devices, part)
		r.tick(t)
		r.m.set(func() { r.m.devices, r.m.listErr = r.m.devices[:1], device.ErrLost })
		for range 62 {
			r.tick(t)
		}
		if tick := r.tick(t); len(tick.Readings) != 2 {
			t.Errorf("%d readings, want the two GPUs", len(tick.Readings))
		}
	})
}
