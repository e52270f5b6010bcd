package sim

import (
	"math"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// reading is the sample that a driver fills in, and the state of the device.
type reading struct {
	device.Sample
	gpu *gpu
	up  time.Duration
	now *moment
	sum sums // since boot
	bad faults
}

// Readings have the resolution of the real driver's.

// percent rounds a ratio to whole percents.
func percent(ratio float64) float64 { return math.Round(ratio*100) / 100 }

// floor truncates v to a multiple of 1/parts, which keeps a counter monotonic.
func floor(v, parts float64) float64 { return math.Floor(v*parts) / parts }

// allocated returns a ratio of bytes, in the 2 MiB pages that drivers allocate.
func allocated(ratio, bytes float64) float64 {
	const page = 2 * mib
	return math.Floor(ratio*bytes/page) * page
}

// used returns the allocated bytes, including those of all partitions.
func (r *reading) used() float64 {
	g := r.gpu
	used := allocated(r.now.held, g.model.memory-g.model.reserved)
	for _, p := range g.partitions {
		used += allocated(p.at(r.up).held, p.slice.memory)
	}
	return used
}

// temperatures returns the sensors, with the margin to each limit if the driver reports it.
func (r *reading) temperatures(margins bool) []device.Temperature {
	die := r.gpu.model.sensors[0]
	warmth := (r.now.celsius - die.idle) / (die.full - die.idle)
	list := make([]device.Temperature, len(r.gpu.model.sensors))
	for i, s := range r.gpu.model.sensors {
		v := math.Round(s.idle + warmth*(s.full-s.idle))
		list[i] = device.Temperature{Sensor: s.name, Value: device.Of(v)}
		for _, l := range s.limits {
			at := device.TemperatureCap{Event: l.event, Limit: device.Of(l.celsius)}
			if margins {
				at.Margin = device.Of(l.celsius - v)
			}
			list[i].Limits = append(list[i].Limits, at)
		}
	}
	return list
}

// average returns the mean power over the second that ends at up.
func (r *reading) average() float64 {
	into := (r.up % time.Second).Seconds()
	before := r.gpu.back(r.up, 1)
	return math.Round((into*r.now.watts+(1-into)*before.watts)*1e3) / 1e3
}

// frequencies returns the clocks, with their limits if the driver reports them.
func (r *reading) frequencies(limits bool) []device.Clock {
	list := make([]device.Clock, len(r.gpu.model.clocks))
	for i, c := range r.gpu.model.clocks {
		f := c.full
		switch {
		case r.now.busy == 0:
			f = c.idle
		case c.step > 0:
			f = math.Round(c.full*r.now.clock/c.step) * c.step
		}
		list[i] = device.Clock{Type: c.kind, Frequency: device.Of(f * mhz)}
		if limits {
			list[i].Limit = device.Of(c.full * mhz)
		}
	}
	return list
}

// lanes is the width of the PCIe link of every model.
const lanes = 16

// pcieRate returns the bytes per second and direction of a link: 2.5 GT/s per lane in
// generation 1, 5 in generation 2, then 8 and its doubles, less the coding overhead of 2 in
// 10 or 2 in 130 bits.
func pcieRate(generation int) float64 {
	if generation < 3 {
		return lanes * 2.5e9 * float64(generation) / 10
	}
	return lanes * 8e9 * float64(int(1)<<(generation-3)) * 128 / 130 / 8
}

// link returns a PCIe link of the given generation, which drops to idle without load.
func (r *reading) link(generation, idle int) device.PCIe {
	now := generation
	if r.now.busy == 0 {
		now = idle
	}
	return device.PCIe{
		Generation: device.Of(float64(now)), GenerationMax: device.Of(float64(generation)),
		Width: device.Of(lanes), WidthMax: device.Of(lanes),
	}
}

// links returns the links between devices, each of rate bytes per second and direction.
func (r *reading) links(kind string, n int, rate float64) device.Interconnect {
	const asymmetry = 0.98          // makes swapped directions visible
	busy := r.gpu.role.links * rate // per link, while busy
	count := float64(n)
	tx, rx := math.Floor(busy*r.sum.busy), math.Floor(asymmetry*busy*r.sum.busy)
	c := device.Interconnect{
		Type: kind,
		TX:   device.Of(count * tx), RX: device.Of(count * rx),
		TXRate: device.Of(count * busy * r.now.busy), RXRate: device.Of(asymmetry * count * busy * r.now.busy),
		BandwidthLimit: device.Of(count * rate),
		Links:          make([]device.Link, n),
	}
	for i := range c.Links {
		c.Links[i] = device.Link{Index: i, Up: device.Of(1), TX: device.Of(tx), RX: device.Of(rx)}
	}
	return c
}

// ecc returns the totals. A failing device has a history from before boot.
func (r *reading) ecc() []device.ECC {
	var history float64
	if r.gpu.role.fails {
		history = float64(1000 + r.gpu.key%1000)
	}
	return []device.ECC{
		{Type: "corrected", Lifetime: "volatile", Count: device.Of(r.bad.corrected)},
		{Type: "corrected", Lifetime: "aggregate", Count: device.Of(history + r.bad.corrected)},
		{Type: "uncorrected", Lifetime: "volatile", Count: device.Of(r.bad.uncorrected)},
		{Type: "uncorrected", Lifetime: "aggregate", Count: device.Of(r.bad.uncorrected)},
	}
}

// process returns the process that holds used bytes, less the driver's context overhead, or
// nil if it holds none.
func process(r *role, pid int, used device.Value) []device.Process {
	const context = 9 * mib
	bytes, _ := used.Get()
	if bytes == 0 {
		return nil
	}
	return []device.Process{{PID: uint32(pid), Name: r.process, Type: "compute", MemoryUsed: device.Of(bytes - context)}}
}
