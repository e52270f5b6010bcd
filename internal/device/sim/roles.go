package sim

import (
	"math"
	"time"
)

// role is what a GPU or a partition is used for.
type role struct {
	load     func(key uint64, second int) load
	process  string // executable that holds the memory
	fails    bool   // the memory has errors
	leaves   bool   // the GPU falls off the bus from time to time
	logsXIDs bool   // the driver reports XIDs

	heat       float64 // power at full load, relative to the headroom between idle and limit; above 1 it is capped
	controller float64 // ratio of busy time during which memory is accessed
	links      float64 // utilization of all links to other devices per direction while busy
	feed       float64 // utilization of PCIe towards the device while busy
	activity   activity
	service    *service // how an inference engine in this role behaves; nil: there is none
}

// load is what a script demands of the hardware in one second, in ratios from 0 to 1.
type load struct {
	busy    float64 // time during which a kernel ran
	held    float64 // allocated memory
	upload  float64 // PCIe bandwidth used towards the host
	stifled float64 // lost cooling; at 1 the power limit would exceed the highest operating temperature

	waiting  float64 // requests in front of an inference engine
	quitting float64 // clients that leave the queue, per second
}

// activity is how much of the compute units kernels use while they run, in ratios.
type activity struct{ sm, occupancy, dram, tensor, fp64, fp32, fp16, integer float64 }

// plus returns a + k b.
func (a activity) plus(k float64, b activity) activity {
	return activity{
		a.sm + k*b.sm, a.occupancy + k*b.occupancy, a.dram + k*b.dram, a.tensor + k*b.tensor,
		a.fp64 + k*b.fp64, a.fp32 + k*b.fp32, a.fp16 + k*b.fp16, a.integer + k*b.integer,
	}
}

var (
	roleTraining = &role{
		load: training, process: "python3",
		heat: 1.36, controller: 0.48, links: 0.42, feed: 0.02,
		activity: activity{sm: 0.91, occupancy: 0.29, dram: 0.44, tensor: 0.63, fp32: 0.11, fp16: 0.06, integer: 0.15},
	}
	roleInference = &role{
		load: inference, process: "vllm",
		heat: 0.62, controller: 0.71, feed: 0.004,
		activity: activity{sm: 0.58, occupancy: 0.17, dram: 0.66, tensor: 0.13, fp32: 0.07, fp16: 0.04, integer: 0.09},
		service:  chat,
	}
	// An inference engine whose cache is full, so that its queue grows.
	roleSaturated = &role{
		load: saturated, process: "sglang",
		heat: 0.93, controller: 0.78, links: 0.11, feed: 0.006,
		activity: activity{sm: 0.83, occupancy: 0.24, dram: 0.71, tensor: 0.38, fp32: 0.09, fp16: 0.06, integer: 0.12},
		service:  summaries,
	}
	roleIdle        = &role{load: idle, process: "python3"}
	roleOverheating = &role{
		load: overheating, process: "gmx",
		heat: 0.97, controller: 0.33, feed: 0.01,
		activity: activity{sm: 0.94, occupancy: 0.52, dram: 0.31, fp64: 0.27, fp32: 0.38, integer: 0.12},
	}
	roleFailing = &role{
		load: failing, process: "python3", fails: true, leaves: true,
		heat: 0.83, controller: 0.41, links: 0.08, feed: 0.03,
		activity: activity{sm: 0.82, occupancy: 0.34, dram: 0.39, tensor: 0.41, fp32: 0.12, fp16: 0.08, integer: 0.14},
	}
	// A GPU that fails and overheats without being lost, so that it stays visible.
	roleSick = &role{
		load: overheating, process: "python3", fails: true, logsXIDs: true,
		heat: 0.97, controller: 0.41, links: 0.3, feed: 0.02,
		activity: activity{sm: 0.82, occupancy: 0.34, dram: 0.39, tensor: 0.41, fp32: 0.12, fp16: 0.08, integer: 0.14},
	}
	// A job in a partition has no links and, being small, no checkpoints.
	roleTuning = &role{
		load: tuning, process: "python3",
		activity: activity{sm: 0.88, occupancy: 0.31, dram: 0.47, tensor: 0.52, fp32: 0.13, fp16: 0.05, integer: 0.14},
	}
)

