package health

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload"
)

var (
	of    = device.Of
	noon  = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	boot  = noon.Add(-24 * time.Hour)
	alice = workload.Workload{ID: "slurm/c/7", Kind: "slurm_job", Name: "train"}
)

// steady is a GPU at full load that is well.
func steady(i int) Device {
	return Device{
		Up: true, Since: boot, Holders: []workload.Workload{alice},
		Sample: device.Sample{
			ID:           device.ID{Vendor: "nvidia", UUID: fmt.Sprintf("GPU-%d", i), Index: i, Model: "H200"},
			Info:         device.Info{VBIOS: "96.1", Firmware: "580"},
			Modes:        device.Modes{ECC: of(1), MIG: of(0)},
			Utilization:  device.Engines{Compute: of(1)},
			Memory:       device.Memory{Used: of(100 << 30), Total: of(140 << 30)},
			Temperatures: []device.Temperature{{Sensor: "edge", Value: of(60), Limits: []device.TemperatureCap{{Event: "slowdown", Limit: of(89)}, {Event: "shutdown", Limit: of(95)}}}},
			Powers:       []device.Power{{Scope: "gpu", Instant: of(700), Limits: []device.PowerLimit{{Type: device.LimitEnforced, Watts: of(700)}}}},
			Clocks:       []device.Clock{{Type: "sm", Frequency: of(1500e6), Limit: of(1980e6)}},
			Throttles:    []device.Throttle{{Cause: "sw_power_cap", Buckets: device.BucketPower | device.BucketSW, Active: true}},
			PCIe:         device.PCIe{Generation: of(5), GenerationMax: of(5), Width: of(16), WidthMax: of(16), Replays: of(0)},
			ECC:          []device.ECC{{Type: "corrected", Lifetime: "volatile", Count: of(0)}, {Type: "uncorrected", Lifetime: "volatile", Count: of(0)}},
			RowRemap:     device.RowRemap{Pending: of(0), Failure: of(0)},
			Processes:    []device.Process{{PID: 42, MemoryUsed: of(100 << 30)}},
		},
	}
}

// machine returns n GPUs over some time, a moment each 10 seconds, each as change makes
// it at that time before now.
func machine(n int, long time.Duration, change func(ago time.Duration, i int, d *Device)) Machine {
	var m Machine
	for ago := long; ago >= 0; ago -= 10 * time.Second {
		moment := Moment{Time: noon.Add(-ago)}
		for i := range n {
			d := steady(i)
			if change != nil {
				change(ago, i, &d)
			}
			moment.Devices = append(moment.Devices, d)
		}
		m.Moments = append(m.Moments, moment)
	}
	return m
}

// found returns findings as lines: rule, severity, index and key.
func found(m Machine) string {
	var lines []string
	for _, f := range Check(m) {
		line := fmt.Sprintf("%s %s", f.Rule, f.Severity)
		if f.Device.UUID != "" {
			line += fmt.Sprintf(" %d", f.Device.Index)
		}
		if f.Key != "" {
			line += " " + f.Key
		}
		lines = append(lines, line)
		if f.Reason == "" || f.Action == "" || f.Since.IsZero() || f.Since.After(noon) {
			lines = append(lines, fmt.Sprintf("incomplete: %+v", f))
		}
	}
	return strings.Join(lines, "; ")
}

// one GPU of which change is true for the last long.
func lately(long time.Duration, change func(d *Device)) Machine {
	return machine(1, 5*time.Minute, func(ago time.Duration, _ int, d *Device) {
		if ago <= long {
			change(d)
		}
	})
}

// risen is one GPU whose counter rises by n in five minutes.
func risen(n float64, counter func(d *Device, v float64)) Machine {
	return machine(1, 5*time.Minute, func(ago time.Duration, _ int, d *Device) {
		counter(d, 1000+n*(1-ago.Minutes()/5))
	})
}

