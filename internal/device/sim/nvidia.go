package sim

import (
	"math"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// nvidia shows what NVML publishes.
type nvidia struct {
	bar1, banks            float64 // bytes; memory banks, each with its own spare rows
	memoryIdle, memoryFull float64 // memory power in watts
	cpuIdle, cpuFull       float64 // CPU power of the same module in watts
	instantOnly            bool    // GA100 has no averaged reading

	idleState      float64 // performance state without load
	pcie, pcieIdle int     // PCIe generation under load and without

	links    int     // NVLinks
	linkRate float64 // bytes per second and direction, per link
	fabric   bool    // registers with an NVSwitch fabric
	gpm      bool    // has activity and traffic counters: Hopper and later
}

var nvidiaMaker = &maker{
	vendor: "nvidia", driver: "580.95.05", count: 8, buses: []int{0x19, 0x3b, 0x4c, 0x5d, 0x9b, 0xbb, 0xcb, 0xdb},
	uuid: func(key uint64) string { return "GPU-" + uuid(key) },
	part: func(_ *gpu, _ int, key uint64) string { return "MIG-" + uuid(key) },
}

// nvidiaModels are boards as nvidia-smi and NVML show them. No complete listing of a B200
// was available: its banks, thermal limits and partition sizes are scaled from the H200.
var nvidiaModels = map[string]*model{
	"a100": {
		maker: nvidiaMaker, name: "NVIDIA A100-SXM4-80GB", architecture: "ampere", firmware: nvidiaMaker.driver, vbios: "92.00.9E.00.02",
		memory: 81920 * mib, reserved: 763 * mib,
		watts: watts{idle: 60, limit: 400, min: 100, max: 400}, hot: 85,
		sensors: []sensor{
			{name: "edge", idle: 27, full: 61, limits: []limit{{"operating", 85}, {"slowdown", 89}, {"shutdown", 92}}},
			{name: "memory", idle: 40, full: 68, limits: []limit{{"operating", 95}}},
		},
		clocks:  nvidiaClocks(1410, 210, 1593, 1593, 1290, 585),
		shows:   nvidia{bar1: 131072 * mib, banks: 640, pcie: 4, pcieIdle: 4, links: 12, linkRate: 25.781e9, instantOnly: true},
		sliceOf: 7, slices: []slice{{"3g.40gb", 3, 40192 * mib}, {"2g.20gb", 2, 19968 * mib}, {"1g.10gb", 1, 9728 * mib}, {"1g.10gb", 1, 9728 * mib}},
	},
	"b200": {
		maker: nvidiaMaker, name: "NVIDIA B200", architecture: "blackwell", firmware: nvidiaMaker.driver, vbios: "97.00.82.00.34",
		memory: 183359 * mib, reserved: 717 * mib,
		watts: watts{idle: 143, limit: 1000, min: 200, max: 1000}, hot: 87,
		sensors: []sensor{
			{name: "edge", idle: 30, full: 66, limits: []limit{{"operating", 87}, {"slowdown", 89}, {"shutdown", 95}}},
			{name: "memory", idle: 31, full: 62},
		},
		clocks:  nvidiaClocks(1965, 120, 3996, 3996, 1830, 600),
		shows:   nvidia{bar1: 262144 * mib, banks: 3840, pcie: 5, pcieIdle: 5, links: 18, linkRate: 53.125e9, fabric: true, gpm: true},
		sliceOf: 7, slices: []slice{{"3g.90gb", 3, 90368 * mib}, {"2g.45gb", 2, 43776 * mib}, {"1g.23gb", 1, 21632 * mib}, {"1g.23gb", 1, 21632 * mib}},
	},
	// A superchip with one GPU and one Grace CPU. Nodes have one or a few.
	"gh200": {
		maker: nvidiaMaker, name: "NVIDIA GH200 480GB", architecture: "hopper", firmware: nvidiaMaker.driver, vbios: "96.00.A5.00.19",
		memory: 97871 * mib, reserved: 619 * mib,
		watts: watts{idle: 78, limit: 700, min: 100, max: 900}, hot: 87,
		sensors: []sensor{
			{name: "edge", idle: 31, full: 64, limits: []limit{{"operating", 87}, {"slowdown", 89}, {"shutdown", 95}}},
			{name: "memory", idle: 33, full: 52},
		},
		clocks: nvidiaClocks(1980, 345, 2619, 2619, 1545, 765),
		shows:  nvidia{bar1: 131072 * mib, banks: 2560, pcie: 5, pcieIdle: 5, gpm: true, memoryIdle: 43, memoryFull: 92, cpuIdle: 55, cpuFull: 240},
	},
	"h100": {
		maker: nvidiaMaker, name: "NVIDIA H100 80GB HBM3", architecture: "hopper", firmware: nvidiaMaker.driver, vbios: "96.00.A5.00.01",
		memory: 81559 * mib, reserved: 479 * mib,
		watts: watts{idle: 70, limit: 700, min: 200, max: 700}, hot: 87,
		sensors: []sensor{
			{name: "edge", idle: 33, full: 63, limits: []limit{{"operating", 87}, {"slowdown", 89}, {"shutdown", 95}}},
			{name: "memory", idle: 42, full: 58},
		},
		clocks:  nvidiaClocks(1980, 345, 2619, 2619, 1545, 765),
		shows:   nvidia{bar1: 131072 * mib, banks: 2560, pcie: 5, pcieIdle: 5, links: 18, linkRate: 26.562e9, fabric: true, gpm: true, memoryIdle: 43, memoryFull: 92},
		sliceOf: 7, slices: []slice{{"3g.40gb", 3, 40448 * mib}, {"2g.20gb", 2, 20096 * mib}, {"1g.10gb", 1, 9984 * mib}, {"1g.10gb", 1, 9984 * mib}},
	},
	"h200": {
		maker: nvidiaMaker, name: "NVIDIA H200", architecture: "hopper", firmware: nvidiaMaker.driver, vbios: "96.00.A5.00.03",
		memory: 150754820096, reserved: 644939776,
		watts: watts{idle: 78, limit: 700, min: 200, max: 700}, hot: 87,
		sensors: []sensor{
			{name: "edge", idle: 30, full: 64, limits: []limit{{"operating", 87}, {"slowdown", 89}, {"shutdown", 95}}},
			{name: "memory", idle: 32, full: 51},
		},
		clocks:  nvidiaClocks(1980, 345, 3201, 3201, 1545, 765),
		shows:   nvidia{bar1: 262144 * mib, banks: 3072, pcie: 5, pcieIdle: 5, links: 18, linkRate: 26.562e9, fabric: true, gpm: true, memoryIdle: 47, memoryFull: 109},
		sliceOf: 7, slices: []slice{{"3g.71gb", 3, 71424 * mib}, {"2g.35gb", 2, 33280 * mib}, {"1g.18gb", 1, 16384 * mib}, {"1g.18gb", 1, 16384 * mib}},
	},
	"l40s": {
		maker: nvidiaMaker, name: "NVIDIA L40S", architecture: "ada", firmware: nvidiaMaker.driver, vbios: "95.02.66.00.02",
		memory: 46068 * mib, reserved: 609 * mib,
		watts: watts{idle: 35, limit: 350, min: 100, max: 350}, hot: 88,
		sensors: []sensor{
			{name: "edge", idle: 30, full: 71, limits: []limit{{"operating", 88}, {"slowdown", 90}, {"shutdown", 93}}},
		},
		clocks: nvidiaClocks(2520, 210, 9001, 405, 1965, 1185),
		shows:  nvidia{bar1: 65536 * mib, banks: 192, idleState: 8, pcie: 4, pcieIdle: 1},
	},
}

func nvidiaClocks(sm, smIdle, memory, memoryIdle, video, videoIdle float64) []clock {
	const step = 15 // MHz
	return []clock{
		{"graphics", smIdle, sm, step}, {"sm", smIdle, sm, step}, {"memory", memoryIdle, memory, 0}, {"video", videoIdle, video, step},
	}
}

func (d nvidia) read(r *reading) {
	g := r.gpu
	r.Modes = device.Modes{ECC: device.Of(1), Persistence: device.Of(1), Compute: device.Of(0)}
	if g.model.slices != nil {
		r.Modes.MIG = device.Flag(g.partitions != nil)
	}
	r.Memory = d.memory(r)
	r.Temperatures = r.temperatures(true)
	r.Powers = d.power(r)
	r.Energy = device.Of(floor(r.sum.joules, 1e3)) // the driver counts millijoules
	r.Clocks = r.frequencies(true)
	r.Throttles = d.throttles(r.now)
	r.ThrottleTimes = d.throttleTimes(r.sum)
	r.Interconnects = d.interconnects(r)
	r.PCIe = r.link(d.pcie, d.pcieIdle)
	r.PCIe.Replays = device.Of(r.bad.replays)
	r.ECC = r.ecc()
	r.RowRemap = d.rowRemap(r)
	r.RecoveryAction = device.Flag(r.bad.remap) // 1 is "reset the GPU"
	r.PerformanceState = device.Of(0)
	if r.now.busy == 0 {
		r.PerformanceState = device.Of(d.idleState)
	}
	if d.fabric {
		r.Fabric = device.Fabric{State: device.Of(3), Health: device.Of(1)}
	}
	if d.gpm {
		r.Profile = profile(g.activity(r.now, r.up), r.now.busy)
	}
	if g.partitions == nil { // NVML reports no utilization for a partitioned GPU
		r.Utilization, r.UtilizationPeak = d.utilization(r)
		p := g.process(r.up, r.Memory.Used)
		for i := range p {
			p[i].Utilization = device.Of(percent(0.98 * r.now.busy / float64(len(p))))
		}
		r.Processes = p
	}
}

// utilization returns the current utilization and its peak over the last minute.
func (nvidia) utilization(r *reading) (current, peak device.Engines) {
	g := r.gpu
	highest := r.now.busy
	for i := range 60 {
		highest = max(highest, g.back(r.up, i).busy)
	}
	none := device.Of(0)
	current = device.Engines{
		Compute: device.Of(percent(r.now.busy)), Memory: device.Of(percent(g.role.controller * r.now.busy)),
		Encoder: none, Decoder: none, JPEG: none, OFA: none,
	}
	peak = device.Engines{
		Compute: device.Of(percent(highest)), Memory: device.Of(percent(g.role.controller * highest)),
	}
	return current, peak
}

func (d nvidia) memory(r *reading) device.Memory {
	m := r.gpu.model
	used := r.used()
	bar1 := used + 1703936 // what an idle H200 reports, plus all memory in use
	if r.gpu.partitions != nil {
		bar1 = m.memory - m.reserved
	}
	return device.Memory{
		Used: device.Of(used), Free: device.Of(m.memory - m.reserved - used),
		Reserved: device.Of(m.reserved), Total: device.Of(m.memory),
		BAR1Used: device.Of(bar1), BAR1Total: device.Of(d.bar1),
	}
}

// power returns current readings, and averages over the last second.
func (d nvidia) power(r *reading) []device.Power {
	w := r.gpu.model.watts
	average := r.average()
	gpu := device.Power{
		Scope:   "gpu",
		Instant: device.Of(math.Round(r.now.watts*1e3) / 1e3),
		Limits: []device.PowerLimit{
			{Type: "enforced", Watts: device.Of(w.limit)},
			{Type: "requested", Watts: device.Of(w.limit)},
			{Type: "default", Watts: device.Of(w.limit)},
			{Type: "min", Watts: device.Of(w.min)},
			{Type: "max", Watts: device.Of(w.max)},
		},
	}
	if !d.instantOnly {
		gpu.Average = device.Of(average)
	}
	list := []device.Power{gpu}
	part := max(0, average-w.idle) / (w.limit - w.idle)
	milliwatts := func(watts float64) device.Value { return device.Of(math.Round(watts*1e3) / 1e3) }
	if d.cpuFull > 0 {
		list = append(list, device.Power{Scope: "module", Average: milliwatts(average + d.cpuIdle + part*(d.cpuFull-d.cpuIdle))})
	}
	if d.memoryFull > 0 {
		list = append(list, device.Power{Scope: "memory", Average: milliwatts(d.memoryIdle + part*(d.memoryFull-d.memoryIdle))})
	}
	return list
}

// throttles returns NVML's clocks event reasons, in bit order.
func (nvidia) throttles(now *moment) []device.Throttle {
	const (
		power, thermal = device.BucketPower, device.BucketThermal
		sw, hw         = device.BucketSW, device.BucketHW
	)
	return []device.Throttle{
		{Cause: "gpu_idle", Active: now.busy == 0},
		{Cause: "applications_clocks_setting", Buckets: sw},
		{Cause: "sw_power_cap", Buckets: power | sw, Active: now.capped},
		{Cause: "hw_slowdown", Buckets: hw},
		{Cause: "sync_boost", Buckets: sw},
		{Cause: "sw_thermal_slowdown", Buckets: thermal | sw, Active: now.slowed},
		{Cause: "hw_thermal_slowdown", Buckets: thermal | hw},
		{Cause: "hw_power_brake_slowdown", Buckets: power | hw},
		{Cause: "display_clock_setting", Buckets: sw},
	}
}

// throttleTimes returns NVML's fields 74 to 81 and 269 to 271. Every second at less than
// full speed is below the application clocks; only seconds without load are below the base
// clocks.
func (nvidia) throttleTimes(sum sums) []device.ThrottleTime {
	of := func(cause string, seconds float64) device.ThrottleTime {
		return device.ThrottleTime{Cause: cause, Seconds: device.Of(seconds)}
	}
	detail := func(cause string, seconds float64) device.ThrottleTime {
		return device.ThrottleTime{Cause: cause, Seconds: device.Of(seconds), Detail: true}
	}
	return []device.ThrottleTime{
		of("power", sum.capped), of("thermal", sum.slowed), detail("sync_boost", 0), detail("board_limit", 0),
		detail("low_utilization", sum.idle), detail("reliability", 0), detail("app_clocks", sum.below), detail("base_clocks", sum.idle),
		detail("sw_thermal_slowdown", sum.slowed), detail("hw_thermal_slowdown", 0), of("hw_power_brake_slowdown", 0),
	}
}

// profile returns activity in the form of GPM.
func profile(a activity, busy float64) device.Profile {
	pipe := func(name string, active float64) device.Pipe {
		return device.Pipe{Name: name, Active: device.Of(active)}
	}
	return device.Profile{
		EngineActive: device.Of(busy), SMActive: device.Of(a.sm),
		SMOccupancy: device.Of(a.occupancy), DRAMActive: device.Of(a.dram),
		Pipes: []device.Pipe{pipe("tensor", a.tensor), pipe("fp64", a.fp64), pipe("fp32", a.fp32), pipe("fp16", a.fp16)},
		PipeDetail: []device.Pipe{
			pipe("hmma", a.tensor), pipe("imma", 0), pipe("dmma", 0), pipe("dfma", a.fp64), pipe("int", a.integer),
		},
	}
}

// interconnects returns PCIe and NVLink. Rates come from GPM; the byte counters of PCIe
// wrap too fast to be useful. NVLink does not answer on a partitioned GPU.
func (d nvidia) interconnects(r *reading) []device.Interconnect {
	const chatter = 2.5e6 // bytes per second on an idle PCIe link
	pcie := device.Interconnect{Type: "pcie", BandwidthLimit: device.Of(pcieRate(d.pcie))}
	if d.gpm {
		pcie.TXRate = device.Of(chatter + r.now.upload*pcieRate(d.pcie))
		pcie.RXRate = device.Of(chatter + r.gpu.role.feed*r.now.busy*pcieRate(d.pcie))
	}
	if d.links == 0 || r.gpu.partitions != nil {
		return []device.Interconnect{pcie}
	}
	nvlink := r.links("nvlink", d.links, d.linkRate)
	nvlink.Errors = []device.ErrorCount{
		{Type: "crc_flit", Count: device.Of(0)},
		{Type: "crc_data", Count: device.Of(0)},
		{Type: "replay", Count: device.Of(r.bad.linkReplays)},
		{Type: "recovery", Count: device.Of(0)},
	}
	if !d.gpm {
		nvlink.TXRate, nvlink.RXRate = device.Value{}, device.Value{}
	}
	return []device.Interconnect{pcie, nvlink}
}

// rowRemap returns the spare rows. On a partitioned GPU the counts are not supported but
// the banks are (observed on an H200).
func (d nvidia) rowRemap(r *reading) device.RowRemap {
	taken := r.bad.uncorrected
	bank := func(spare string, n float64) device.RowRemapBanks {
		return device.RowRemapBanks{Spare: spare, Banks: device.Of(n)}
	}
	list := device.RowRemap{Banks: []device.RowRemapBanks{
		bank("max", d.banks-taken), bank("high", taken), bank("partial", 0), bank("low", 0), bank("none", 0),
	}}
	if r.gpu.partitions == nil {
		list.Corrected, list.Uncorrected = device.Of(0), device.Of(taken)
		list.Pending, list.Failure = device.Flag(r.bad.remap), device.Of(0)
	}
	return list
}

// readPart fills in the memory, processes and, on Hopper and later, the own activity of a
// MIG device. NVML reports no utilization for its processes.
func (d nvidia) readPart(p *partition, up time.Duration, s *device.Sample) {
	now := p.at(up)
	s.Memory = p.memory(now)
	s.Memory.Reserved = device.Of(0)
	s.Processes = p.process(s.Memory.Used)
	if d.gpm {
		s.Profile = profile(activity{}.plus(now.busy, p.role.activity), now.busy)
	}
}
