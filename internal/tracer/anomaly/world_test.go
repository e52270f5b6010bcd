package anomaly

import (
	"cmp"
	"math"
	"math/rand/v2"
	"time"

	"github.com/gpumeter/gpumeter/internal/host"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/tracer"
)

// step is one turn of a process's loop, in seconds at full speed: it sleeps until its input is
// there, prepares and copies it, launches while the device already works, and waits for the
// end.
type step struct {
	kernels []float64 // launches, in the order of traits.kernels
	graphs  float64   // launches of graphs
	grid    float64   // size of the input, which the grid of some kernels follows
	gpu     float64
	compute float64 // part of gpu that follows the SM clock; the rest waits for memory
	host    float64 // CPU time while the device works
	prepare float64 // CPU time while it does not
	input   float64 // without anything to do
	copies  float64 // in calls that copy to the device
	bytes   float64
	ranks   float64 // the device spins in a collective until the other ranks arrive
	colls   float64 // collectives
}

// traits are what does not change within a shape of work.
type traits struct {
	kernels []string
	threads float64 // that launch, one at a time: PyTorch has one more for the backward pass
	every   float64 // steps for each synchronization; if more than 1, input and device overlap
	polls   bool    // asks for events: the tracer sees neither waits nor bubbles
	spins   bool    // runs while there is no input, instead of sleeping
	blocks  bool    // sleeps in synchronizations, instead of spinning
	hot     float64 // part of the windows in which the power limit lowers the clock a little
}

// fault is what slows a process down. A cost is a fraction of the time of an average step.
type fault struct {
	from, to  float64 // seconds
	clock     float64 // fraction of the usual one; 0 if it is unchanged
	heat      bool    // lowers the clock, not the power limit
	neighbour float64 // fraction of the device's time
	queued    float64 // cost of waiting for a CPU
	late      float64 // cost of late input
	copies    float64 // cost of copies
	storm     bool    // copies are more, not slower
	ranks     float64 // cost of waiting for other ranks
	patchy    float64 // deviation of the cost from step to step
	nth       int     // input is late once in so many steps, at as many times the cost
}

// What a world counts. Times are in seconds.
const (
	graphCalls = iota
	inLaunches
	syncCalls
	inSyncs
	busyTime
	bubbleTime
	copyCalls
	inCopies
	copyBytes
	barriers
	inBarriers
	runQueue
	asleep
	asleepInCalls
	onDevice // of this process
	spinning // part of it that waits for other ranks
	collCalls
	numbers
)

// world is one process on one GPU as the tracer, the driver and the kernel see it. It runs
// step by step. Windows end where they end, in the middle of a step.
type world struct {
	traits
	rand  *rand.Rand
	next  func() step
	fault fault
	hide  func(*Window) // facts that are not there
	now   float64
	steps int

	counts   [numbers]float64
	launched []float64 // by kernel
	grid     float64
	before   [numbers]float64 // at the end of the previous window
}

func newWorld(seed uint64, shape func(*world)) *world {
	w := &world{rand: rand.New(rand.NewPCG(seed, 5))}
	w.threads, w.every = 1, 1
	shape(w)
	w.launched = make([]float64, len(w.kernels))
	return w
}

// noise is a factor around 1 with a heavy tail.
func (w *world) noise(deviation float64) float64 {
	f := math.Exp(deviation * w.rand.NormFloat64())
	if w.rand.IntN(100) == 0 {
		f += 4 * deviation * w.rand.ExpFloat64()
	}
	return f
}

func (w *world) between(a, b float64) float64 { return a + (b-a)*w.rand.Float64() }

// cost returns the seconds that a fault adds to a step that takes rest without it.
func (w *world) cost(part, rest float64) float64 {
	if part <= 0 {
		return 0
	}
	return rest * part / (1 - part) * w.noise(w.fault.patchy)
}

