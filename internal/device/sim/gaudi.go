package sim

import (
	"fmt"
	"math"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// gaudi shows what HLML and the habanalabs files in sysfs publish.
type gaudi struct {
	ports    int     // Ethernet ports between the devices
	pcie     int     // generation
	baseline float64 // bytes reserved by the driver
}

var gaudiMaker = &maker{
	vendor: "gaudi", driver: "1.22.1-97ec1a4", count: 8, buses: []int{0x0f, 0x2f, 0x3e, 0x5d, 0x91, 0xb3, 0xc5, 0xe6},
	uuid: func(key uint64) string {
		h := hash(key, 1)
		return fmt.Sprintf("01P4-HL3090A0-18-U4V%03d-%02d-%02d-%02d", h%1000, h>>10%24, h>>15%12, h>>19%12)
	},
}

var gaudiModels = map[string]*model{
	"gaudi3": {
		maker: gaudiMaker, name: "Intel Gaudi3 HL-325L", architecture: "gaudi3", firmware: "hl-gaudi3-1.22.1-fw-61.0.2",
		memory: 131072 * mib,
		watts:  watts{idle: 226, limit: 850}, hot: 95,
		sensors: []sensor{
			{name: "edge", idle: 36, full: 68, limits: []limit{{"operating", 95}, {"slowdown", 100}, {"shutdown", 105}}},
			{name: "board", idle: 32, full: 51},
			{name: "memory", idle: 38, full: 63, limits: []limit{{"operating", 95}}},
		},
		clocks: []clock{{"soc", 200, 1600, 10}, {"mme", 200, 1600, 10}, {"tpc", 200, 1600, 10}},
		shows:  gaudi{ports: 24, pcie: 5, baseline: 672 * mib},
	},
}

func (d gaudi) read(r *reading) {
	m := r.gpu.model
	r.Utilization.Compute = device.Of(percent(r.now.busy))
	used := min(r.used()+d.baseline, m.memory)
	r.Memory = device.Memory{Used: device.Of(used), Free: device.Of(m.memory - used), Total: device.Of(m.memory)}
	r.Temperatures = r.temperatures(true)
	limit := device.Of(m.watts.limit)
	r.Powers = []device.Power{{
		Scope: "gpu", Instant: device.Of(math.Round(r.now.watts)),
		Limits: []device.PowerLimit{{Type: device.LimitEnforced, Watts: limit}, {Type: "default", Watts: limit}},
	}}
	r.Energy = device.Of(floor(r.sum.joules, 1e3)) // mJ
	r.Clocks = r.frequencies(true)
	r.Throttles = []device.Throttle{
		{Cause: "power", Buckets: device.BucketPower | device.BucketSW, Active: r.now.capped},
		{Cause: "thermal", Buckets: device.BucketThermal | device.BucketSW, Active: r.now.slowed},
	}
	r.PCIe = r.link(d.pcie, d.pcie)
	r.PCIe.Replays = device.Of(r.bad.replays)
	ethernet := device.Interconnect{Type: "ethernet", Links: make([]device.Link, d.ports)}
	for i := range ethernet.Links {
		ethernet.Links[i] = device.Link{Index: i, Up: device.Of(1)}
	}
	r.Interconnects = []device.Interconnect{ethernet} // their counters are too expensive to read
	r.Modes.ECC = device.Of(1)
	for _, lifetime := range []string{"volatile", "aggregate"} { // HLML reports no corrected errors
		ecc := func(location string, n float64) device.ECC {
			return device.ECC{Type: "uncorrected", Lifetime: lifetime, Location: location, Count: device.Of(n)}
		}
		r.ECC = append(r.ECC, ecc("", r.bad.uncorrected), ecc("sram", 0), ecc("dram", r.bad.uncorrected))
	}
	r.RowRemap = device.RowRemap{
		Corrected: device.Of(0), Uncorrected: device.Of(r.bad.uncorrected), Pending: device.Flag(r.bad.remap),
	}
	r.Status = device.Of(0)
	r.Resets = []device.ErrorCount{{Type: "hard", Count: device.Of(r.bad.losses)}, {Type: "soft", Count: device.Of(0)}}
	r.Processes = r.gpu.process(r.up, device.Of(r.used()))
	for i := range r.Processes { // only which process has the device file open is known
		r.Processes[i].MemoryUsed = device.Value{}
	}
}

func (gaudi) readPart(*partition, time.Duration, *device.Sample) {}
