package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/health"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// diary ticks for some seconds and returns what was reported, each with its second.
func (r *tenancy) diary(t *testing.T, seconds int) []string {
	t.Helper()
	var told []string
	for range seconds {
		at := int(time.Since(r.start).Seconds())
		r.m.devices[0].set(func(g *gpu) { g.s.Energy = device.Of(100 * float64(at)) })
		tick := r.tick(t)
		for _, c := range tick.Changes {
			told = append(told, fmt.Sprintf("%d finding %s%s ended=%v", at, c.Rule, c.Key, c.Ended))
		}
		for _, e := range tick.Episodes {
			line := fmt.Sprintf("%d %s begins", at, e.Cause)
			if !e.End.IsZero() {
				line = fmt.Sprintf("%d %s took %v", at, e.Cause, e.End.Sub(e.Begin))
			}
			told = append(told, line)
		}
		for _, n := range tick.Tenures {
			line := fmt.Sprintf("%d %s comes", at, n.Name)
			if n.Ended {
				line = fmt.Sprintf("%d %s goes after %.0f s, %.0f J", at, n.Name, n.Allocated, get(n.Energy))
			}
			told = append(told, line)
		}
	}
	return told
}

func (r *tenancy) slowed(yes bool) {
	r.m.devices[0].set(func(g *gpu) {
		g.s.Throttles = []device.Throttle{{Cause: "sw_power_cap", Buckets: device.BucketPower | device.BucketSW, Active: yes}, {Cause: "gpu_idle", Active: true}}
	})
}

