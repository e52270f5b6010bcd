package sim

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

var update = flag.Bool("update", false, "rewrite testdata")

// has states which optional parts a device has.
type has struct {
	MIG, Utilization, Profile, Fabric, NVLink, TrafficRates bool
	MemorySensor, MemoryPower, AveragePower, Limits         bool
	Fans, PageRetirement, RemapCount                        bool
}

func parts(s *device.Sample) (h has) {
	h.MIG = s.Modes.MIG.OK()
	h.Utilization = s.Utilization.Compute.OK() && s.UtilizationPeak.Compute.OK()
	h.Profile = s.Profile.SMActive.OK() || s.Profile.Pipes != nil
	h.Fabric = s.Fabric.State.OK()
	for _, c := range s.Interconnects {
		h.NVLink = h.NVLink || c.Type == "nvlink"
		h.TrafficRates = h.TrafficRates || c.TXRate.OK() || c.RXRate.OK()
	}
	for _, temperature := range s.Temperatures {
		h.MemorySensor = h.MemorySensor || temperature.Sensor == "memory"
		for _, l := range temperature.Limits {
			h.Limits = h.Limits || l.Limit.OK() && l.Margin.OK()
		}
	}
	for _, p := range s.Powers {
		h.MemoryPower = h.MemoryPower || p.Scope == "memory"
		h.AveragePower = h.AveragePower || p.Scope == "gpu" && p.Average.OK()
	}
	h.Fans = s.Fans != nil
	h.PageRetirement = s.PageRetirement.Pending.OK()
	h.RemapCount = s.RowRemap.Uncorrected.OK() && s.RowRemap.Pending.OK()
	return h
}

// Catches a reading that the real board does not have, or a missing one that it has.
func TestAbsentStaysAbsent(t *testing.T) {
	f := func(model string, index int, want has) {
		t.Helper()
		n, _ := newNode(t, Config{Model: model})
		s := read(t, devices(t, n)[index])
		if diff := cmp.Diff(want, parts(&s)); diff != "" {
			t.Errorf("%s, device %d (-want +got):\n%s", model, index, diff)
		}
	}
	hopper := has{
		MIG: true, Utilization: true, Profile: true, Fabric: true, NVLink: true, TrafficRates: true,
		MemorySensor: true, MemoryPower: true, AveragePower: true, Limits: true, RemapCount: true,
	}
	blackwell := hopper
	blackwell.MemoryPower = false
	f("h100", 0, hopper)
	f("h200", 0, hopper)
	f("b200", 0, blackwell)
	f("a100", 0, has{MIG: true, Utilization: true, NVLink: true, MemorySensor: true, Limits: true, RemapCount: true})
	f("l40s", 0, has{Utilization: true, AveragePower: true, Limits: true, RemapCount: true})
	f("l40s", 7, has{Utilization: true, AveragePower: true, Limits: true, RemapCount: true})

	// A partitioned GPU, and one of its partitions.
	cut := hopper
	cut.Utilization, cut.NVLink, cut.RemapCount = false, false, false
	f("h200", 7, cut)
	f("h200", 8, has{Profile: true})
	f("a100", 8, has{})
}

// shown returns the paths present in a sample, such as memory.used, from its JSON form,
// which omits absent values. For lists it includes what distinguishes their elements.
func shown(t *testing.T, s device.Sample) string {
	t.Helper()
	raw, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	var paths []string
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for _, key := range []string{"sensor", "scope", "type", "rail", "cause", "operation"} {
				if name, ok := v[key]; ok {
					path += "=" + name.(string)
					delete(v, key)
				}
			}
			if path == "id" || path == "slice" {
				return
			}
			for key, x := range v {
				walk(path+"."+key, x)
			}
		case []any:
			for _, x := range v {
				walk(path, x)
			}
		default:
			paths = append(paths, strings.TrimPrefix(path, "."))
		}
	}
	for key, v := range all {
		walk(key, v)
	}
	slices.Sort(paths)
	return strings.Join(slices.Compact(paths), "\n")
}

