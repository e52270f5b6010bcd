package sim

import (
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// intel shows what xe and i915 publish for a data center GPU.
type intel struct {
	pcie int // generation
}

var intelMaker = &maker{
	vendor: "intel", driver: "xe 6.17.0", count: 4, buses: []int{0x29, 0x3a, 0x9a, 0xca},
	uuid: func(key uint64) string { return "intel-" + uuid(key) },
}

var intelModels = map[string]*model{
	"max1550": {
		maker: intelMaker, name: "Intel Data Center GPU Max 1550", architecture: "Xe-HPC",
		memory: 128 * gib,
		watts:  watts{idle: 160, limit: 600}, hot: 100,
		sensors: []sensor{
			{name: "hotspot", idle: 38, full: 72, limits: []limit{{"slowdown", 100}, {"shutdown", 105}}},
			{name: "memory", idle: 35, full: 61, limits: []limit{{"slowdown", 95}, {"shutdown", 105}}},
		},
		clocks: []clock{{"graphics", 0, 1600, 16}, {"graphics_tile1", 0, 1600, 16}}, // asleep without load
		shows:  intel{pcie: 5},
	},
}

func (d intel) read(r *reading) {
	m := r.gpu.model
	r.Utilization.Compute = device.Of(r.now.busy)
	r.Memory = device.Memory{Used: device.Of(r.used()), Total: device.Of(m.memory)}
	r.Temperatures = r.temperatures(false)
	limit := device.Of(m.watts.limit)
	r.Powers = []device.Power{{
		Scope: "gpu", Average: device.Of(r.average()), // derived from the energy
		Limits: []device.PowerLimit{{Type: device.LimitEnforced, Watts: limit}, {Type: "default", Watts: limit}},
	}}
	r.Energy = device.Of(floor(r.sum.joules, 1e6))
	r.Clocks = r.frequencies(true)
	const power, thermal = device.BucketPower | device.BucketSW, device.BucketThermal | device.BucketSW
	r.Throttles = []device.Throttle{
		{Cause: "pl1", Buckets: power, Active: r.now.capped},
		{Cause: "pl2", Buckets: power},
		{Cause: "pl4", Buckets: device.BucketPower | device.BucketHW},
		{Cause: "vr_tdc", Buckets: device.BucketPower | device.BucketHW},
		{Cause: "thermal", Buckets: thermal, Active: r.now.slowed},
		{Cause: "ratl", Buckets: thermal},
		{Cause: "prochot", Buckets: device.BucketThermal | device.BucketHW},
		{Cause: "vr_thermalert", Buckets: device.BucketThermal | device.BucketHW},
	}
	r.PCIe = r.link(d.pcie, d.pcie)
	r.Status = device.Of(0)
	r.Processes = r.gpu.process(r.up, r.Memory.Used)
	for i := range r.Processes {
		r.Processes[i].Utilization = device.Of(r.now.busy)
	}
}

func (intel) readPart(*partition, time.Duration, *device.Sample) {}
