package sim

import (
	"fmt"
	"math"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// amd shows what amdgpu publishes in sysfs and KFD for an Instinct.
type amd struct {
	units    float64 // compute units of a whole device
	links    int     // number of XGMI links
	linkRate float64 // bytes per second and direction, per link
	pcie     int     // generation
}

var amdMaker = &maker{
	vendor: "amd", driver: "6.12.12", count: 8, buses: []int{0x05, 0x26, 0x46, 0x65, 0x85, 0xa6, 0xc6, 0xe5},
	uuid: func(key uint64) string { return fmt.Sprintf("amd-%016x", hash(key, 1)) },
	part: func(g *gpu, i int, _ uint64) string { return fmt.Sprintf("%s-xcp%d", g.id.UUID, i) },
}

var amdModels = map[string]*model{
	// GPU 7 is in CPX mode with its memory in quarters: each of its eight dies is a
	// separate device.
	"mi300x": {
		maker: amdMaker, name: "AMD Instinct MI300X", architecture: "gfx942", vbios: "113-M3000100-103", firmware: "0x00557900",
		memory: 196592 * mib,
		watts:  watts{idle: 140, limit: 750, min: 0, max: 750}, hot: 100,
		sensors: []sensor{
			{name: "hotspot", idle: 41, full: 79, limits: []limit{{"slowdown", 100}, {"shutdown", 105}}},
			{name: "memory", idle: 36, full: 63, limits: []limit{{"slowdown", 105}, {"shutdown", 110}}},
			{name: "vr_soc", idle: 44, full: 70},
		},
		clocks: []clock{{"graphics", 132, 2100, 1}, {"memory", 900, 1300, 0}, {"soc", 28, 1200, 0}, {"video", 29, 29, 0}},
		shows:  amd{units: 304, links: 7, linkRate: 64e9, pcie: 5},
		slices: eighths("cpx_nps4", 24574*mib), sliceOf: 8,
	},
}

// eighths returns the slices of a device that is split into eight equal parts.
func eighths(profile string, memory float64) []slice {
	list := make([]slice, 8)
	for i := range list {
		list[i] = slice{profile, 1, memory}
	}
	return list
}

func (d amd) read(r *reading) {
	m, busy := r.gpu.model, r.now.busy
	controller := r.gpu.activity(r.now, r.up).dram
	r.Utilization = device.Engines{
		Compute: device.Of(percent(busy)), Memory: device.Of(percent(controller)), Decoder: device.Of(0), JPEG: device.Of(0),
	}
	const driver = 283 * mib // the driver's own use on an idle MI300X
	used := min(r.used()+driver, m.memory)
	r.Memory = device.Memory{Used: device.Of(used), Free: device.Of(m.memory - used), Total: device.Of(m.memory)}
	r.Memory.BAR1Used, r.Memory.BAR1Total = r.Memory.Used, r.Memory.Total // the host maps all of the memory
	r.Temperatures = r.temperatures(false)
	w := m.watts
	r.Powers = []device.Power{{
		Scope: "gpu", Instant: device.Of(math.Round(r.now.watts)),
		Limits: []device.PowerLimit{
			{Type: device.LimitEnforced, Watts: device.Of(w.limit)},
			{Type: "default", Watts: device.Of(w.limit)},
			{Type: "min", Watts: device.Of(w.min)},
			{Type: "max", Watts: device.Of(w.max)},
		},
	}}
	r.Energy = device.Of(floor(r.sum.joules, 1<<16)) // the unit of the firmware
	r.Clocks = r.frequencies(true)
	d.throttles(r)
	r.PCIe = r.link(d.pcie, d.pcie)
	r.PCIe.Replays = device.Of(r.bad.replays)
	for _, kind := range []string{"l0_to_recovery", "replay_rollover", "naks_sent", "naks_received", "correctable", "non_fatal", "fatal"} {
		r.PCIe.Errors = append(r.PCIe.Errors, device.ErrorCount{Type: kind, Count: device.Of(0)})
	}
	xgmi := r.links("xgmi", d.links, d.linkRate)
	xgmi.TXRate, xgmi.RXRate = device.Value{}, device.Value{} // only bytes are counted
	r.Interconnects = []device.Interconnect{xgmi}
	if r.gpu.partitions == nil {
		r.Processes = d.occupy(r.gpu.process(r.up, device.Of(r.used())), r.gpu.role, busy)
	}
	r.Modes.ECC = device.Of(1)
	for _, location := range []string{"", "umc"} { // all errors are in memory
		ecc := func(kind string, n float64) device.ECC {
			return device.ECC{Type: kind, Lifetime: "volatile", Location: location, Count: device.Of(n)}
		}
		r.ECC = append(r.ECC, ecc("corrected", r.bad.corrected), ecc("uncorrected", r.bad.uncorrected), ecc("deferred", 0))
	}
	r.PageRetirement = device.PageRetirement{
		Uncorrected: device.Of(r.bad.uncorrected), Pending: device.Flag(r.bad.remap), Failure: device.Of(0),
	}
}

// throttles fills in the causes whose time the MI300 firmware counts.
func (amd) throttles(r *reading) {
	const power, thermal, hot = device.BucketPower | device.BucketSW, device.BucketThermal | device.BucketSW, device.BucketThermal | device.BucketHW
	for _, c := range []struct {
		cause   string
		buckets device.Buckets
		active  bool
		seconds float64
	}{
		{"prochot", hot, false, 0},
		{"ppt", power, r.now.capped, r.sum.capped},
		{"socket_thermal", thermal, r.now.slowed, r.sum.slowed},
		{"vr_thermal", thermal, false, 0},
		{"hbm_thermal", thermal, false, 0},
	} {
		r.Throttles = append(r.Throttles, device.Throttle{Cause: c.cause, Buckets: c.buckets, Active: c.active})
		r.ThrottleTimes = append(r.ThrottleTimes, device.ThrottleTime{Cause: c.cause, Seconds: device.Of(c.seconds)})
	}
}

// occupy sets how many compute units the processes occupy. KFD does not count their time.
func (d amd) occupy(list []device.Process, r *role, busy float64) []device.Process {
	for i := range list {
		list[i].Occupancy = device.Of(math.Round(busy*r.activity.sm*d.units) / d.units)
	}
	return list
}

// readPart fills in the memory, processes and own activity of a partition.
func (d amd) readPart(p *partition, up time.Duration, s *device.Sample) {
	now := p.at(up)
	s.Utilization = device.Engines{Compute: device.Of(percent(now.busy)), Decoder: device.Of(0), JPEG: device.Of(0)}
	s.Profile.EngineActive = s.Utilization.Compute
	s.Memory = p.memory(now)
	d.units /= float64(p.parent.model.sliceOf)
	s.Processes = d.occupy(p.process(s.Memory.Used), p.role, now.busy)
}