// turn runs one step and hands out the windows that end within it.
func (w *world) turn(observe func(Window)) {
	s := w.next()
	w.steps++
	var f fault
	if w.now >= w.fault.from && w.now < w.fault.to {
		f = w.fault
	}
	clock := cmp.Or(f.clock, 1)
	own := s.gpu * (s.compute/clock + 1 - s.compute)
	device := own / (1 - f.neighbour)
	queued := 0.0
	if usual := s.prepare + s.copies + max(s.host, s.gpu) + s.ranks; s.gpu > 0 {
		// What overlaps with the device costs nothing until it takes longer than the device.
		slack := 0.0
		if w.every > 1 {
			slack = max(0, device-s.input-s.prepare-s.copies-s.host)
		}
		if n := max(1, f.nth); f.late > 0 && w.steps%n == 0 {
			s.input += w.cost(f.late, usual)*float64(n) + slack
		}
		if f.queued > 0 {
			queued = w.cost(f.queued, usual) + slack
		}
		s.ranks += w.cost(f.ranks, usual)
		more := 0.0
		if f.copies > 0 {
			more = w.cost(f.copies, usual) + slack
		}
		if s.copies += more; f.storm {
			s.bytes += more * 20e9
		}
	}
	onHost := s.prepare + s.copies + s.host + queued
	wait := max(0, device-s.host) + s.ranks
	if w.every > 1 { // the device works on the previous step meanwhile
		wait = max(0, device+s.ranks-s.input-onHost)
	}
	length := s.input + onHost + wait
	if length <= 0 {
		return
	}
	if s.grid > 0 {
		w.grid = s.grid
	}
	w.spread(w.deltas(&s, own, queued, wait, length), s.kernels, length, observe)
}

// deltas returns what a step adds to the counts.
func (w *world) deltas(s *step, own, queued, wait, length float64) [numbers]float64 {
	launches := s.graphs
	for _, n := range s.kernels {
		launches += n
	}
	var d [numbers]float64
	d[graphCalls], d[inLaunches] = s.graphs, launches*4e-6
	if s.bytes > 0 {
		d[copyCalls] = math.Ceil(s.bytes / 16e6)
	}
	d[inCopies], d[copyBytes] = s.copies, s.bytes
	d[runQueue], d[collCalls] = queued, s.colls
	d[onDevice], d[spinning] = own+s.ranks, s.ranks // a collective that waits keeps the device busy
	if s.gpu > 0 {
		d[asleep] = (w.threads - 1) * (length - s.input)
	} else {
		d[asleep] = (w.threads - 1) * s.prepare
	}
	if !w.spins {
		d[asleep] += w.threads * s.input
	}
	switch {
	case w.polls:
		d[busyTime] = length
		return d
	case w.every > 1 && s.gpu > 0: // launches wait for space in the queue
		d[syncCalls], d[inSyncs] = 1/w.every, wait/w.every
		d[inLaunches] += wait * (1 - 1/w.every)
		d[bubbleTime] = (s.input + s.prepare + s.copies) / w.every
		d[busyTime] = length - d[bubbleTime]
	case s.gpu > 0:
		d[syncCalls], d[inSyncs] = 1, wait
		d[bubbleTime] = s.input + s.prepare + s.copies + queued/2
		d[busyTime] = length - d[bubbleTime]
	default:
		d[bubbleTime] = length
	}
	if w.blocks {
		d[asleepInCalls] = d[inSyncs]
		d[asleep] += d[inSyncs]
	}
	if s.colls > 0 {
		d[barriers], d[inBarriers] = d[syncCalls], d[inSyncs]
	}
	return d
}

// spread adds the counts of a step evenly over its duration.
func (w *world) spread(d [numbers]float64, kernels []float64, length float64, observe func(Window)) {
	for left := length; left > 1e-12; {
		end := math.Floor(w.now/10+1e-9)*10 + 10
		took := min(left, end-w.now)
		part := took / length
		for i := range d {
			w.counts[i] += part * d[i]
		}
		for i, n := range kernels {
			w.launched[i] += part * n
		}
		w.now += took
		left -= took
		if w.now >= end-1e-9 {
			w.now = end
			observe(w.window())
		}
	}
}

