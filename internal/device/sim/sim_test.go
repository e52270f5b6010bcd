package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

var boot = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// script is a clock that tests set.
type script struct{ up time.Duration }

func (s *script) now() time.Time { return boot.Add(s.up) }

func newNode(t testing.TB, cfg Config) (*node, *script) {
	t.Helper()
	var clock script
	cfg.Now, cfg.Start = clock.now, boot
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r.(*node), &clock
}

func devices(t testing.TB, n *node) []device.Device {
	t.Helper()
	devices, err := n.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return devices
}

func read(t testing.TB, d device.Device) device.Sample {
	t.Helper()
	s, err := d.Read(t.Context(), device.Fast)
	if err != nil {
		t.Fatalf("%v: %v", d.ID(), err)
	}
	return s
}

// Catches a sample that depends on earlier reads, on their order, or on anything but Config
// and time.
func TestSameTimeSameSample(t *testing.T) {
	cfg := Config{Seed: 7}
	a, clockA := newNode(t, cfg)
	b, clockB := newNode(t, cfg)
	inA, inB := devices(t, a), devices(t, b)
	times := []time.Duration{0, time.Second - 1, 17 * time.Minute, period * time.Second, 30 * 24 * time.Hour}
	samples := map[time.Duration][]device.Sample{}
	for _, clockA.up = range times {
		for _, d := range inA {
			samples[clockA.up] = append(samples[clockA.up], read(t, d))
		}
	}
	rand.Shuffle(len(times), func(i, j int) { times[i], times[j] = times[j], times[i] })
	for _, clockB.up = range times {
		var got []device.Sample
		for _, d := range inB {
			got = append(got, read(t, d))
		}
		if diff := cmp.Diff(samples[clockB.up], got); diff != "" {
			t.Errorf("at %v, in the order %v (-first +second):\n%s", clockB.up, times, diff)
		}
	}
}

// Catches shared state: run with -race.
func TestDevicesAreReadAtOnce(t *testing.T) {
	n, _ := newNode(t, Config{})
	var wg sync.WaitGroup
	for _, d := range devices(t, n) {
		wg.Go(func() {
			if s, err := d.Read(context.Background(), device.Static); err != nil || s.ID != d.ID() {
				t.Errorf("Read = %v, %v, want a sample of %v", s.ID, err, d.ID())
			}
		})
	}
	wg.Wait()
}

