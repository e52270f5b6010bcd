package sim

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/device"
)

func planned(t *testing.T, groups ...Group) (*node, *testClock) {
	t.Helper()
	clock := &testClock{}
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r, err := New(Config{Groups: groups, Seed: 7, Start: start, Now: func() time.Time { return start.Add(clock.up) }})
	if err != nil {
		t.Fatal(err)
	}
	return r.(*node), clock
}

type testClock struct{ up time.Duration }

// Catches counters that fall or jump where a tenant comes or goes, and a device that works
// without a tenant.
func TestStays(t *testing.T) {
	stays := []Stay{
		{From: 10 * time.Minute, Until: 40 * time.Minute, Job: Job{ID: "1"}},
		{From: 40 * time.Minute, Until: 70 * time.Minute, Job: Job{ID: "2"}},
		{From: 90 * time.Minute, Job: Job{ID: "3"}},
	}
	n, clock := planned(t, Group{Model: "h100", Devices: 2, Role: "training", Stays: stays})
	for _, g := range n.gpus {
		var before device.Sample
		var guard device.Guard
		for clock.up = 0; clock.up < 2*time.Hour; clock.up += 7 * time.Second {
			s := read(t, g)
			want := 0
			for i, stay := range stays {
				if stay.There(clock.up) {
					want = g.pid() + i
				}
			}
			got := 0
			if len(s.Processes) > 0 {
				got = int(s.Processes[0].PID)
			}
			if got != want || (value(s.Utilization.Compute) > 0) != (want > 0) {
				t.Fatalf("at %v process %d is on the device, want %d; busy %v", clock.up, got, want, s.Utilization.Compute)
			}
			guard.Believe(s, true, time.Unix(0, 0).Add(clock.up))
			joules := value(s.Energy) - value(before.Energy)
			if clock.up > 0 && (joules < 7*60 || joules > 7*710 || guard.Rejected > 0) {
				t.Fatalf("at %v the energy grew by %v J in 7 s", clock.up, joules)
			}
			before = s
		}
	}
	tenants, err := Tenants(Config{Groups: []Group{{Model: "h100", Devices: 1, Role: "training", Stays: stays, Thief: &Stay{Job: Job{ID: "9"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, x := range tenants {
		if x.There(50 * time.Minute) {
			got = append(got, x.Job.ID)
		}
	}
	if d := cmp.Diff([]string{"2", "9"}, got); d != "" || !tenants[3].Stolen {
		t.Errorf("tenants after 50 minutes (-want +got):\n%s", d)
	}
}

// Catches a thief that cannot be distinguished from its victim.
func TestThief(t *testing.T) {
	n, clock := planned(t, Group{Model: "h100", Devices: 1, Role: "inference", Stays: []Stay{{}}, Thief: &Stay{From: time.Hour}})
	f := func(up time.Duration, want int) {
		t.Helper()
		clock.up = up
		s := read(t, n.gpus[0])
		sum, busy := 0.0, 0.0
		for _, p := range s.Processes {
			sum += value(p.MemoryUsed)
			busy += value(p.Utilization)
		}
		if len(s.Processes) != want || sum > value(s.Memory.Used) || sum < 0.95*value(s.Memory.Used) || busy > value(s.Utilization.Compute)+0.01 {
			t.Errorf("at %v: %d processes with %v of %v bytes, busy %v of %v", up, len(s.Processes), sum, value(s.Memory.Used), busy, s.Utilization.Compute)
		}
	}
	f(30*time.Minute, 1)
	f(2*time.Hour, 2)
}

// Catches errors that are reported twice, not at all, or before the onset.
func TestSick(t *testing.T) {
	const onset = time.Hour
	n, clock := planned(t, Group{Model: "h200", Devices: 1, Role: "sick", Onset: onset, Stays: []Stay{{}}})
	var mu sync.Mutex
	var heard []device.Event
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		_ = n.Events(ctx, func(e device.Event) {
			mu.Lock()
			defer mu.Unlock()
			heard = append(heard, e)
		})
	})
	listening := func() bool {
		n.xids.mu.Lock()
		defer n.xids.mu.Unlock()
		return n.xids.emit != nil
	}
	await.True(t, "a listener", listening)
	g := n.gpus[0]
	for clock.up = 0; clock.up < 4*time.Hour; clock.up += 4 * time.Minute {
		s := read(t, g)
		if ill := clock.up > onset+remapAt; (value(s.RowRemap.Pending) == 1) != ill {
			t.Errorf("at %v a row waits to be remapped: %v", clock.up, s.RowRemap.Pending)
		}
	}
	cancel()
	done.Wait()
	read(t, g) // no event is emitted after Events returned
	var codes []int
	for _, e := range heard {
		codes = append(codes, e.Code)
		if e.Time.Before(n.start.Add(onset)) || e.Device != g.id.UUID || e.Name != device.EventXID {
			t.Errorf("heard %+v", e)
		}
	}
	if d := cmp.Diff([]int{63, 94, 94, 94, 94, 94}, codes); d != "" {
		t.Errorf("codes (-want +got):\n%s", d)
	}
}

// Catches an invalid plan that is silently changed.
func TestBadGroups(t *testing.T) {
	f := func(g Group, want string) {
		t.Helper()
		_, err := New(Config{Groups: []Group{g}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", g, err, want)
		}
	}
	f(Group{Model: "h1", Role: "idle"}, "unknown simulated model")
	f(Group{Model: "h100", Role: "sleeping"}, "unknown role")
	f(Group{Model: "h100", Role: "partitioned", Stays: []Stay{{}}}, "are partitioned")
	f(Group{Model: "trn2", Role: "idle", Stays: []Stay{{}}}, "are partitioned")
	f(Group{Model: "h100", Role: "idle", Stays: []Stay{{}, {From: time.Hour}}}, "stay 0")
	f(Group{Model: "h100", Role: "idle", Stays: []Stay{{Until: time.Hour}, {From: time.Minute}}}, "stay 1")
	f(Group{Model: "h100", Role: "idle", Stays: []Stay{{From: time.Millisecond}}}, "stay 0")
}