// An episode is reported when it begins and when it ends, with its duration; a cause that
// comes and goes is one episode, and idling is none.
func TestEpisodes(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		r.cfg.Owners = nil
		r.slowed(false)
		var told []string
		for _, s := range []struct {
			active  bool
			seconds int
		}{{false, 5}, {true, 10}, {false, 20}, {true, 5}, {false, 40}} {
			r.slowed(s.active)
			told = append(told, r.diary(t, s.seconds)...)
		}
		if diff := cmp.Diff([]string{"5 sw_power_cap begins", "69 sw_power_cap took 35s"}, told); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// Arrivals and departures are reported once, with the workload's use, and a clean restart
// in between repeats nothing.
func TestTenures(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		dir := t.TempDir()
		r := newTenancy(dir)
		r.give(pod("a"))
		told := r.diary(t, 3)
		r.slowed(true)
		told = append(told, r.diary(t, 3)...)
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		next := newTenancy(dir)
		next.start = r.start
		next.slowed(true)
		next.give(pod("a"))
		told = append(told, next.diary(t, 3)...)
		next.give(pod("b"))
		told = append(told, next.diary(t, 2)...)
		next.give()
		told = append(told, next.diary(t, 2)...)
		// Workload a held the GPU alone before and after the second in between: it is
		// charged for the energy, but not for the time.
		want := []string{"0 a comes", "3 sw_power_cap begins", "9 b comes", "9 a goes after 8 s, 900 J", "11 b goes after 2 s, 200 J"}
		if diff := cmp.Diff(want, told); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if err := next.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// A workload that left while no agent ran, also after a kill, is reported as gone, with its
// use up to the last write of the state.
func TestTenureEndsUnseen(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		dir := t.TempDir()
		r := newTenancy(dir)
		r.give(pod("a"))
		r.diary(t, 5)
		r.View.saved(true)
		r.View.store.close() // as after a kill
		next := newTenancy(dir)
		next.start = r.start
		next.give(pod("b"))
		got := next.diary(t, 3)
		if diff := cmp.Diff([]string{"5 b comes", "5 a goes after 3 s, 300 J"}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// A finding names the holders of the GPU, is in every tick while it lasts, and is reported
// as a change once.
func TestFindings(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		r.give(pod("a"))
		r.diary(t, 2)
		r.m.devices[0].set(func(g *gpu) { g.s.RowRemap.Failure = device.Of(1) })
		if diff := cmp.Diff([]string{"5 finding gpu.row_remap.failed ended=false"}, r.diary(t, 5)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		tick := r.tick(t)
		if len(tick.Findings) != 1 || len(tick.Findings[0].Workloads) != 1 || tick.Findings[0].Workloads[0].Name != "a" || tick.Findings[0].Severity != health.Critical {
			t.Errorf("%+v", tick.Findings)
		}
		if err := r.Pause(t.Context(), time.Now(), time.Minute); err != nil {
			t.Fatal(err)
		}
		if tick := r.tick(t); !tick.Paused || len(tick.Changes) > 0 {
			t.Errorf("paused: %+v", tick.Changes)
		}
	})
}

// An error belongs to the workload whose process caused it, not to the holder of the GPU.
func TestWhoseEvent(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newTenancy("")
		r.give(pod("a"))
		r.whose = map[uint32]workload.Workload{42: pod("thief")}
		r.diary(t, 1)
		f := func(pid uint32, ago time.Duration, want string) {
			t.Helper()
			e := device.Event{Name: device.EventXID, Code: 31, Device: "A", PID: pid, Time: time.Now().Add(-ago)}
			tick := Tick{Time: time.Now(), Readings: r.last.Readings, Events: []device.Event{e}}
			name := ""
			for _, w := range r.happened(&tick)[0].Workloads {
				name += w.Name
			}
			if name != want || len(tick.Hit) != 1 {
				t.Errorf("pid %d, %v ago: %q, want %q", pid, ago, name, want)
			}
		}
		f(42, 0, "thief")
		f(43, 0, "a")
		f(0, 0, "a")
		f(0, time.Hour, "") // before the workload arrived
	})
}

// An error of a partition belongs to its holder, not to all workloads on the GPU.
func TestWhoseEventOfPartition(t *testing.T) {
	v := New(Config{Interval: time.Second})
	v.state = newState("", time.Unix(1, 0))
	part := device.ID{UUID: "M", Parent: "A"}
	v.units = []*unit{{id: device.ID{UUID: "A"}}, {id: part}}
	held := func(name, partition string) Holder { return Holder{Workload: pod(name), Partition: partition} }
	tick := Tick{
		Time: time.Unix(1000, 0), Events: []device.Event{{Name: device.EventXID, Device: "M", Time: time.Unix(1000, 0)}},
		Readings: []Reading{{Sample: device.Sample{ID: device.ID{UUID: "A"}}, Holders: []Holder{held("a", "L"), held("b", "M")}}, {Sample: device.Sample{ID: part}}},
	}
	if got := v.happened(&tick)[0].Workloads; len(got) != 1 || got[0].Name != "b" {
		t.Errorf("%+v", got)
	}
}

// A device whose first read after a restart is slow has not lost its tenant.
func TestTenureOfSlowDevice(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		dir := t.TempDir()
		r := newTenancy(dir)
		r.give(pod("a"))
		r.diary(t, 3)
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		next := newTenancy(dir)
		next.start = r.start
		next.give(pod("a"))
		hang := make(chan struct{})
		next.m.devices[0].set(func(g *gpu) { g.hang = hang })
		time.AfterFunc(1500*time.Millisecond, func() {
			next.m.devices[0].set(func(g *gpu) { g.hang = nil })
			close(hang)
		})
		if got := next.diary(t, 6); len(got) > 0 {
			t.Errorf("%v", got)
		}
		if err := next.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// A slow subscriber loses values but no events, because events are not reported again.
func TestFanoutCarries(t *testing.T) {
	f := Fanout{Backlog: 2}
	ticks, cancel := f.Subscribe()
	const n = 10
	for i := range n {
		t := Tick{
			Time:     time.Unix(int64(i), 0),
			Events:   []device.Event{{Code: 2 * i}, {Code: 2*i + 1}},
			Changes:  []health.Change{{Finding: health.Finding{Rule: fmt.Sprint(i)}}},
			Episodes: []Episode{{Cause: fmt.Sprint(i)}},
			Tenures:  []Tenure{{Holder: Holder{Workload: pod(fmt.Sprint(i))}}},
		}
		if i%2 == 0 {
			t.Hit = [][]workload.Workload{{pod(fmt.Sprint(2 * i))}, {pod(fmt.Sprint(2*i + 1))}}
		}
		f.Publish(t)
	}
	cancel()
	var codes, rules, causes, names []string
	for tick := range ticks {
		for i, e := range tick.Events {
			codes = append(codes, fmt.Sprint(e.Code))
			if i < len(tick.Hit) && len(tick.Hit[i]) > 0 && tick.Hit[i][0].Name != fmt.Sprint(e.Code) {
				t.Errorf("event %d belongs to %s", e.Code, tick.Hit[i][0].Name)
			}
		}
		for _, c := range tick.Changes {
			rules = append(rules, c.Rule)
		}
		for _, e := range tick.Episodes {
			causes = append(causes, e.Cause)
		}
		for _, e := range tick.Tenures {
			names = append(names, e.Name)
		}
	}
	if len(codes) != 2*n || len(rules) != n || len(causes) != n || len(names) != n {
		t.Errorf("%v %v %v %v", codes, rules, causes, names)
	}
	// The carried events are bounded.
	var full Tick
	full.carry(Tick{Events: make([]device.Event, maxEvents), Changes: make([]health.Change, maxEvents)})
	full.carry(Tick{Events: []device.Event{{}}, Changes: []health.Change{{}}})
	if len(full.Events) != maxEvents || len(full.Changes) != maxEvents || len(full.Hit) > maxEvents {
		t.Errorf("%d events, %d changes", len(full.Events), len(full.Changes))
	}
}

// Findings are not reported again by the next process. An error while no agent ran belongs
// to the workload that held the GPU before and after, also if the sums were restarted.
func TestJudgeOverRestart(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		dir := t.TempDir()
		r := newTenancy(dir)
		r.give(pod("a"))
		sick := func(r *tenancy) { r.m.devices[0].set(func(g *gpu) { g.s.RowRemap.Failure = device.Of(1) }) }
		sick(r)
		r.diary(t, 8)
		r.View.saved(true)
		r.View.store.close() // as after a kill
		away := time.Now()
		time.Sleep(time.Minute)
		next := newTenancy(dir)
		next.start = r.start
		next.give(pod("a"))
		sick(next)
		if got := next.diary(t, 20); len(got) > 0 {
			t.Errorf("reported again: %v", got)
		}
		tick := Tick{Readings: next.last.Readings, Events: []device.Event{{Name: device.EventXID, Device: "A", Time: away.Add(time.Second)}}}
		if got := next.happened(&tick)[0].Workloads; len(got) != 1 || got[0].Name != "a" {
			t.Errorf("an error while no agent ran belongs to %+v", got)
		}
	})
}

// Changes that happen while the file is being written are written by the next tick.
func TestNewsIsSaved(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		dir := t.TempDir()
		r := newTenancy(dir)
		r.cfg.SlowInterval = time.Hour
		r.give(pod("a"))
		r.diary(t, 2)
		r.View.saved(true)
		busy := make(chan error, 1)
		r.View.store.writing = busy
		r.m.devices[0].set(func(g *gpu) {
			g.s.Throttles = []device.Throttle{{Cause: "sw_power_cap", Buckets: device.BucketPower, Active: true}}
		})
		r.diary(t, 1)
		busy <- nil
		r.diary(t, 1)
		r.View.saved(true)
		b, err := os.ReadFile(filepath.Join(dir, stateName))
		if err != nil || !strings.Contains(string(b), "sw_power_cap") {
			t.Errorf("%v, %s", err, b)
		}
	})
}