// window returns the state at the end of a window.
func (w *world) window() Window {
	c := &w.counts
	at := noon.Add(dur(w.now))
	hist := func(n, sum int) tracer.Histogram { return tracer.Histogram{Count: uint64(c[n]), Sum: c[sum]} }
	p := tracer.Process{
		PID: 12, Name: "python3", Since: noon,
		Devices: []tracer.Device{{UUID: gpuA, Busy: dur(c[busyTime]), Wait: dur(c[inSyncs]), Bubble: dur(c[bubbleTime])}},
		Host: tracer.Host{
			Threads: int(w.threads), Known: true, RunQueue: dur(c[runQueue] + 2e-4*w.now), Blocked: dur(c[asleep]), BlockedInCall: dur(c[asleepInCalls]),
		},
	}
	launches := 0.0
	for i, name := range w.kernels {
		k := tracer.Kernel{Name: name, Symbol: name, Count: uint64(w.launched[i]), Grid: [3]uint32{132, 1, 1}, Block: [3]uint32{256, 1, 1}}
		if i%2 == 1 { // others, such as persistent matrix multiplications, always have the same grid
			k.Grid[0] = uint32(64 * w.grid)
		}
		p.Kernels = append(p.Kernels, k)
		launches += w.launched[i]
	}
	p.Ops = []tracer.OpStat{
		{Op: "cuLaunchKernel", Class: tracer.Launch, Time: tracer.Histogram{Count: uint64(launches), Sum: c[inLaunches]}},
		{Op: "cuMemcpyHtoD", Class: tracer.Copy, Kind: "htod", Bytes: uint64(c[copyBytes]), Time: hist(copyCalls, inCopies)},
	}
	if c[syncCalls] > 0 {
		p.Ops = append(p.Ops, tracer.OpStat{Op: "cuStreamSynchronize", Class: tracer.Sync, Time: hist(syncCalls, inSyncs)})
	}
	if c[graphCalls] > 0 {
		p.Ops = append(p.Ops, tracer.OpStat{Op: "cuGraphLaunch", Class: tracer.Graph, Time: tracer.Histogram{Count: uint64(c[graphCalls]), Sum: c[graphCalls] * 8e-6}})
	}
	if c[collCalls] > 0 {
		p.Ops = append(p.Ops, tracer.OpStat{Op: "ncclAllReduce", Class: tracer.Coll, Time: tracer.Histogram{Count: uint64(c[collCalls]), Sum: c[collCalls] * 1e-5}})
		p.Comms = []tracer.Comm{{Key: "c", ID: "c", Size: 16, BarrierWait: hist(barriers, inBarriers)}}
	}
	out := Window{
		Snapshot: tracer.Snapshot{Time: at, Started: noon, Processes: []tracer.Process{p}},
		Devices:  []DeviceFacts{w.driver()},
		Hosts: map[uint32]host.Facts{12: {
			Start: 7, MajorFaults: optional.Of(0), RunQueue: optional.Of(c[runQueue]), Throttled: optional.Of(0), Retransmits: optional.Of(0),
			CPUPressure: optional.Of(c[runQueue] + 0.01*w.now), IOPressure: optional.Of(0.001 * w.now), MemoryPressure: optional.Of(0), PressureOf: "cgroup",
		}},
	}
	w.before = w.counts
	if w.hide != nil {
		w.hide(&out)
	}
	return out
}

// driver returns the device facts of the window that ends now. A driver samples the use of a
// device: its number is a percentage with some noise.
func (w *world) driver() DeviceFacts {
	own := clip((w.counts[onDevice]-w.before[onDevice])/window.Seconds() + 0.01*w.rand.NormFloat64())
	own = math.Round(100*own) / 100
	spun := clip((w.counts[spinning] - w.before[spinning]) / window.Seconds())
	clock, capped, heat, limit := 1.0, 0.0, 0.0, 700.0
	if w.rand.Float64() < w.hot {
		capped, clock = w.rand.Float64(), 0.95
	}
	d := DeviceFacts{
		UUID: gpuA, SMClockMax: optional.Of(1980e6), HWSlowdown: optional.Of(0),
		Processes: []DeviceProcess{{PID: 12, Name: "python3", Workload: "team x", Utilization: optional.Of(own)}},
	}
	all := own
	// A fault that began within this window was there for a part of it.
	f := &w.fault
	if there := clip((min(w.now, f.to) - max(w.now-window.Seconds(), f.from)) / window.Seconds()); there > 0 {
		if f.clock > 0 {
			clock *= 1 - there*(1-f.clock)
			if f.heat {
				heat = there
			} else {
				capped = there
			}
		}
		if f.clock > 0 && !f.heat {
			limit = 400
		}
		if f.neighbour > 0 {
			theirs := clip(there*f.neighbour + 0.01*w.rand.NormFloat64())
			d.Processes = append(d.Processes, DeviceProcess{PID: 99, Name: "infer", Workload: "team y", Utilization: optional.Of(math.Round(100*theirs) / 100)})
			all = clip(own + theirs)
		}
	}
	d.SMClock = optional.Of(1980e6 * clock * (1 + 0.003*w.rand.NormFloat64()))
	// A kernel that waits for other ranks draws much less than one that calculates.
	draw := (120 + 500*all - 300*spun) * (1 + 0.01*w.rand.NormFloat64())
	d.Power, d.PowerLimit = optional.Of(min(limit-2, draw)), optional.Of(limit)
	d.PowerCapped, d.ThermalThrottled, d.Utilization = optional.Of(capped), optional.Of(heat), optional.Of(all)
	return d
}

// run lets the world go on until the time, in seconds, and returns what the detector reports.
func (w *world) run(d *Detector, until float64) []Anomaly {
	var told []Anomaly
	for w.now < until {
		w.turn(func(x Window) { told = append(told, d.Observe(x)...) })
	}
	return told
}

// hours is a duration in seconds.
func hours(h float64) float64 { return h * time.Hour.Seconds() }
