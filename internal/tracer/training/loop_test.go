package training

import (
	"maps"
	"math/rand/v2"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

var noon = time.Date(2026, 11, 19, 12, 0, 0, 0, time.UTC)

// part is a piece of a loop: launches of kernels, evenly over a time, or nothing.
type part struct {
	seconds float64
	kernels map[string]float64
	bubble  float64 // of the seconds
	sleep   float64 // of the seconds
	barrier float64 // of the seconds
	writes  float64 // bytes
	step    bool    // ends a step
}

// loop is a process as the tracer sees it, launch by launch.
type loop struct {
	rand    *rand.Rand
	pid     uint32
	began   float64
	now     float64
	next    func() []part
	counts  map[string]float64
	bubble  float64
	sleep   float64
	barrier float64
	graphs  float64
	rank    int
	ranks   int
	steps   uint64
	last    float64 // end of the last step
	written float64
	sampler *Sampler
	sampled float64
	reader  func(now float64, ended bool)
	every   float64 // seconds between readings
	due     float64
}

func newLoop(seed uint64, next func(*loop) []part) *loop {
	l := &loop{rand: rand.New(rand.NewPCG(seed, 20)), pid: 7, counts: map[string]float64{}, sampler: &Sampler{}, every: 10, due: 10, reader: func(float64, bool) {}}
	l.next = func() []part { return next(l) }
	return l
}

func (l *loop) noise(by float64) float64 { return max(0.2, 1+by*l.rand.NormFloat64()) }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func at(s float64) time.Time { return noon.Add(seconds(s)) }

// run goes on until the time.
func (l *loop) run(until float64) {
	for l.now < until {
		for _, p := range l.next() {
			l.play(p)
		}
	}
}

// steps runs a number of steps.
func (l *loop) make(n uint64) {
	for l.steps < n {
		for _, p := range l.next() {
			l.play(p)
		}
	}
}

func (l *loop) play(p part) {
	from, end := l.now, l.now+p.seconds
	base := maps.Clone(l.counts)
	bubble, sleep, barrier, written := l.bubble, l.sleep, l.barrier, l.written
	at := func(now float64) {
		f := 1.0
		if p.seconds > 0 {
			f = (now - from) / p.seconds
		}
		for k, n := range p.kernels {
			l.counts[k] = base[k] + f*n
		}
		l.bubble, l.sleep, l.barrier, l.written = bubble+f*p.bubble, sleep+f*p.sleep, barrier+f*p.barrier, written+f*p.writes
		l.now = now
	}
	for {
		next := min(l.due, l.sampled+1)
		if next >= end {
			break
		}
		at(next)
		l.tick()
	}
	at(end)
	for k, n := range p.kernels { // whole launches
		l.counts[k] = base[k] + n
	}
	if p.step {
		l.steps++
		l.last = l.now
	}
}

func (l *loop) tick() {
	if l.now >= l.sampled+1 {
		l.sampled++
		l.sampler.Sample(at(l.now), uint64(l.written))
	}
	if l.now >= l.due {
		l.reader(l.now, false)
		l.due += l.every * (1 + 0.01*(l.rand.Float64()-0.5))
	}
}

// process is what the tracer says.
func (l *loop) process(ended bool) tracer.Process {
	p := tracer.Process{
		PID: l.pid, Name: "python3", Since: at(l.began), Ended: ended, Launches: map[string]uint64{},
		Devices: []tracer.Device{{UUID: "GPU-a", Bubble: seconds(l.bubble)}},
		Host:    tracer.Host{Known: true, Threads: 1, Blocked: seconds(l.sleep)},
	}
	all := uint64(0)
	for k, n := range l.counts {
		p.Launches[k] = uint64(n)
		all += uint64(n)
	}
	p.Ops = []tracer.OpStat{{Op: "cuLaunchKernel", Class: tracer.Launch, Time: tracer.Histogram{Count: all}}}
	if l.graphs > 0 {
		p.Ops = append(p.Ops, tracer.OpStat{Op: "cuGraphLaunch", Class: tracer.Graph, Time: tracer.Histogram{Count: uint64(l.graphs)}})
	}
	if l.ranks > 1 {
		p.Comms = []tracer.Comm{{Key: "c", ID: "c", Rank: l.rank, Size: l.ranks, BarrierWait: tracer.Histogram{Sum: l.barrier}}}
	}
	return p
}

// sum is all growth of a process.
type sum struct {
	steps, checkpoints, bytes uint64
	took                      time.Duration // of the steps
	time                      map[Activity]time.Duration
	restarts                  int
	redone, down              time.Duration
	told                      bool
}

func (s *sum) add(g *Growth) {
	if s.time == nil {
		s.time = map[Activity]time.Duration{}
	}
	s.told = true
	if g.Leader {
		for _, x := range g.Steps {
			s.steps += x.Count
			s.took += time.Duration(x.Count) * x.Mean
		}
	}
	for a, d := range g.Time {
		s.time[a] += d
	}
	s.checkpoints += g.Checkpoints
	s.bytes += g.CheckpointBytes
	if g.Restarted {
		s.restarts++
	}
	s.redone += g.Redone
	s.down += g.Down
}

func (s *sum) all() (d time.Duration) {
	for _, x := range s.time {
		d += x
	}
	return d
}

// watch makes an observer read the loop alone, and returns what it says.
func (l *loop) watch(o *Observer, workload string) *sum {
	s := &sum{}
	l.reader = func(now float64, ended bool) {
		snap := &tracer.Snapshot{Time: at(now), Processes: []tracer.Process{l.process(ended)}}
		for _, g := range o.Observe(snap, func(uint32) Facts { return Facts{Workload: workload, Written: &l.sampler.Writes} }) {
			s.add(&g)
		}
	}
	return s
}

// exit ends the process, with a last reading.
func (l *loop) exit() {
	l.sampler.Sample(at(l.now), uint64(l.written))
	l.sampler.End()
	l.reader(l.now, true)
}

// The kernels of a transformer in PyTorch, by launches in a pass, and those of its optimizer.
var (
	forward  = map[string]float64{"sm90_xmma_gemm_bf16": 96, "vectorized_layer_norm_kernel": 48, "flash_fwd_kernel": 24, "elementwise_kernel": 120}
	backward = map[string]float64{"sm90_xmma_gemm_bf16": 192, "layer_norm_grad_input_kernel": 48, "flash_bwd_dq_dk_dv_loop_kernel": 24, "reduce_kernel": 72}
	loss     = map[string]float64{"nll_loss_forward_reduce_cuda_kernel_2d": 1}
	lossBack = map[string]float64{"nll_loss_backward_reduce_cuda_kernel_2d": 1}
	adamw    = map[string]float64{
		"multi_tensor_apply_kernel<..., BinaryOpScalarFunctor>": 12, "multi_tensor_apply_kernel<..., LerpFunctor>": 12, "multi_tensor_apply_kernel<..., PointwiseOpScalarFunctor>": 6,
	}
)

// training returns a loop with a step of about length seconds, whose gradients are accumulated over passes.
func training(length float64, passes int, update map[string]float64) func(*loop) []part {
	return func(l *loop) []part {
		each := length / float64(passes)
		var list []part
		for range passes {
			list = append(list,
				part{seconds: each * 0.05 * l.noise(0.2), bubble: each * 0.04, sleep: each * 0.04},
				part{seconds: each * 0.3 * l.noise(0.02), kernels: forward},
				part{seconds: each * 0.01, kernels: loss},
				part{seconds: each * 0.01, kernels: lossBack},
				part{seconds: each * 0.55 * l.noise(0.02), kernels: backward})
		}
		return append(list, part{seconds: length * 0.02, kernels: update, step: true})
	}
}

// observe makes one reading of several processes.
func observe(o *Observer, now float64, ended bool, list []*loop, sums map[int]*sum) {
	snap := &tracer.Snapshot{Time: at(now)}
	byPID := map[uint32]int{}
	for i, l := range list {
		byPID[l.pid] = i
		snap.Processes = append(snap.Processes, l.process(ended))
	}
	for _, g := range o.Observe(snap, func(uint32) Facts { return Facts{Workload: "job"} }) {
		sums[byPID[g.PID]].add(&g)
	}
}
