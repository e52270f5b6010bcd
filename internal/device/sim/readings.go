package sim

import (
	"math"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// Readings have the resolution of the driver's own.

// percent rounds a ratio to whole percents.
func percent(ratio float64) float64 { return math.Round(ratio*100) / 100 }

// floor cuts v to a multiple of 1/parts, which keeps a counter monotonic.
func floor(v, parts float64) float64 { return math.Floor(v*parts) / parts }

// allocated returns a ratio of bytes in the pages of 2 MiB that drivers hand out.
func allocated(ratio, bytes float64) float64 {
	const page = 2 * mib
	return math.Floor(ratio*bytes/page) * page
}

func (m *model) temperatures(now *moment) []device.Temperature {
	c := m.celsius
	edge := math.Round(now.celsius)
	limits := []device.TemperatureCap{
		at("operating", c.operating, edge), at("slowdown", c.slowdown, edge), at("shutdown", c.shutdown, edge),
	}
	sensors := []device.Temperature{{Sensor: "edge", Value: device.Of(edge), Limits: limits}}
	if c.memoryFull > 0 {
		warmth := (now.celsius - c.idle) / (c.full - c.idle)
		memory := device.Temperature{
			Sensor: "memory",
			Value:  device.Of(math.Round(c.memoryIdle + warmth*(c.memoryFull-c.memoryIdle))),
		}
		if c.memory > 0 {
			v, _ := memory.Value.Get()
			memory.Limits = []device.TemperatureCap{at("operating", c.memory, v)}
		}
		sensors = append(sensors, memory)
	}
	return sensors
}

// at returns what happens at limit, seen from a sensor at now.
func at(event string, limit, now float64) device.TemperatureCap {
	return device.TemperatureCap{Event: event, Limit: device.Of(limit), Margin: device.Of(limit - now)}
}

// power returns the readings of now, and averages over the second that ends at up.
func (m *model) power(now, before *moment, up time.Duration) []device.Power {
	into := (up % time.Second).Seconds()
	average := math.Round((into*now.watts+(1-into)*before.watts)*1e3) / 1e3
	w := m.watts
	gpu := device.Power{
		Scope:   "gpu",
		Instant: device.Of(math.Round(now.watts*1e3) / 1e3),
		Limits: []device.PowerLimit{
			{Type: "enforced", Watts: device.Of(w.limit)},
			{Type: "requested", Watts: device.Of(w.limit)},
			{Type: "default", Watts: device.Of(w.limit)},
			{Type: "min", Watts: device.Of(w.min)},
			{Type: "max", Watts: device.Of(w.max)},
		},
	}
	if !w.instantOnly {
		gpu.Average = device.Of(average)
	}
	if w.memoryFull == 0 {
		return []device.Power{gpu}
	}
	part := max(0, average-w.idle) / (w.limit - w.idle)
	memory := math.Round((w.memoryIdle+part*(w.memoryFull-w.memoryIdle))*1e3) / 1e3
	return []device.Power{gpu, {Scope: "memory", Average: device.Of(memory)}}
}

func (m *model) frequencies(now *moment) []device.Clock {
	const step = 15 // MHz
	c := m.clocks
	sm, memory, video := math.Round(c.sm*now.clock/step)*step, c.memory, math.Round(c.video*now.clock/step)*step
	if now.busy == 0 {
		sm, memory, video = c.smIdle, c.memoryIdle, c.videoIdle
	}
	clock := func(kind string, frequency, limit float64) device.Clock {
		return device.Clock{Type: kind, Frequency: device.Of(frequency * mhz), Limit: device.Of(limit * mhz)}
	}
	return []device.Clock{
		clock("graphics", sm, c.sm), clock("sm", sm, c.sm), clock("memory", memory, c.memory), clock("video", video, c.video),
	}
}

// throttles returns NVML's clock event reasons, in the order of their bits.
func throttles(now *moment) []device.Throttle {
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

// throttleTimes returns NVML's fields 74 to 81 and 269 to 271. Below the clocks that
// applications ask for is every second at less than full speed; below the base clocks
// only those without load.
func throttleTimes(sum sums) []device.ThrottleTime {
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

// profile returns activity as GPM does.
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

func (m *model) link(now *moment, bad faults) device.PCIe {
	generation := m.pcie
	if now.busy == 0 {
		generation = m.pcieIdle
	}
	return device.PCIe{
		Generation: device.Of(float64(generation)), GenerationMax: device.Of(float64(m.pcie)),
		Width: device.Of(lanes), WidthMax: device.Of(lanes), Replays: device.Of(bad.replays),
	}
}

// interconnects returns PCIe and NVLink. Rates are GPM's; the byte counters of PCIe
// wrap too fast to be of use. NVLink does not answer for a GPU that is cut up.
func (g *gpu) interconnects(now *moment, sum sums, bad faults) []device.Interconnect {
	const (
		chatter   = 2.5e6 // bytes per second on an idle PCIe link
		asymmetry = 0.98  // so that swapped directions show
	)
	m := g.model
	pcie := device.Interconnect{Type: "pcie", BandwidthLimit: device.Of(pcieRate(m.pcie))}
	if m.gpm {
		pcie.TXRate = device.Of(chatter + now.upload*pcieRate(m.pcie))
		pcie.RXRate = device.Of(chatter + g.role.feed*now.busy*pcieRate(m.pcie))
	}
	if m.links == 0 || g.partitions != nil {
		return []device.Interconnect{pcie}
	}

	rate := g.role.nvlink * m.linkRate // of one link while busy
	count := float64(m.links)
	tx, rx := math.Floor(rate*sum.busy), math.Floor(asymmetry*rate*sum.busy)
	nvlink := device.Interconnect{
		Type: "nvlink",
		TX:   device.Of(count * tx), RX: device.Of(count * rx),
		BandwidthLimit: device.Of(count * m.linkRate),
		Errors: []device.ErrorCount{
			{Type: "crc_flit", Count: device.Of(0)},
			{Type: "crc_data", Count: device.Of(0)},
			{Type: "replay", Count: device.Of(bad.linkReplays)},
			{Type: "recovery", Count: device.Of(0)},
		},
		Links: make([]device.Link, m.links),
	}
	if m.gpm {
		nvlink.TXRate = device.Of(count * rate * now.busy)
		nvlink.RXRate = device.Of(asymmetry * count * rate * now.busy)
	}
	for i := range nvlink.Links {
		nvlink.Links[i] = device.Link{Index: i, Up: device.Of(1), TX: device.Of(tx), RX: device.Of(rx)}
	}
	return []device.Interconnect{pcie, nvlink}
}

// ecc returns the totals. A failing GPU has a history from before the boot.
func (g *gpu) ecc(bad faults) []device.ECC {
	var history float64
	if g.role.fails {
		history = float64(1000 + g.key%1000)
	}
	return []device.ECC{
		{Type: "corrected", Lifetime: "volatile", Count: device.Of(bad.corrected)},
		{Type: "corrected", Lifetime: "aggregate", Count: device.Of(history + bad.corrected)},
		{Type: "uncorrected", Lifetime: "volatile", Count: device.Of(bad.uncorrected)},
		{Type: "uncorrected", Lifetime: "aggregate", Count: device.Of(bad.uncorrected)},
	}
}

// rowRemap returns the spare rows. The counts are not supported on a GPU that is cut
// up, the banks are (seen on an H200).
func (g *gpu) rowRemap(bad faults) device.RowRemap {
	taken := bad.uncorrected
	bank := func(spare string, n float64) device.RowRemapBanks {
		return device.RowRemapBanks{Spare: spare, Banks: device.Of(n)}
	}
	r := device.RowRemap{Banks: []device.RowRemapBanks{
		bank("max", g.model.banks-taken), bank("high", taken), bank("partial", 0), bank("low", 0), bank("none", 0),
	}}
	if g.partitions == nil {
		r.Corrected, r.Uncorrected = device.Of(0), device.Of(taken)
		r.Pending, r.Failure = device.Flag(bad.remap), device.Of(0)
	}
	return r
}

// processes returns the one process that holds used bytes, less what its context costs
// the driver.
func processes(r *role, pid int, used, utilization device.Value) []device.Process {
	const context = 9 * mib
	bytes, _ := used.Get()
	if bytes == 0 {
		return nil
	}
	return []device.Process{{
		PID: uint32(pid), Name: r.process, Type: "compute",
		MemoryUsed: device.Of(bytes - context), Utilization: utilization,
	}}
}