// Catches a simulated device that shows what its vendor's driver does not provide, or no
// longer shows what it does. The expected paths are in testdata/<model>.txt.
func TestShown(t *testing.T) {
	f := func(model, file string, index int) {
		t.Helper()
		n, clock := newNode(t, Config{Model: model})
		clock.up = time.Hour
		got := shown(t, read(t, devices(t, n)[index])) + "\n"
		path := filepath.Join("testdata", file+".txt")
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
			t.Errorf("%s (-want +got), rewrite it with -update:\n%s", path, diff)
		}
	}
	f("mi300x", "mi300x", 0)
	f("mi300x", "mi300x-partition", 8)
	f("gaudi3", "gaudi3", 0)
	f("p150a", "p150a", 0)
	f("v6e", "v6e", 0)
	f("max1550", "max1550", 0)
	f("trn2", "trn2", 0)
	f("trn2", "trn2-partition", 1)
}

// Catches a partition that shows a sensor of its parent.
func TestPartition(t *testing.T) {
	n, clock := newNode(t, Config{Model: "a100"})
	clock.up = time.Hour
	p := devices(t, n)[11] // the idle partition
	want := device.Sample{
		ID:    p.ID(),
		Slice: device.Slice{Held: 1, Of: 7},
		Memory: device.Memory{
			Used: device.Of(3988 * mib), Free: device.Of(5740 * mib), Reserved: device.Of(0), Total: device.Of(9728 * mib),
		},
		Processes: []device.Process{{PID: 4200730, Name: "python3", Type: "compute", MemoryUsed: device.Of(3979 * mib)}},
	}
	if diff := cmp.Diff(want, read(t, p)); diff != "" {
		t.Errorf("Read (-want +got):\n%s", diff)
	}
}

// Catches a cause in a bucket that the contract does not assign to it.
func TestThrottleBuckets(t *testing.T) {
	n, _ := newNode(t, Config{})
	const power, thermal, sw, hw = device.BucketPower, device.BucketThermal, device.BucketSW, device.BucketHW
	want := []device.Throttle{
		{Cause: "gpu_idle", Active: true},
		{Cause: "applications_clocks_setting", Buckets: sw},
		{Cause: "sw_power_cap", Buckets: power | sw},
		{Cause: "hw_slowdown", Buckets: hw},
		{Cause: "sync_boost", Buckets: sw},
		{Cause: "sw_thermal_slowdown", Buckets: thermal | sw},
		{Cause: "hw_thermal_slowdown", Buckets: thermal | hw},
		{Cause: "hw_power_brake_slowdown", Buckets: power | hw},
		{Cause: "display_clock_setting", Buckets: sw},
	}
	if diff := cmp.Diff(want, read(t, devices(t, n)[4]).Throttles); diff != "" {
		t.Errorf("an idle GPU (-want +got):\n%s", diff)
	}
}

// counters returns every counter of s by name.
func counters(s *device.Sample) map[string]device.Value {
	c := map[string]device.Value{
		"energy": s.Energy, "replays": s.PCIe.Replays,
		"rows corrected": s.RowRemap.Corrected, "rows uncorrected": s.RowRemap.Uncorrected,
	}
	for _, t := range s.ThrottleTimes {
		c["throttle "+t.Cause] = t.Seconds
	}
	for _, i := range s.Interconnects {
		c[i.Type+" tx"], c[i.Type+" rx"] = i.TX, i.RX
		for _, e := range i.Errors {
			c[i.Type+" "+e.Type] = e.Count
		}
		for _, l := range i.Links {
			c[fmt.Sprintf("%s %d tx", i.Type, l.Index)], c[fmt.Sprintf("%s %d rx", i.Type, l.Index)] = l.TX, l.RX
		}
	}
	for _, e := range s.ECC {
		c[e.Type+" "+e.Lifetime] = e.Count
	}
	c["heartbeat"], c["operations"] = s.Heartbeat, s.Runtime.Operations
	for _, e := range s.Resets {
		c["resets "+e.Type] = e.Count
	}
	for _, e := range s.Runtime.Executions {
		c["executions "+e.Type] = e.Count
	}
	for _, l := range s.Runtime.Latencies {
		c["latency "+l.Operation], c["latency of "+l.Operation] = device.Of(float64(l.Count)), device.Of(l.Seconds)
	}
	return c
}

