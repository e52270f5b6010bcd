//go:build linux

package nvidia

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
)

// clock is a manually advanced clock that starts at the real time, because the fake driver
// stamps its samples with the real time.
type clock struct {
	mu    sync.Mutex
	t     time.Time
	moved time.Duration
}

func newClock() *clock { return &clock{t: time.Now()} }

// advanceBoth advances the clock and that of the fake driver, or sets both back.
func (c *clock) advanceBoth(t *testing.T, h *nvmltest.Host, d time.Duration) {
	t.Helper()
	c.advance(d)
	h.Append(t, fmt.Sprintf("clock %d", int(c.moved.Seconds())))
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
	c.moved += d
}

func openFake(t *testing.T, h *nvmltest.Host, c *clock) *Reader {
	t.Helper()
	r, err := Open(t.Context(), Options{Library: h.Library, Root: t.TempDir(), Now: c.now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func devices(t *testing.T, r *Reader) []device.Device {
	t.Helper()
	list, err := r.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// readTwice reads all tiers twice, one second apart, because GPM needs two samples.
func readTwice(t *testing.T, d device.Device, c *clock) device.Sample {
	t.Helper()
	if _, err := d.Read(t.Context(), device.Static); err != nil {
		t.Fatal(err)
	}
	c.advance(time.Second)
	s, err := d.Read(t.Context(), device.Fast)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var update = flag.Bool("update", false, "rewrite the golden files")

// Every value of a Sample is compared with the answers of the scripted driver. The golden
// file is reviewed like code: make golden rewrites it.
func TestGoldenEverything(t *testing.T) {
	const golden = "testdata/everything.json"
	got, err := json.MarshalIndent(readEverything(t), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
		t.Errorf("Sample (-want +got):\n%s", diff)
	}
}

// readEverything reads a GPU that has everything a Sample can have.
func readEverything(t *testing.T) device.Sample {
	t.Helper()
	h := nvmltest.New(t, `
gpu 0 util 40 24
gpu 0 util-samples[4] 90
gpu 0 enc 5
gpu 0 fans 30 40
gpu 0 fan-rpm 1500 2000
gpu 0 throttle 0x844
gpu 0 remapped-rows 3 1 1 0
gpu 0 retired-pages 2 1 0
gpu 0 ecc-dram 7 0 9 2
gpu 0 pcie-replay 4
gpu 0 recovery 1
gpu 0 numa 1
gpu 0 nvlinks 2
gpu 0 nvlink-state 1 0
gpu 0 nvlink-replay 5 6
gpu 0 nvlink-errors 1 2 11 4 5
process 0 4242 compute 1184890880 74
process 0 4243 graphics na na
process 0 4244 mps 1024 12
`)
	c := newClock()
	list := devices(t, openFake(t, h, c))
	if len(list) != 1 {
		t.Fatalf("found %d devices, want 1", len(list))
	}
	if _, err := list[0].Read(t.Context(), device.Static); err != nil {
		t.Fatal(err)
	}
	c.advanceBoth(t, h, time.Second) // GPM needs two samples, and the division among processes is read again
	got, err := list[0].Read(t.Context(), device.Fast)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestReadTiers(t *testing.T) {
	h := nvmltest.New(t, "")
	c := newClock()
	d := devices(t, openFake(t, h, c))[0]
	first, err := d.Read(t.Context(), device.Static)
	if err != nil {
		t.Fatal(err)
	}
	h.Script(t, "gpu 0 energy 9000000\ngpu 0 temp 70\ngpu 0 max-clocks 1000 1000 1000 1000")
	// A slow value survives a fast read; a fast value does not.
	fast, _ := d.Read(t.Context(), device.Fast)
	if fast.Energy != first.Energy || fast.Temperatures[0].Value != device.Of(70) {
		t.Errorf("fast read: energy %v, edge %v", fast.Energy, fast.Temperatures[0].Value)
	}
	slow, _ := d.Read(t.Context(), device.Slow)
	if slow.Energy != device.Of(9000) || slow.Clocks[0].Limit != device.Of(1980e6) {
		t.Errorf("slow read: energy %v, clock limit %v", slow.Energy, slow.Clocks[0].Limit)
	}
	static, _ := d.Read(t.Context(), device.Static)
	if static.Clocks[0].Limit != device.Of(1e9) {
		t.Errorf("static read: clock limit %v", static.Clocks[0].Limit)
	}
	// A value that the driver stops reporting becomes absent instead of stale.
	h.Script(t, "gpu 0 ret nvmlDeviceGetTotalEnergyConsumption 21")
	if s, _ := d.Read(t.Context(), device.Slow); s.Energy.OK() {
		t.Errorf("energy is still %v", s.Energy)
	}
}

// Fields that a driver skips silently must be absent, not 0.
func TestUntouchedFieldsAreAbsent(t *testing.T) {
	h := nvmltest.New(t, "field 0 270 untouched\nfield 0 82 untouched\nfield 0 186 untouched")
	s, err := devices(t, openFake(t, h, newClock()))[0].Read(t.Context(), device.Slow)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range s.ThrottleTimes {
		if tt.Cause == "hw_thermal_slowdown" {
			t.Errorf("an untouched throttle time is reported as %v", tt.Seconds)
		}
	}
	if s.Temperatures[1].Value.OK() || s.Powers[0].Instant.OK() {
		t.Errorf("untouched fields are reported: memory %v, power %v", s.Temperatures[1].Value, s.Powers[0].Instant)
	}
}

// An idle value of 0 is present; an unsupported value is absent.
func TestZeroIsNotAbsent(t *testing.T) {
	h := nvmltest.New(t, "gpu 0 util 0 0\ngpu 0 memory-temp 0\ngpu 0 memory 100 10 0\ngpu 0 throttle 1")
	s, err := devices(t, openFake(t, h, newClock()))[0].Read(t.Context(), device.Slow)
	if err != nil {
		t.Fatal(err)
	}
	if s.Utilization.Compute != device.Of(0) || s.Memory.Used != device.Of(0) {
		t.Errorf("idle: utilization %v, memory %v", s.Utilization.Compute, s.Memory.Used)
	}
	if s.Temperatures[1].Value.OK() {
		t.Error("a memory sensor that reads 0 is reported")
	}
	if s.Throttled(device.BucketHW|device.BucketSW|device.BucketPower|device.BucketThermal) != device.Of(0) {
		t.Error("an idle GPU is reported as throttled")
	}
	if len(s.Fans) != 0 {
		t.Errorf("a passively cooled board has fans: %v", s.Fans)
	}
}

// An unsupported function costs one call, not one call per tick.
func TestUnsupportedIsAskedOnce(t *testing.T) {
	h := nvmltest.New(t, "gpu 0 ret nvmlDeviceGetUtilizationRates 3")
	d := devices(t, openFake(t, h, newClock()))[0]
	if s, err := d.Read(t.Context(), device.Static); err != nil || s.Utilization.Compute.OK() {
		t.Fatalf("utilization %v, err %v", s.Utilization.Compute, err)
	}
	h.Script(t, "")
	if s, _ := d.Read(t.Context(), device.Slow); s.Utilization.Compute.OK() {
		t.Error("an unsupported function was called again")
	}
}

func TestMIG(t *testing.T) {
	h := nvmltest.New(t, `
gpus 2
mig 1 0 MIG-aaaa 1 0 3 3 71424 956170240
mig 1 2 MIG-bbbb 5 0 2 1 33280 1000
gpm-mig 1 1 2 89.5
gpm-mig 1 5 2 12.5
process 1 510 compute 901775360 na 1 0
`)
	c := newClock()
	r := openFake(t, h, c)
	list := devices(t, r)
	var ids []device.ID
	for _, d := range list {
		ids = append(ids, d.ID())
	}
	gpu := func(i int) device.ID {
		return device.ID{Vendor: "nvidia", UUID: fmt.Sprintf("GPU-00000000-0000-4000-8000-%012x", i), Index: i, Model: "NVIDIA H200", PCI: fmt.Sprintf("0000:%02x:00.0", 0x10+8*i)}
	}
	part := func(uuid, profile string) device.ID {
		id := gpu(1)
		id.Parent, id.UUID, id.Profile = id.UUID, uuid, profile
		return id
	}
	want := []device.ID{gpu(0), gpu(1), part("MIG-aaaa", "3g.71gb"), part("MIG-bbbb", "1c.2g.35gb")}
	if diff := cmp.Diff(want, ids); diff != "" {
		t.Fatalf("IDs (-want +got):\n%s", diff)
	}

	parent := readTwice(t, list[1], c)
	if parent.Utilization.Compute.OK() || parent.Processes != nil || parent.Modes.MIG != device.Of(1) || !parent.Energy.OK() {
		t.Errorf("parent: utilization %v, processes %v, mig %v, energy %v", parent.Utilization.Compute, parent.Processes, parent.Modes.MIG, parent.Energy)
	}
	a, b := readTwice(t, list[2], c), readTwice(t, list[3], c)
	if a.Profile.SMActive != device.Of(0.895) || b.Profile.SMActive != device.Of(0.125) {
		t.Errorf("SM active of the instances: %v and %v", a.Profile.SMActive, b.Profile.SMActive)
	}
	if diff := cmp.Diff([]device.Process{{PID: 510, Type: "compute", MemoryUsed: device.Of(901775360)}}, a.Processes); diff != "" {
		t.Errorf("processes of the instance (-want +got):\n%s", diff)
	}
	if a.Memory.Used != device.Of(956170240) || b.Memory.Used != device.Of(1000) || a.Energy.OK() || len(a.Temperatures) > 0 {
		t.Errorf("an instance has memory %v, energy %v, temperatures %v", a.Memory.Used, a.Energy, a.Temperatures)
	}

	// Schedulers' names for the instances, and their share of the GPU.
	names := [][]string{
		{"MIG-" + gpu(1).UUID + "/1/0", "nvidia1/gi1"},
		{"MIG-" + gpu(1).UUID + "/5/0", "nvidia1/gi5"},
	}
	if diff := cmp.Diff(names, [][]string{a.Aliases, b.Aliases}); diff != "" {
		t.Errorf("aliases (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]device.Slice{{Held: 3, Of: 7}, {Held: 1, Of: 7}}, []device.Slice{a.Slice, b.Slice}); diff != "" {
		t.Errorf("slices (-want +got):\n%s", diff)
	}

	// After MIG is disabled the instances disappear, and values that MIG mode suppresses
	// return.
	h.Script(t, "gpus 2")
	if list := devices(t, r); len(list) != 2 {
		t.Fatalf("%d devices after MIG was turned off", len(list))
	}
	if s, err := list[1].Read(t.Context(), device.Fast); err != nil || !s.Utilization.Compute.OK() {
		t.Errorf("without MIG: utilization %v, err %v", s.Utilization.Compute, err)
	}
	if _, err := list[2].Read(t.Context(), device.Fast); !errors.Is(err, device.ErrLost) {
		t.Errorf("Read of a removed instance: err = %v", err)
	}
}

// Before Hopper, measuring PCIe traffic takes 20 ms per direction: it happens at most every
// 30 s, and not at all if it is disabled.
func TestPCIeThroughputBeforeHopper(t *testing.T) {
	h := nvmltest.New(t, "gpu 0 arch 7\ngpu 0 name A100")
	c := newClock()
	d := devices(t, openFake(t, h, c))[0]
	rate := func() device.Value {
		s, err := d.Read(t.Context(), device.Slow)
		if err != nil || len(s.Interconnects) == 0 {
			t.Fatalf("interconnects %v, err %v", s.Interconnects, err)
		}
		return s.Interconnects[0].TXRate
	}
	if v := rate(); v != device.Of(6962*1024) {
		t.Errorf("rate = %v", v)
	}
	h.Append(t, "gpu 0 pcie-throughput 1 1")
	c.advance(29 * time.Second)
	if v := rate(); v != device.Of(6962*1024) {
		t.Errorf("measured again after 29 s: %v", v)
	}
	c.advance(time.Second)
	if v := rate(); v != device.Of(1024) {
		t.Errorf("not measured again after 30 s: %v", v)
	}

	r, err := Open(t.Context(), Options{Library: h.Library, NoPCIeThroughput: true, Now: c.now})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s, err := devices(t, r)[0].Read(t.Context(), device.Slow)
	if err != nil || len(s.Interconnects) > 0 && s.Interconnects[0].Type == "pcie" {
		t.Errorf("throughput disabled: interconnects %v, err %v", s.Interconnects, err)
	}
}

// Drivers without the power fields report one number, which is an average on some parts.
func TestOldPower(t *testing.T) {
	f := func(model string, arch int, instant, average device.Value) {
		t.Helper()
		h := nvmltest.New(t, fmt.Sprintf("gpu 0 arch %d\ngpu 0 name %s\nfield 0 185 unsupported\nfield 0 186 unsupported", arch, model))
		s, err := devices(t, openFake(t, h, newClock()))[0].Read(t.Context(), device.Fast)
		if err != nil {
			t.Fatal(err)
		}
		if p := s.Powers[0]; p.Instant != instant || p.Average != average {
			t.Errorf("%s: instant %v, average %v", model, p.Instant, p.Average)
		}
	}
	w := device.Of(689.58)
	f("V100", 5, w, device.Value{})
	f("A100", 7, w, device.Value{}) // GA100
	f("A40", 7, device.Value{}, w)
	f("L40S", 8, device.Value{}, w)
}
