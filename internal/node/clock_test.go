package node

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

func TestTiers(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(1)
		for range 7 {
			r.tick(t)
		}
		f, s := device.Fast, device.Slow
		if diff := cmp.Diff([]device.Tier{device.Static, f, f, s, f, f, s}, r.m.devices[0].asked()); diff != "" {
			t.Errorf("tiers (-want +got):\n%s", diff)
		}
	})
}

// The start time of counters moves when the counters are reset, not when the agent pauses or
// a counter steps back once.
func TestSince(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(1)
		g := r.m.devices[0]
		first := r.tick(t)
		g.set(func(g *gpu) { g.s.Energy = device.Of(150) })
		if s := r.tick(t).Readings[0].Since; !s.Equal(first.Time) {
			t.Errorf("counters grew, but start at %s instead of %s", s, first.Time)
		}
		if err := r.Pause(t.Context(), time.Now(), 2*time.Second); err != nil {
			t.Fatal(err)
		}
		r.tick(t)
		r.tick(t)
		if s := r.tick(t).Readings[0].Since; !s.Equal(first.Time) {
			t.Errorf("after a pause counters start at %s instead of %s", s, first.Time)
		}
		for _, joules := range []float64{0, 160} {
			g.set(func(g *gpu) { g.s.Energy = device.Of(joules) })
			for range 3 {
				if s := r.tick(t).Readings[0].Since; !s.Equal(first.Time) {
					t.Errorf("after a single 0 counters start at %s instead of %s", s, first.Time)
				}
			}
		}
		var tick Tick
		for i := range 6 { // the driver was reloaded; the second slow read confirms that
			g.set(func(g *gpu) { g.s.Energy = device.Of(1 + float64(i)) })
			tick = r.tick(t)
		}
		if s := tick.Readings[0].Since; !s.After(first.Time) || tick.Sources[0].Rejected != 2 {
			t.Errorf("counters were reset, but since is %s; %d rejected", s, tick.Sources[0].Rejected)
		}
	})
}

func TestPause(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(2)
		r.tick(t)
		if err := r.Pause(t.Context(), time.Now(), 3*time.Second); err != nil {
			t.Fatal(err)
		}
		if r.m.closes != 1 {
			t.Fatal("the reader is still open")
		}
		for range 3 {
			if tick := r.tick(t); !tick.Paused || len(tick.Readings) != 0 {
				t.Errorf("tick in a pause: %+v", tick)
			}
		}
		r.notices = nil
		wantUp(t, r.tick(t), 0, 1) // at once, and without a false alarm
		if diff := cmp.Diff([]string{"resumed"}, r.notices); diff != "" {
			t.Errorf("notices (-want +got):\n%s", diff)
		}
		if err := r.Pause(t.Context(), time.Now(), time.Hour); err != nil {
			t.Fatal(err)
		}
		r.tick(t)
		if err := r.Pause(t.Context(), time.Now(), 0); err != nil {
			t.Fatal(err)
		}
		wantUp(t, r.tick(t), 0, 1)
	})
}

// A subscriber that stops reading loses old ticks, which are counted, and blocks nothing.
func TestSlowSubscriber(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(1)
		ticks, cancel := r.Subscribe()
		start := time.Now()
		for range defaultBacklog + 5 {
			r.tick(t)
		}
		if took := time.Since(start); took != (defaultBacklog+5)*time.Second {
			t.Errorf("%d ticks took %s", defaultBacklog+5, took)
		}
		cancel()
		var got []time.Duration
		var lost uint64
		for tick := range ticks {
			got = append(got, tick.Time.Sub(start))
			lost = tick.LostTicks
		}
		if len(got) != defaultBacklog || got[0] != 5*time.Second || lost != 4 {
			t.Errorf("got %d ticks from %s on, LostTicks = %d in the last", len(got), got[0], lost)
		}
	})
}

