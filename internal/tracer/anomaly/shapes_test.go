package anomaly

import "math"

// shape is a kind of work without any fault.
type shape struct {
	name  string
	begin func(*world)
	week  bool // simulated for a week, because an alarm once in the life of a process is accepted
}

// size returns how many processes are simulated, and for how many seconds each.
func (s shape) size(processes int, length float64) (int, float64) {
	if s.week && processes > 1 {
		return 2, hours(7 * 24)
	}
	return processes, length
}

// shapes are the kinds of work that must not be mistaken for slow ones. What most of them have
// in common is that the work of a launch changes, or that there is nothing to do.
var shapes = []shape{
	{name: "steady training", begin: steadyTraining},
	{name: "training, warm-up", begin: warmUp},
	{name: "training, gradient accumulation", begin: accumulation},
	{name: "training, pauses for checkpoints", begin: pauses},
	{name: "training, lengths by shard", begin: lengthsByShard},
	{name: "training, packed documents", begin: packed},
	{name: "training, evaluation with nearly the same kernels", begin: evaluation},
	{name: "training, curriculum", begin: curriculum},
	{name: "training, restless loader", begin: restlessLoader},
	{name: "training, data-parallel", begin: dataParallel},
	{name: "training, data-parallel, lengths by shard", begin: dataParallelLengths},
	{name: "training, data-parallel, packed documents", begin: dataParallelPacked},
	{name: "training, sweep over batch sizes", begin: sweep},
	{name: "reinforcement learning", begin: reinforcement},
	{name: "LLM serving, wandering load", begin: serving},
	{name: "LLM serving that polls", begin: servingPolls},
	{name: "LLM decoding with graphs", begin: graphDecode},
	{name: "model server, wandering load", begin: modelServer},
	{name: "model server, saturated by day", begin: saturatedServer, week: true},
	{name: "bursts", begin: bursts},
	{name: "pipeline with several streams", begin: pipeline},
	{name: "notebook", begin: notebook},
}

// Launches in a step of a training job with 24 layers, by kernel.
var (
	trainingKernels = []string{
		"gemm_fwd", "layer_norm", "attention_fwd", "elementwise", "gemm_bwd", "layer_norm_grad", "attention_bwd", "reduce", "multi_tensor_adam", "nll_loss", "nccl_all_reduce",
	}
	forwardOnly = []float64{96, 48, 24, 120, 0, 0, 0, 0, 0, 1, 0}
	trainStep   = []float64{96, 48, 24, 120, 192, 48, 24, 72, 40, 1, 0}
)

// trainer returns a step of a training job on a fixed batch, which takes about a quarter of a
// second and waits for its loss.
func trainer(w *world) step {
	w.kernels, w.threads, w.hot = trainingKernels, 2, 0.1
	gpu := w.between(0.15, 0.4)
	return step{
		kernels: trainStep, grid: 64, gpu: gpu, compute: w.between(0.7, 1), host: gpu * w.between(0.3, 0.8), prepare: gpu * w.between(0.01, 0.08),
		input: gpu * w.between(0, 0.03), copies: gpu * w.between(0.005, 0.03), bytes: w.between(4e6, 4e7),
	}
}

// longer returns a step on more of the same kind: the launches stay, all else grows.
func longer(s step, by float64) step {
	s.gpu, s.grid, s.bytes, s.copies, s.prepare = s.gpu*by, s.grid*by, s.bytes*by, s.copies*by, s.prepare*by
	return s
}

// vary adds the noise of a single step.
func (w *world) vary(s step) step {
	s.gpu *= w.noise(0.01)
	s.host *= w.noise(0.05)
	s.prepare *= w.noise(0.2)
	s.input *= w.noise(0.5)
	return s
}

func steadyTraining(w *world) {
	s := trainer(w)
	w.next = func() step { return w.vary(s) }
}

// The first minutes choose algorithms, compile and fill caches. Later a new shape is compiled
// now and then.
func warmUp(w *world) {
	s := trainer(w)
	over := w.between(300, 1200)
	w.next = func() step {
		t := s
		if early := 1 - w.now/over; early > 0 {
			t.gpu *= 1 + 0.4*early
			t.prepare += s.gpu * 0.8 * early * w.noise(0.3)
			if w.rand.Float64() < 0.02*early {
				t.prepare += w.between(1, 20)
			}
		} else if w.rand.IntN(20000) == 0 {
			t.prepare += w.between(5, 40)
		}
		return w.vary(t)
	}
}

func accumulation(w *world) {
	s := trainer(w)
	s.kernels = append([]float64(nil), trainStep...)
	s.kernels[8] = 0
	update := step{kernels: make([]float64, len(trainStep)), grid: 64, gpu: s.gpu * w.between(0.3, 2), compute: 0.2, host: s.gpu * 0.2}
	update.kernels[8] = 160
	n, turn := 4+w.rand.IntN(60), 0
	w.next = func() step {
		if turn++; turn%n == 0 {
			return w.vary(update)
		}
		return w.vary(s)
	}
}

// Checkpoints copy the state to the host and write it, in the main thread or asleep; the ends of
// epochs start the loader's workers anew.
func pauses(w *world) {
	s := trainer(w)
	due, epoch := w.between(600, 1800), w.between(300, 3000)
	each, far := w.between(600, 3600), w.between(1800, 7200)
	w.next = func() step {
		switch {
		case w.now > due:
			due = w.now + each
			return step{copies: w.between(0.5, 4), bytes: 2e10, prepare: w.between(1, 30), input: w.between(2, 90)}
		case w.now > epoch:
			epoch = w.now + far
			return step{input: w.between(3, 40), prepare: w.between(0, 5)}
		}
		return w.vary(s)
	}
}