// Catches two nodes of a fleet that cannot be distinguished, and IDs that are not stable.
func TestIdentity(t *testing.T) {
	ids := func(seed uint64) (ids []device.ID) {
		n, _ := newNode(t, Config{Seed: seed, GPUs: 16})
		for _, d := range devices(t, n) {
			ids = append(ids, d.ID())
		}
		return ids
	}
	first := ids(1)
	if diff := cmp.Diff(first, ids(1)); diff != "" {
		t.Errorf("same seed, other IDs (-first +second):\n%s", diff)
	}
	form := regexp.MustCompile(`^(GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen := map[string]bool{}
	for _, id := range append(first, ids(2)...) {
		if seen[id.UUID] || !form.MatchString(id.UUID) {
			t.Errorf("UUID %s is not valid or not unique", id.UUID)
		}
		seen[id.UUID] = true
		if (id.Parent != "") != strings.HasPrefix(id.UUID, "MIG-") || id.Parent != "" && !seen[id.Parent] {
			t.Errorf("%s follows no parent %q", id.UUID, id.Parent)
		}
	}

	parent := device.ID{Vendor: "nvidia", UUID: first[7].UUID, Index: 7, Model: "NVIDIA H200", PCI: "0000:db:00.0"}
	part := func(i int, profile string) device.ID {
		id := parent
		id.UUID, id.Parent, id.Profile = first[i].UUID, parent.UUID, profile
		return id
	}
	want := []device.ID{parent, part(8, "3g.71gb"), part(9, "2g.35gb"), part(10, "1g.18gb"), part(11, "1g.18gb")}
	if diff := cmp.Diff(want, first[7:12]); diff != "" {
		t.Errorf("GPU 7 (-want +got):\n%s", diff)
	}
}

// Catches a node that ignores the requested size, or roles that do not repeat.
func TestSize(t *testing.T) {
	f := func(gpus, want int) {
		t.Helper()
		n, _ := newNode(t, Config{GPUs: gpus})
		if got := len(devices(t, n)); got != want {
			t.Errorf("%d GPUs have %d devices, want %d", gpus, got, want)
		}
	}
	f(0, 8+4)
	f(1, 1)
	f(7, 7)
	f(16, 2*(8+4))
	own := func(model string, want int) {
		t.Helper()
		n, _ := newNode(t, Config{Model: model})
		if got := len(devices(t, n)); got != want {
			t.Errorf("a node of %s has %d devices, want %d", model, got, want)
		}
	}
	own("mi300x", 8+8)
	own("gaudi3", 8)
	own("p150a", 4)
	own("v6e", 4)
	own("max1550", 4)
	own("trn2", 16*(1+8))
}

// Catches two devices of a mixed machine with the same identity, and a missing vendor.
func TestMixed(t *testing.T) {
	n, clock := newNode(t, Config{Model: Mixed, Seed: 3})
	clock.up = time.Hour
	vendors, seen := map[string]int{}, map[string]bool{}
	want, placeless := map[string]int{}, map[string]bool{}
	for _, group := range mix {
		m := models[group.model]
		want[m.vendor] += len(group.roles)
		placeless[m.vendor] = m.buses == nil
	}
	for name, m := range models {
		if want[m.vendor] == 0 {
			t.Errorf("the mixed machine has no device of %s: add %s to mix", m.vendor, name)
		}
	}
	pids := map[uint32]string{}
	for _, d := range devices(t, n) {
		s := read(t, d)
		if s.ID != d.ID() || seen[s.ID.UUID] || s.ID.Vendor == "" || s.ID.Model == "" || s.ID.PCI == "" && !placeless[s.ID.Vendor] {
			t.Errorf("%+v is not unique", s.ID)
		}
		seen[s.ID.UUID] = true
		if s.ID.Parent == "" {
			vendors[s.ID.Vendor]++
		}
		for _, p := range s.Processes {
			if on := pids[p.PID]; on != "" && on != s.ID.Physical() {
				t.Errorf("process %d is on %s and on %s", p.PID, on, s.ID.Physical())
			}
			pids[p.PID] = s.ID.Physical()
		}
	}
	if diff := cmp.Diff(want, vendors); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
}

func TestNewErrors(t *testing.T) {
	f := func(cfg Config, want string) {
		t.Helper()
		if _, err := New(cfg); err == nil || err.Error() != want {
			t.Errorf("New(%+v): %v, want %s", cfg, err, want)
		}
	}
	f(Config{Model: "h300"}, `unknown simulated model "h300", want one of `+strings.Join(Models(), ", "))
	f(Config{GPUs: -1}, "cannot simulate -1 GPUs")
}

// Catches a zero Config that panics, or a node that has been up since year 1.
func TestDefaults(t *testing.T) {
	r, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	if up := r.(*node).uptime(); up > time.Minute {
		t.Errorf("a new node has been up for %v", up)
	}
}

// Catches a Read that continues after its deadline.
func TestCancelled(t *testing.T) {
	n, _ := newNode(t, Config{})
	all := devices(t, n)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.Devices(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Devices: %v", err)
	}
	for _, d := range all {
		if _, err := d.Read(ctx, device.Fast); !errors.Is(err, context.Canceled) {
			t.Errorf("Read of %v: %v", d.ID(), err)
		}
	}
}

// Catches a GPU that fails off schedule, takes others with it, or has a new Device when it
// returns.
func TestLostAndReturned(t *testing.T) {
	n, clock := newNode(t, Config{})
	all := devices(t, n)
	failing := all[6]
	f := func(up time.Duration, lost bool) {
		t.Helper()
		clock.up = up
		want := all
		if lost {
			want = append(append([]device.Device{}, all[:6]...), all[7:]...)
		}
		got := devices(t, n)
		same := len(got) == len(want)
		for i := 0; same && i < len(want); i++ {
			same = got[i] == want[i]
		}
		if !same {
			t.Errorf("at %v: %d devices, want the same %d", up, len(got), len(want))
		}
		s, err := failing.Read(t.Context(), device.Fast)
		if errors.Is(err, device.ErrLost) != lost || lost && !cmp.Equal(s, device.Sample{}) {
			t.Errorf("at %v: Read = %v", up, err)
		}
	}
	f(0, false)
	f(5*time.Minute-1, false)
	f(5*time.Minute, true)
	f(6*time.Minute-1, true)
	f(6*time.Minute, false)
	f(15*time.Minute, true)
	f(16*time.Minute, false)
	f(30*24*time.Hour+5*time.Minute, true)
	f(-time.Second, false) // before boot
}

// Catches noise that jumps, especially at the end of the script, or leaves its range.
func TestNoise(t *testing.T) {
	f := func(every int) {
		t.Helper()
		low, high := 1.0, -1.0
		for s := range period {
			v, next := noise(9, s, every), noise(9, (s+1)%period, every)
			if v < -1 || v > 1 || max(v-next, next-v) > 3/float64(every) {
				t.Errorf("every %d s: %v at second %d, then %v", every, v, s, next)
			}
			low, high = min(low, v), max(high, v)
		}
		if low > -0.8 || high < 0.8 {
			t.Errorf("every %d s: only from %v to %v", every, low, high)
		}
	}
	f(30)
	f(10)
}

// A node that has been up for a month must answer as fast as a new one.
func BenchmarkRead(b *testing.B) {
	for name, up := range map[string]time.Duration{"new": time.Minute, "30days": 30*24*time.Hour + time.Minute} {
		b.Run(name, func(b *testing.B) {
			n, clock := newNode(b, Config{})
			clock.up = up
			all := devices(b, n)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				read(b, all[i%len(all)])
			}
		})
	}
}

func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		newNode(b, Config{})
	}
}

// Catches a simulated pod that holds a device that does not exist, or a process without a
// tenant.
func TestTenants(t *testing.T) {
	for _, model := range Models() {
		cfg := Config{Model: model, GPUs: 16, Seed: 7, Now: time.Now, Start: time.Now().Add(-time.Minute)}
		tenants, err := Tenants(cfg)
		if err != nil {
			t.Fatal(err)
		}
		r, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		where := map[uint32][]string{}
		for _, d := range devices(t, r.(*node)) {
			for _, p := range read(t, d).Processes {
				where[p.PID] = append(where[p.PID], d.ID().UUID)
			}
		}
		uids := map[string]string{}
		for _, tenant := range tenants {
			if on := where[tenant.PID]; !slices.Contains(on, tenant.Device) {
				t.Errorf("%s: %s has process %d on %s, which is on %q", model, tenant.Pod.Name, tenant.PID, tenant.Device, on)
			}
			delete(where, tenant.PID)
			if other, ok := uids[tenant.Pod.Name]; ok && other != tenant.Pod.UID {
				t.Errorf("%s: two pods are called %s", model, tenant.Pod.Name)
			}
			uids[tenant.Pod.Name] = tenant.Pod.UID
		}
		if len(where) > 0 {
			t.Errorf("%s: processes without a tenant: %v", model, where)
		}
	}
}