// Run stamps ticks with its clock and stops with its context, releasing the drivers.
func TestRun(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(1)
		ticks, cancel := r.Subscribe()
		defer cancel()
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()
		first := <-ticks
		for i := range 5 {
			tick := <-ticks
			if want := first.Time.Add(time.Duration(i+1) * time.Second); !tick.Time.Equal(want) {
				t.Errorf("tick %d has time %s, want %s", i, tick.Time, want)
			}
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if r.m.closes != 1 {
			t.Error("the reader was not closed")
		}
	})
}

func TestProcessNames(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(1)
		r.cfg.ProcessName = func(pid uint32) string { return fmt.Sprint("name of ", pid) }
		shared := []device.Process{{PID: 7}, {PID: 8, Name: "known"}}
		r.m.devices[0].s.Processes = shared
		got := r.tick(t).Readings[0].Processes
		want := []device.Process{{PID: 7, Name: "name of 7"}, {PID: 8, Name: "known"}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("processes (-want +got):\n%s", diff)
		}
		if shared[0].Name != "" {
			t.Error("the reader's own slice was changed")
		}
	})
}

// A driver that takes a minute to start delays only the first tick, by maxWait.
func TestSlowDiscovery(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(1)
		r.m.listGate = make(chan struct{})
		start := time.Now()
		if tick := r.Tick(t.Context(), start); len(tick.Readings) != 0 || tick.Sources[0].State != "opening" {
			t.Errorf("tick: %+v", tick)
		}
		if took := time.Since(start); took != maxWait {
			t.Errorf("the first tick took %s, want %s", took, maxWait)
		}
		start = time.Now()
		r.Tick(t.Context(), start)
		if took := time.Since(start); took != 0 {
			t.Errorf("the second tick waited %s too", took)
		}
		close(r.m.listGate)
		synctest.Wait()
		wantUp(t, r.tick(t), 0)
	})
}

// A first read that takes longer than the interval raises no alarm and is not repeated.
func TestSlowFirstReading(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(2)
		release := make(chan struct{})
		r.m.devices[0].hang = release
		for range 3 {
			wantUp(t, r.tick(t), 1)
		}
		r.m.devices[0].set(func(g *gpu) { g.hang = nil })
		close(release)
		synctest.Wait()
		wantUp(t, r.tick(t), 0, 1)
		if diff := cmp.Diff([]device.Tier{device.Static, device.Slow}, r.m.devices[0].asked()); diff != "" {
			t.Errorf("tiers (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"test: driver opened", "GPU 0 found", "GPU 1 found"}, r.notices); diff != "" {
			t.Errorf("notices (-want +got):\n%s", diff)
		}
	})
}

// A first read that never returns does raise an alarm.
func TestHungFirstReading(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(1)
		release := make(chan struct{})
		r.m.devices[0].hang = release
		for range 7 {
			r.tick(t)
		}
		r.wantNotice(t, "GPU 0 does not answer", "testRead")
		close(release)
	})
}

// Ticks are never exactly on time: a slightly early tick must not skip the slow read.
func TestSlowTierOfEarlyTick(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(1)
		r.cfg.SlowInterval = r.cfg.Interval
		for range 4 {
			r.Tick(t.Context(), time.Now())
			time.Sleep(r.cfg.Interval - time.Millisecond)
		}
		s := device.Slow
		if diff := cmp.Diff([]device.Tier{device.Static, s, s, s}, r.m.devices[0].asked()); diff != "" {
			t.Errorf("tiers (-want +got):\n%s", diff)
		}
	})
}

// However long the interval, a tick waits at most 5 s for a device.
func TestDeadlineOfLongInterval(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newRig(2)
		r.cfg.Interval = time.Minute
		r.tick(t)
		release := make(chan struct{})
		r.m.devices[0].set(func(g *gpu) { g.hang = release })
		start := time.Now()
		wantUp(t, r.Tick(t.Context(), start), 1)
		if took := time.Since(start); took != maxWait {
			t.Errorf("the tick took %s, want %s", took, maxWait)
		}
		close(release)
	})
}