// checkOrder reads every GPU of n at two times, even while it is lost, and reports counters
// that decreased in between.
func checkOrder(t *testing.T, n *node, a, b time.Duration) {
	t.Helper()
	if a > b {
		a, b = b, a
	}
	samples := map[device.ID]func(time.Duration) device.Sample{}
	for _, g := range n.gpus {
		samples[g.id] = g.sample
		for _, p := range g.partitions {
			samples[p.id] = p.sample
		}
	}
	for id, sample := range samples {
		before, after := sample(a), sample(b)
		now := counters(&after)
		for name, v := range counters(&before) {
			was, _ := v.Get()
			if is, _ := now[name].Get(); is < was {
				t.Errorf("%v: %s fell from %v at %v to %v at %v", id, name, was, a, is, b)
			}
		}
		var g device.Guard
		g.Believe(before, true, time.Unix(0, 0).Add(a))
		g.Believe(after, true, time.Unix(0, 0).Add(b))
		if g.Rejected > 0 {
			t.Errorf("%v looks reset between %v and %v", id, a, b)
		}
	}
}

// Catches a counter that decreases: within the script, across its end, or by rounding.
func TestCountersNeverFall(t *testing.T) {
	whole, _ := newNode(t, Config{})
	some, _ := newNode(t, Config{Model: Mixed})
	r := rand.New(rand.NewPCG(1, 2))
	const month = 30 * 24 * time.Hour
	for i := range 300 {
		n := whole
		if i%2 == 0 {
			n = some
		}
		a := time.Duration(r.Int64N(int64(month)))
		checkOrder(t, n, a, time.Duration(r.Int64N(int64(month))))
		checkOrder(t, n, a, a+time.Duration(r.Int64N(1000))) // nanoseconds
		end := a.Truncate(period * time.Second)
		checkOrder(t, n, end-1, end)
		second := a.Truncate(time.Second)
		checkOrder(t, n, second-1, second)
	}
}

func FuzzCountersNeverFall(f *testing.F) {
	f.Add(int64(period*time.Second-1), int64(period*time.Second))
	n, _ := newNode(f, Config{Model: Mixed})
	f.Fuzz(func(t *testing.T, a, b int64) {
		const decade = int64(10 * 365 * 24 * time.Hour)
		checkOrder(t, n, time.Duration(uint64(a)%uint64(decade)), time.Duration(uint64(b)%uint64(decade)))
	})
}

// Catches an energy counter, or NVLink bytes, that contradict their gauges.
func TestCountersAreTheIntegralOfGauges(t *testing.T) {
	const from, to = 29*time.Minute + 300*time.Millisecond, 52 * time.Minute // across the end of the script
	step := 250 * time.Millisecond
	if testing.Short() {
		step *= 2
	}
	near := func(t *testing.T, what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 0.01*math.Abs(want) {
			t.Errorf("%s: the counter grew by %v, the gauge by %v", what, got, want)
		}
	}
	for _, model := range Models() {
		n, _ := newNode(t, Config{Model: model, Seed: 3})
		for i, g := range n.gpus {
			if s := g.sample(from); !s.Energy.OK() || g.id.Vendor != "nvidia" && i > 0 {
				continue // no such counter, or the role was already checked
			}
			var joules, averaged, bytes float64
			for up := from; up < to; up += step {
				s := g.sample(up)
				joules += value(s.Powers[0].Draw()) * step.Seconds()
				averaged += value(s.Powers[0].Average) * step.Seconds()
				if len(s.Interconnects) > 1 {
					bytes += value(s.Interconnects[1].TXRate) * step.Seconds()
				}
			}
			first, last := g.sample(from), g.sample(to)
			name := fmt.Sprintf("%s GPU %d", model, g.id.Index)
			energy := value(last.Energy) - value(first.Energy)
			near(t, name+" energy", energy, joules)
			if averaged > 0 {
				near(t, name+" average power", energy, averaged)
			}
			if bytes > 0 {
				near(t, name+" NVLink", value(last.Interconnects[1].TX)-value(first.Interconnects[1].TX), bytes)
			}
		}
	}
}