// relength calls set with a new length, relative to 1, for each shard.
func relength(w *world, low, high, shortest, longest float64) func() float64 {
	end, by := 0.0, 1.0
	return func() float64 {
		if w.now >= end {
			end, by = w.now+w.between(shortest, longest), math.Exp(w.between(math.Log(low), math.Log(high)))
		}
		return by * w.noise(0.03)
	}
}

func lengthsByShard(w *world) {
	s := trainer(w)
	length := relength(w, 0.4, 2.5, 120, 2400)
	w.next = func() step { return w.vary(longer(s, length())) }
}

// Documents are packed into batches of a fixed number of tokens. Attention within a document
// takes longer for longer ones: neither bytes, nor grids, nor launches reveal it.
func packed(w *world) {
	s := trainer(w)
	length := relength(w, 0.3, 3, 120, 2400)
	w.next = func() step {
		t := w.vary(s)
		t.gpu *= 0.7 + 0.3*length()
		return t
	}
}

func evaluation(w *world) {
	s := trainer(w)
	// Most launches are of the forward pass, by recomputation.
	s.kernels = []float64{192, 96, 48, 240, 40, 10, 5, 16, 4, 1, 0}
	e := longer(s, w.between(1.1, 3))
	e.kernels = []float64{192, 96, 48, 240, 0, 0, 0, 0, 0, 1, 0}
	e.host = s.host
	each, lasts := w.between(300, 1800), w.between(40, 400)
	w.next = func() step {
		if math.Mod(w.now, each) > each-lasts*min(1, each/900) {
			return w.vary(e)
		}
		return w.vary(s)
	}
}

func curriculum(w *world) {
	s := trainer(w)
	by, due := 0.3, 0.0
	w.next = func() step {
		if w.now > due {
			due = w.now + w.between(600, 2400)
			by *= w.between(1.05, 1.4)
		}
		return w.vary(longer(s, min(by, 3)))
	}
}

// The loader is usually late, sometimes more and sometimes less: what it reads is cached or
// not.
func restlessLoader(w *world) {
	s := trainer(w)
	level, late := 0.0, 0.3
	w.next = func() step {
		if w.rand.IntN(40) == 0 {
			level = 0.9*level + 0.3*w.rand.NormFloat64()
		}
		t := w.vary(s)
		t.input = s.gpu * late * math.Exp(level) * w.noise(0.6)
		return t
	}
}

// Ranks arrive a little after each other, sometimes one is late for a few steps.
func dataParallel(w *world) {
	s := trainer(w)
	s.kernels = append([]float64(nil), trainStep...)
	s.kernels[10], s.colls, s.ranks = 24, 24, s.gpu*0.03
	hitch := 0
	w.next = func() step {
		t := w.vary(s)
		if hitch--; w.rand.IntN(3000) == 0 {
			hitch = w.rand.IntN(20)
		}
		if t.ranks *= w.noise(0.6); hitch > 0 {
			t.ranks += s.gpu * w.between(0.2, 1)
		}
		return t
	}
}

// Each rank has its own shards: the others take as long as the longest of them.
func dataParallelLengths(w *world) {
	s := trainer(w)
	s.kernels = append([]float64(nil), trainStep...)
	s.kernels[10], s.colls = 24, 24
	all := relength(w, 0.5, 2, 300, 2400)
	w.next = func() step {
		by := all()
		t := w.vary(longer(s, by))
		t.ranks = t.gpu * max(0, 0.03+0.06*w.rand.NormFloat64())
		return t
	}
}

// All ranks have documents of about the same length at a time.
func dataParallelPacked(w *world) {
	s := trainer(w)
	s.kernels = append([]float64(nil), trainStep...)
	s.kernels[10], s.colls = 24, 24
	length := relength(w, 0.3, 3, 120, 2400)
	w.next = func() step {
		t := w.vary(s)
		t.gpu *= 0.7 + 0.3*length()
		t.ranks = t.gpu * max(0, 0.03+0.03*w.rand.NormFloat64())
		return t
	}
}

// The same program trains with one batch size after the other.
func sweep(w *world) {
	s := trainer(w)
	end := 0.0
	t := s
	w.next = func() step {
		if w.now > end {
			end = w.now + w.between(300, 3000)
			t = longer(s, []float64{0.5, 1, 2, 4}[w.rand.IntN(4)])
			t.host = s.host * w.between(0.9, 1.1)
			return step{prepare: w.between(1, 20), input: w.between(0, 5)}
		}
		return w.vary(t)
	}
}

// Answers are written for a while, which takes longer the longer they get, then learned from.
func reinforcement(w *world) {
	learn := trainer(w)
	write := step{kernels: []float64{24, 24, 6, 30, 0, 0, 0, 0, 0, 0, 0}, grid: 8, compute: 0.3, host: 0.012, prepare: 0.0015, bytes: 1000, copies: 1e-5}
	end, writing, tokens, longest := 0.0, false, 0.0, w.between(0.025, 0.04)
	w.next = func() step {
		if w.now > end {
			writing, tokens = !writing, 0
			end = w.now + w.between(20, 240)
			longest *= w.between(0.98, 1.04)
		}
		if !writing {
			return w.vary(learn)
		}
		tokens++
		t := write
		t.gpu = longest * (0.6 + 0.8*min(1, tokens/1500))
		return w.vary(t)
	}
}
