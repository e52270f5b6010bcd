package sim

import (
	"fmt"
	"math"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// neuron shows what the Neuron driver publishes in sysfs, and utilization as neuron-monitor
// reports it. Power is a ratio of the device's maximum.
type neuron struct {
	flops float64 // operations per second and core
}

var neuronMaker = &maker{
	vendor: "neuron", driver: "2.21.37.0", count: 16, cut: true,
	uuid: func(key uint64) string { return fmt.Sprintf("neuron-%016x", hash(key, 1)) },
	part: func(g *gpu, i int, _ uint64) string { return fmt.Sprintf("%s-nc%d", g.id.UUID, i) },
}

var neuronModels = map[string]*model{
	"trn2": {
		maker: neuronMaker, name: "Trainium2", architecture: "NCv3",
		memory: 96 * gib, watts: watts{idle: 120, limit: 500},
		shows:  neuron{flops: 667e12 / 8},
		slices: eighths("neuroncore", 12*gib), sliceOf: 8,
	},
}

func (d neuron) read(r *reading) {
	used, total := r.used(), r.gpu.model.memory
	busy := 0.0 // as the driver has it: the average of the cores
	for _, p := range r.gpu.partitions {
		busy += p.at(r.up).busy * p.part()
	}
	r.Utilization.Compute = device.Of(busy)
	r.Memory = device.Memory{Used: device.Of(used), Free: device.Of(total - used), Total: device.Of(total)}
	r.Powers = []device.Power{{Scope: "gpu", Utilization: device.Of(percent(r.minute() / r.gpu.model.watts.limit))}}
	ecc := func(kind, location string, n float64) {
		r.ECC = append(r.ECC, device.ECC{Type: kind, Lifetime: "volatile", Location: location, Count: device.Of(n)})
	}
	for _, location := range []string{"", "memory"} { // no errors in on-chip memory
		ecc("corrected", location, r.bad.corrected)
		ecc("uncorrected", location, r.bad.uncorrected)
	}
	ecc("corrected", "sram", 0)
	ecc("uncorrected", "sram", 0)
	ecc("uncorrected", "memory_repairable", 0)
	for _, p := range r.gpu.partitions {
		r.Processes = append(r.Processes, p.tenant(r.up)...)
		if !r.gpu.shared() { // one process holds all cores
			r.Processes = r.gpu.process(r.up, r.Memory.Used)
			break
		}
	}
}

// minute returns the average power over the last minute.
func (r *reading) minute() float64 {
	sum := 0.0
	for i := range 60 {
		sum += r.gpu.back(r.up, i).watts
	}
	return sum / 60
}

func (d neuron) readPart(p *partition, up time.Duration, s *device.Sample) {
	m := p.parent.model
	s.Info = device.Info{Driver: m.driver, Architecture: m.architecture}
	s.Utilization.Compute = device.Of(p.at(up).busy)
	s.Memory.Used = p.memory(p.at(up)).Used
	busy := p.busy(up)
	s.Runtime.Operations = device.Of(math.Floor(busy * d.flops))
	for _, result := range []string{"success", "failure", "timeout", "hw_error"} {
		n := 0.0
		if result == "success" {
			n = math.Floor(busy / 0.25) // seconds per execution
		}
		s.Runtime.Executions = append(s.Runtime.Executions, device.ErrorCount{Type: result, Count: device.Of(n)})
	}
	s.Resets = []device.ErrorCount{{Type: "requested", Count: device.Of(0)}, {Type: "failed", Count: device.Of(0)}}
	s.Processes = p.tenant(up)
}

// tenant returns the process on a core: its own, or the process that holds all cores.
func (p *partition) tenant(up time.Duration) []device.Process {
	used := p.memory(p.at(up)).Used
	if p.parent.shared() {
		return p.process(used)
	}
	return p.parent.process(up, used)
}