// roles are assigned by index; nil is the partitioned GPU.
var roles = [8]*role{
	roleTraining, roleTraining, roleTraining, roleInference,
	roleIdle, roleOverheating, roleFailing, nil,
}

// partitionRoles are assigned to a model's slices, in order.
var partitionRoles = [4]*role{roleInference, roleTuning, roleInference, roleIdle}

// The scripts. Each is a function of the second within the period, and the times in them
// divide the period.

func training(key uint64, second int) load {
	const checkpointEvery, checkpoint = 300, 10
	if second%checkpointEvery >= checkpointEvery-checkpoint {
		return load{busy: 0.06, held: 0.88, upload: 0.36}
	}
	return load{busy: 0.955 + 0.03*noise(key, second, 10), held: 0.88}
}

func inference(key uint64, second int) load {
	const cacheLife = 450
	day := 0.5 - 0.5*math.Cos(2*math.Pi*float64(second+int(key%period))/period)
	busy := 0.1 + 0.5*day + 0.2*noise(key, second, 30) + 0.15*noise(hash(key, 1), second, 5)
	busy = min(max(busy, 0.02), 0.95)
	cache := float64(second%cacheLife) / cacheLife
	return load{busy: busy, held: 0.58 + 0.34*cache, upload: 0.002 * busy}
}

// saturated is an engine with more requests than fit into its cache. Its queue grows until the
// clients give up, and after a short relief it grows again.
func saturated(key uint64, second int) load {
	const grows, leaves, relief = 1320, 240, 240 // seconds
	const cache, busy = 0.991, 0.965             // as long as the cache is full
	s := (second + int(key%period)) % period
	l := load{busy: busy + 0.012*noise(key, second, 10), upload: 0.002}
	used := cache + 0.004*noise(hash(key, 1), second, 30)
	switch {
	case s < grows:
		l.waiting = summaries.queue * float64(s) / grows
	case s < grows+leaves:
		l.waiting = summaries.queue * float64(grows+leaves-s) / leaves
		l.quitting = grid(summaries.queue * (1.0/leaves + 1.0/grows)) // also those that still arrive
	default:
		ease := math.Sin(math.Pi * float64(s-grows-leaves) / relief)
		used -= 0.09 * ease * ease
		l.busy -= 0.09 * ease * ease
	}
	l.held = summaries.empty + (summaries.full-summaries.empty)*used
	return l
}

func idle(uint64, int) load { return load{held: 0.41} }

// vacant is the load of a device without a tenant.
func vacant(uint64, int) load { return load{} }

func overheating(key uint64, second int) load {
	const cycle, begin, end, rise, fall = 600.0, 210, 510, 60, 30
	s := math.Mod(float64(second), cycle)
	return load{
		busy:    0.97 + 0.015*noise(key, second, 10),
		held:    0.52,
		stifled: max(0, min(1, (s-begin)/rise, (end-s)/fall)),
	}
}

func failing(key uint64, second int) load {
	if offBus(time.Duration(second) * time.Second) {
		return load{}
	}
	return load{busy: 0.84 + 0.08*noise(key, second, 30), held: 0.67}
}

func tuning(key uint64, second int) load {
	return load{busy: 0.9 + 0.06*noise(key, second, 10), held: 0.79}
}

// faults are the counters and flags of a failing GPU.
type faults struct {
	corrected, uncorrected, replays, linkReplays float64
	losses                                       float64 // times the GPU was lost
	remap                                        bool
}

// The course of a failing GPU. The row remapping stays pending because nothing resets the
// GPU.
const (
	failCycle = 10 * time.Minute
	failAt    = 5 * time.Minute
	failFor   = time.Minute
	remapAt   = 3 * time.Minute
)

// offBus reports whether a failing GPU is off the bus.
func offBus(up time.Duration) bool {
	in := up % failCycle
	return in >= failAt && in < failAt+failFor
}

// faults returns the faults up to up.
func (r *role) faults(up time.Duration) faults {
	if !r.fails || up < 0 {
		return faults{}
	}
	f := faults{
		corrected:   float64(up / (7 * time.Second)),
		replays:     float64(up / (23 * time.Second)),
		linkReplays: float64(up / (3 * time.Minute)),
		losses:      float64((up + failCycle - failAt) / failCycle),
		remap:       up >= remapAt,
	}
	if f.remap {
		f.uncorrected = 1
	}
	return f
}