func expect(t *testing.T, name string, m Machine, want string) {
	t.Helper()
	if diff := cmp.Diff(want, found(m)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

// A GPU at its power limit, with all its memory in use, is a GPU that earns its money.
func TestWell(t *testing.T) {
	expect(t, "no moment", Machine{}, "")
	expect(t, "busy", machine(8, 10*time.Minute, nil), "")
	idle := machine(8, 10*time.Minute, func(_ time.Duration, _ int, d *Device) {
		d.Utilization.Compute, d.Memory.Used, d.Processes, d.Holders = of(0), of(600<<20), nil, nil
		d.PCIe.Generation, d.Clocks[0].Frequency, d.Powers[0].Instant = of(1), of(345e6), of(70)
		d.Throttles = []device.Throttle{{Cause: "gpu_idle", Active: true}}
	})
	expect(t, "idle", idle, "")
	bare := machine(2, 10*time.Minute, func(_ time.Duration, _ int, d *Device) {
		d.Sample = device.Sample{ID: d.ID}
	})
	expect(t, "a device that says nothing", bare, "")
	if s := Score(Check(machine(1, time.Minute, nil)), "GPU-0"); s != 1 {
		t.Errorf("score %v", s)
	}
}

// Who had the GPU, when it began, and what to do.
func TestFinding(t *testing.T) {
	m := lately(time.Minute, func(d *Device) {
		d.Throttles = append(d.Throttles, device.Throttle{Cause: "hw_thermal_slowdown", Buckets: device.BucketThermal | device.BucketHW, Active: true})
	})
	want := []Finding{{
		Rule: "gpu.throttle.thermal", Severity: Warning, Device: steady(0).ID, Since: noon.Add(-time.Minute), Workloads: []workload.Workload{alice},
		Reason:   "its clocks have been held down by heat for 1m, edge is at 60 °C",
		Action:   "Look at fans, filters, the temperature of the room and the flow of coolant, and at the neighbours of the device.",
		Evidence: []string{"hw_thermal_slowdown"},
	}}
	got := Check(m)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if s := Score(got, "GPU-0"); s != 0.5 {
		t.Errorf("score %v", s)
	}
	if s := Score(append(got, Finding{Severity: Critical, Device: steady(0).ID}), "GPU-0"); s != 0 {
		t.Errorf("score with something critical %v", s)
	}
	if s := Score([]Finding{{Severity: Info, Device: steady(0).ID}, {Severity: Critical, Device: steady(1).ID}}, "GPU-0"); s != 1 {
		t.Errorf("score of another device's finding %v", s)
	}
}

// The sensors of a partition are its parent's, and so are the findings.
func TestPartition(t *testing.T) {
	m := machine(1, time.Minute, nil)
	for i := range m.Moments {
		part := steady(0)
		part.ID.UUID, part.ID.Parent = "MIG-1", "GPU-0"
		part.RowRemap.Failure = of(1)
		m.Moments[i].Devices = append(m.Moments[i].Devices, part)
	}
	expect(t, "partition", m, "")
}

func TestMemoryRules(t *testing.T) {
	count := func(kind, location string) func(*Device, float64) {
		return func(d *Device, v float64) {
			d.ECC = []device.ECC{{Type: kind, Lifetime: "volatile", Location: location, Count: of(v)}, {Type: kind, Lifetime: "aggregate", Count: of(v * 7)}}
		}
	}
	expect(t, "some corrected errors are what ECC is for", risen(99, count("corrected", "")), "")
	expect(t, "many corrected errors", risen(100, count("corrected", "")), "gpu.ecc.corrected warning 0")
	expect(t, "lost data of yesterday", risen(0, count("uncorrected", "")), "gpu.ecc.uncorrected warning 0")
	expect(t, "lost data now", risen(1, count("uncorrected", "")), "gpu.ecc.uncorrected critical 0")
	expect(t, "a block of AMD", risen(1, count("uncorrected", "umc")), "gpu.ecc.uncorrected critical 0")
	expect(t, "deferred", risen(1, count("deferred", "umc")), "gpu.ecc.deferred critical 0")
	expect(t, "counters that began anew count from there", machine(1, 5*time.Minute, func(ago time.Duration, _ int, d *Device) {
		count("corrected", "")(d, 5000)
		if ago < time.Minute {
			d.Since = noon.Add(-time.Minute)
			count("corrected", "")(d, 50)
		}
	}), "")
	f := func(name string, change func(d *Device), want string) {
		t.Helper()
		expect(t, name, lately(0, change), want)
	}
	f("failed", func(d *Device) { d.RowRemap.Failure = of(1) }, "gpu.row_remap.failed critical 0")
	f("pending", func(d *Device) { d.RowRemap.Pending = of(1) }, "gpu.row_remap.pending warning 0")
	banks := func(spare string, n float64) []device.RowRemapBanks {
		return []device.RowRemapBanks{{Spare: spare, Banks: of(n)}}
	}
	f("spare rows left", func(d *Device) { d.RowRemap.Banks = banks("low", 3) }, "")
	f("all banks have some", func(d *Device) { d.RowRemap.Banks = banks("none", 0) }, "")
	f("none left", func(d *Device) { d.RowRemap.Banks = banks("none", 1) }, "gpu.row_remap.exhausted warning 0")
	f("said once", func(d *Device) { d.RowRemap.Banks, d.RowRemap.Failure = banks("none", 1), of(1) }, "gpu.row_remap.failed critical 0")
	f("page pending", func(d *Device) { d.PageRetirement.Pending = of(1) }, "gpu.page_retirement.pending warning 0")
	f("page failed", func(d *Device) { d.PageRetirement.Failure = of(1) }, "gpu.page_retirement.failed critical 0")
	f("retired pages alone", func(d *Device) { d.PageRetirement.Uncorrected = of(3) }, "")
	f("sram", func(d *Device) { d.SRAMThreshold = of(1) }, "gpu.ecc.sram critical 0")
	f("ECC off", func(d *Device) { d.Modes.ECC = of(0) }, "gpu.ecc.off info 0")
	f("no ECC at all", func(d *Device) { d.Modes.ECC = device.Value{} }, "")
}

// One tick without an answer proves nothing: what held before and after goes on.
func TestUnanswered(t *testing.T) {
	gap := func(change func(ago time.Duration, d *Device)) Machine {
		return machine(1, 5*time.Minute, func(ago time.Duration, _ int, d *Device) {
			if change(ago, d); ago == 30*time.Second {
				*d = Device{Sample: device.Sample{ID: d.ID}, Problem: "late", Since: boot}
			}
		})
	}
	expect(t, "throttled", gap(func(_ time.Duration, d *Device) {
		d.Throttles = []device.Throttle{{Cause: "x", Buckets: device.BucketThermal, Active: true}}
	}), "gpu.throttle.thermal warning 0")
	expect(t, "a counter", gap(func(ago time.Duration, d *Device) {
		d.ECC = []device.ECC{{Type: "uncorrected", Lifetime: "volatile", Count: of(1)}}
		if ago < 2*time.Minute {
			d.ECC[0].Count = of(2)
		}
	}), "gpu.ecc.uncorrected critical 0")
}

func TestHeatRules(t *testing.T) {
	throttle := func(b device.Buckets) func(*Device) {
		return func(d *Device) { d.Throttles = []device.Throttle{{Cause: "x", Buckets: b, Active: true}} }
	}
	const power, thermal, sw, hw = device.BucketPower, device.BucketThermal, device.BucketSW, device.BucketHW
	expect(t, "a burst", lately(50*time.Second, throttle(thermal|hw)), "")
	expect(t, "heat", lately(time.Minute, throttle(thermal|sw)), "gpu.throttle.thermal warning 0")
	expect(t, "a power cap is how it works", lately(5*time.Minute, throttle(power|sw)), "")
	brake := func(d *Device) {
		d.Throttles = []device.Throttle{{Cause: "hw_power_brake_slowdown", Buckets: power | hw, Active: true}}
	}
	expect(t, "the power brake", lately(time.Minute, brake), "gpu.throttle.power_brake warning 0")
	expect(t, "a short one", lately(50*time.Second, brake), "")
	expect(t, "a limit of the package", lately(5*time.Minute, throttle(power|hw)), "")

	at := func(v float64) func(*Device) {
		return func(d *Device) { d.Temperatures[0].Value, d.Powers = of(v), nil }
	}
	expect(t, "below its limit", lately(5*time.Minute, at(88)), "")
	expect(t, "at its limit", lately(time.Minute, at(89)), "gpu.temperature.limit warning 0")
	expect(t, "for a moment", lately(50*time.Second, at(89)), "")
	expect(t, "a margin of 0", lately(time.Minute, func(d *Device) {
		d.Temperatures[0].Limits = []device.TemperatureCap{{Event: "slowdown", Margin: of(0)}}
	}), "gpu.temperature.limit warning 0")

	// After settling, a rise over rampIn; machine reaches 10 minutes back.
	rise := func(by, watts float64, in time.Duration) Machine {
		return machine(1, 10*time.Minute, func(ago time.Duration, _ int, d *Device) {
			done := max(0, 1-ago.Seconds()/in.Seconds())
			d.Temperatures[0].Value, d.Powers[0].Instant = of(65+by*done), of(600+watts*done)
		})
	}
	expect(t, "hotter at the same power", rise(10, 0, 5*time.Minute), "gpu.temperature.ramp warning 0")
	expect(t, "a little hotter", rise(9, 0, 5*time.Minute), "")
	expect(t, "not hot at all", machine(1, 10*time.Minute, func(ago time.Duration, _ int, d *Device) {
		d.Temperatures[0].Value, d.Powers[0].Instant = of(69-2*ago.Minutes()), of(600)
	}), "")
	expect(t, "it stays where it is now", machine(1, 10*time.Minute, func(ago time.Duration, _ int, d *Device) {
		d.Temperatures[0].Value, d.Powers[0].Instant = of(80-5*max(0, ago.Minutes()-2.5)), of(600)
	}), "")
	expect(t, "hotter with more power", rise(20, 100, 5*time.Minute), "")
	expect(t, "hotter with less power, which the sink has not followed yet", rise(20, -100, 5*time.Minute), "")
	// A job starts: power jumps, and the heat sink follows within minutes.
	expect(t, "it warms up", machine(1, 10*time.Minute, func(ago time.Duration, _ int, d *Device) {
		on := 9*time.Minute - ago
		d.Powers[0].Instant, d.Temperatures[0].Value = of(100), of(35)
		if on >= 0 {
			d.Powers[0].Instant, d.Temperatures[0].Value = of(650), of(65-30*math.Exp(-on.Seconds()/60))
		}
	}), "")
	expect(t, "another sensor is the hottest now", machine(1, 10*time.Minute, func(ago time.Duration, _ int, d *Device) {
		d.Powers[0].Instant = of(600)
		d.Temperatures = append(d.Temperatures, device.Temperature{Sensor: "memory", Value: of(80)})
		if ago > 5*time.Minute {
			d.Temperatures = d.Temperatures[:1]
		}
	}), "")

	low := func(mhz, watts, util float64, b device.Buckets) func(*Device) {
		return func(d *Device) {
			d.Clocks[0].Frequency, d.Powers[0].Instant, d.Utilization.Compute = of(mhz*1e6), of(watts), of(util)
			d.Throttles = []device.Throttle{{Cause: "x", Buckets: b, Active: true}}
		}
	}
	expect(t, "stuck", lately(2*time.Minute, low(345, 120, 1, 0)), "gpu.clock.low warning 0")
	expect(t, "half", lately(2*time.Minute, low(990, 120, 1, 0)), "")
	expect(t, "it has a reason", lately(2*time.Minute, low(345, 120, 1, sw)), "")
	expect(t, "not busy", lately(2*time.Minute, low(345, 120, 0.8, 0)), "")
	expect(t, "it draws its power", lately(2*time.Minute, low(900, 360, 1, 0)), "")
	expect(t, "for a moment", lately(110*time.Second, low(345, 120, 1, 0)), "")
}

func TestLinkRules(t *testing.T) {
	trained := func(gen, width, util float64) func(*Device) {
		return func(d *Device) { d.PCIe.Generation, d.PCIe.Width, d.Utilization.Compute = of(gen), of(width), of(util) }
	}
	expect(t, "idle links are slow", lately(5*time.Minute, trained(1, 16, 0.4)), "")
	expect(t, "slow under load", lately(3*time.Minute, trained(4, 16, 0.5)), "gpu.pcie.downtrained warning 0")
	expect(t, "narrow under load", lately(3*time.Minute, trained(5, 8, 1)), "gpu.pcie.downtrained warning 0")
	expect(t, "waking up, and read each slow interval", lately(170*time.Second, trained(1, 16, 1)), "")
	expect(t, "a slot that is narrow for good", machine(1, 5*time.Minute, func(_ time.Duration, _ int, d *Device) {
		d.ID.Vendor = "amd"
		trained(4, 8, 1)(d)
	}), "")
	replay := func(d *Device, v float64) { d.PCIe.Replays = of(v) }
	expect(t, "some replays", risen(599, replay), "")
	expect(t, "many replays", risen(600, replay), "gpu.pcie.replays warning 0")

	wired := func(kind string, up ...float64) []device.Interconnect {
		c := device.Interconnect{Type: kind}
		for i, v := range up {
			c.Links = append(c.Links, device.Link{Index: i, Up: of(v)})
		}
		return []device.Interconnect{c}
	}
	link := func(kind string, before, after []float64, long time.Duration) Machine {
		return machine(1, 5*time.Minute, func(ago time.Duration, _ int, d *Device) {
			d.Interconnects = wired(kind, before...)
			if ago <= long {
				d.Interconnects = wired(kind, after...)
			}
		})
	}
	expect(t, "a link went down", link("nvlink", []float64{1, 1}, []float64{1, 0}, 30*time.Second), "gpu.interconnect.link_down critical 0 nvlink 1")
	expect(t, "it trains", link("nvlink", []float64{1, 1}, []float64{1, 0}, 20*time.Second), "")
	expect(t, "a board with one bridge uses some of its links", link("nvlink", []float64{1, 0}, []float64{1, 0}, time.Minute), "")
	siblings := machine(2, 5*time.Minute, func(_ time.Duration, i int, d *Device) {
		d.Interconnects = wired("nvlink", 1, float64(i))
	})
	expect(t, "its sibling has that link", siblings, "gpu.interconnect.link_down critical 0 nvlink 1")
	expect(t, "a sibling has a cable in that port", machine(2, 5*time.Minute, func(_ time.Duration, i int, d *Device) {
		d.Interconnects = wired("ethernet", 1, float64(i))
	}), "")
	before := link("ethernet", []float64{1, 0}, []float64{1, 0}, time.Minute)
	before.LinksUp = map[string]bool{"GPU-0 ethernet 1": true}
	expect(t, "it was up some time since boot", before, "gpu.interconnect.link_down critical 0 ethernet 1")
	expect(t, "a board that uses none", link("nvlink", []float64{0, 0}, []float64{0, 0}, time.Minute), "")
	expect(t, "a port without a cable", link("ethernet", []float64{1, 0}, []float64{1, 0}, time.Minute), "")
	expect(t, "a cable was pulled", link("ethernet", []float64{1, 1}, []float64{1, 0}, time.Minute), "gpu.interconnect.link_down critical 0 ethernet 1")
	errs := func(kind string) func(*Device, float64) {
		return func(d *Device, v float64) {
			d.Interconnects = []device.Interconnect{{Type: "nvlink", Errors: []device.ErrorCount{{Type: kind, Count: of(v)}}}}
		}
	}
	expect(t, "corrected", risen(50, errs("replay")), "")
	expect(t, "trained anew", risen(1, errs("recovery")), "gpu.interconnect.errors warning 0 nvlink")
	expect(t, "long ago", risen(0, errs("recovery")), "")

	joined := func(state, health float64) func(*Device) {
		return func(d *Device) { d.Fabric = device.Fabric{State: of(state), Health: of(health)} }
	}
	expect(t, "in the fabric", lately(5*time.Minute, joined(3, 1)), "")
	expect(t, "unhealthy", lately(0, joined(3, 2)), "gpu.fabric.unhealthy critical 0")
	expect(t, "limited", lately(0, joined(3, 3)), "gpu.fabric.limited warning 0")
	expect(t, "joining", lately(4*time.Minute, joined(2, 0)), "")
	expect(t, "not joined", lately(5*time.Minute, joined(2, 0)), "gpu.fabric.not_joined critical 0")
}