// value returns v, or 0 if it is absent.
func value(v device.Value) float64 {
	f, _ := v.Get()
	return f
}

// Catches a reading that no hardware gives, in any second of any model's script.
func TestReadingsArePossible(t *testing.T) {
	for _, model := range Models() {
		n, clock := newNode(t, Config{Model: model, Seed: 11})
		step := time.Duration(len(n.gpus)) * 500 * time.Millisecond
		for clock.up = 0; clock.up < period*time.Second; clock.up += step {
			for _, d := range devices(t, n) {
				s := read(t, d)
				if problem := impossible(&s); problem != "" {
					t.Fatalf("%s, %v, at %v: %s", model, d.ID(), clock.up, problem)
				}
			}
		}
	}
}

func impossible(s *device.Sample) string {
	e, p := s.Utilization, s.Profile
	ratios := []device.Value{
		e.Compute, e.Memory, e.Encoder, e.Decoder, e.JPEG, e.OFA, s.UtilizationPeak.Compute, s.UtilizationPeak.Memory,
		p.EngineActive, p.SMActive, p.SMOccupancy, p.DRAMActive, s.MemoryUtilization(), s.Memory.BAR1Used.Ratio(s.Memory.BAR1Total),
	}
	for _, pipe := range append(p.Pipes, p.PipeDetail...) {
		ratios = append(ratios, pipe.Active)
	}
	for _, c := range s.Clocks {
		ratios = append(ratios, c.Frequency.Ratio(c.Limit))
	}
	for _, i := range s.Interconnects {
		ratios = append(ratios, i.TXRate.Ratio(i.BandwidthLimit), i.RXRate.Ratio(i.BandwidthLimit))
	}
	for _, power := range s.Powers {
		ratios = append(ratios, power.Draw().Ratio(power.Enforced()), power.Utilization)
	}
	var held float64
	for _, process := range s.Processes {
		ratios = append(ratios, process.Utilization, process.Occupancy)
		held += value(process.MemoryUsed)
		if process.PID <= 4194304 {
			return fmt.Sprintf("pid %d may be a real one", process.PID)
		}
	}
	for i, r := range ratios {
		if v := value(r); v < 0 || v > 1 {
			return fmt.Sprintf("ratio %d is %v", i, v)
		}
	}
	m := s.Memory
	switch {
	case m.Free.OK() && value(m.Used)+value(m.Free)+value(m.Reserved) != value(m.Total) || value(m.Free) < 0:
		return fmt.Sprintf("memory does not add up: %+v", m)
	case held > value(m.Used):
		return "processes hold more than is used"
	case s.UtilizationPeak.Compute.OK() && value(s.UtilizationPeak.Compute) < value(e.Compute):
		return "utilization is above its peak"
	}
	for _, sensor := range s.Temperatures {
		for _, l := range sensor.Limits {
			above := l.Limit.OK() && value(sensor.Value) > value(l.Limit)
			if above || l.Margin.OK() && value(l.Margin) < 0 {
				return fmt.Sprintf("%s is too hot for %s: %+v", sensor.Sensor, l.Event, sensor)
			}
		}
	}
	return ""
}
