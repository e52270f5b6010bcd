package sim

import (
	"math"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// tpu shows what the runtime inside the process on a chip reports. The chip itself reports
// nothing: no power, no temperature, no clock.
type tpu struct{}

var tpuMaker = &maker{
	vendor: "tpu", count: 4, buses: []int{0x04, 0x05, 0x06, 0x07},
	uuid: func(key uint64) string { return "tpu-" + uuid(key) },
}

var tpuModels = map[string]*model{
	"v6e": {maker: tpuMaker, name: "TPU v6e", architecture: "v6e", memory: 31.25 * gib, shows: tpu{}},
}

func (tpu) read(r *reading) {
	m := r.gpu.model
	used := r.used()
	r.Utilization = device.Engines{Compute: device.Of(r.now.busy), Memory: device.Of(r.gpu.role.activity.dram * r.now.busy)}
	r.Memory = device.Memory{Used: device.Of(used), Free: device.Of(m.memory - used), Total: device.Of(m.memory)}
	r.Runtime.Queue = device.Of(math.Round(2 * r.now.busy))
	r.Runtime.Idle = device.Of(r.idle())
	r.Runtime.Latencies = []device.Latency{programs(r.sum.busy)}
	r.Processes = r.gpu.process(r.up, device.Of(used))
	for i := range r.Processes {
		r.Processes[i].MemoryUsed = device.Of(used)
	}
}

// idle returns the seconds since the last program ended.
func (r *reading) idle() float64 {
	for i := range period {
		if r.gpu.back(r.up, i).busy > 0 {
			return float64(i)
		}
	}
	return math.Floor(r.up.Seconds()) // no program ran since boot
}

// programs returns the histogram of programs that took the given seconds in total. Of every
// four programs one takes 40 ms, two take 80 ms and one takes 120 ms.
func programs(seconds float64) device.Latency {
	const four = 0.32 // seconds
	rounds := uint64(seconds / four)
	return device.Latency{
		Operation: "program", Count: 4 * rounds, Seconds: four * float64(rounds),
		Bounds: []float64{0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1}, Counts: []uint64{0, 0, rounds, 2 * rounds, rounds, 0, 0, 0},
	}
}

func (tpu) readPart(*partition, time.Duration, *device.Sample) {}
