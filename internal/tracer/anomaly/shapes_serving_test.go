package anomaly

import "math"

// load is the requests a second over a day: it wanders, jumps now and then, and is low at night.
func (w *world) load(mean float64) func() float64 {
	level, due, phase := 0.0, 0.0, w.between(0, 2*math.Pi)
	return func() float64 {
		for ; due <= w.now; due += 10 {
			level = 0.995*level + 0.06*w.rand.NormFloat64()
			if w.rand.IntN(400) == 0 {
				level = w.between(-1, 0.5)
			}
		}
		return mean * math.Exp(level+0.4*math.Sin(phase+w.now/hours(4)*math.Pi))
	}
}

var servingKernels = []string{"gemm", "rms_norm", "paged_attention", "rope", "silu_mul", "flash_prefill", "sample", "elementwise"}

// llm serves requests by continuous batching: each turn decodes one token for every request in
// the batch, or reads the prompts that came in. Work of a turn follows the number and the
// length of requests; launches do not.
func llm(w *world) {
	w.kernels, w.blocks, w.hot = servingKernels, w.rand.IntN(2) == 0, 0.2
	largest := float64(16 + w.rand.IntN(48))
	answer, prompt := w.between(150, 500), w.between(300, 2000)
	token := w.between(0.02, 0.04) // seconds for a batch of one
	perSlot := token * w.between(0.01, 0.03)
	// Between half and more than all of what it can do.
	rate := w.load(w.between(0.4, 1.0) * largest / (answer * (token + largest*perSlot)))
	// What is asked for changes over the day: chat, then long documents.
	long := relength(w, 0.3, 3, 300, 2400)
	var ends []float64 // tokens left, by request
	waiting, due := 0.0, 0.0
	w.next = func() step {
		for due <= w.now {
			waiting = min(waiting+1, 200) // the rest is turned away
			due += w.rand.ExpFloat64() / rate()
		}
		s := step{grid: float64(len(ends) + 1), compute: 0.3, host: token * 0.5 * w.noise(0.1), prepare: 0.0008 * w.noise(0.3), bytes: 4096 + 512*float64(len(ends)), copies: 3e-5}
		if waiting > 0 && float64(len(ends)) < largest {
			n := math.Min(waiting, largest-float64(len(ends)))
			n = math.Min(n, 4)
			waiting -= n
			tokens := 0.0
			for range int(n) {
				ends = append(ends, math.Max(5, answer*w.rand.ExpFloat64()))
				tokens += math.Max(20, prompt*long()*w.rand.ExpFloat64())
			}
			s.kernels = []float64{128, 65, 0, 32, 32, 32, 2, 20}
			s.gpu, s.compute, s.bytes, s.grid = 0.004+tokens*2.5e-5, 0.9, 8*tokens+4096, tokens/16
			return s
		}
		if len(ends) == 0 {
			return step{input: math.Max(1e-4, due-w.now)}
		}
		s.kernels = []float64{128, 65, 32, 32, 32, 0, 2, 20}
		s.gpu = (token + perSlot*float64(len(ends))*long()) * w.noise(0.02)
		left := ends[:0]
		for _, n := range ends {
			if n--; n > 0 {
				left = append(left, n)
			}
		}
		ends = left
		return s
	}
}

func serving(w *world) { llm(w) }

func servingPolls(w *world) {
	llm(w)
	w.polls, w.blocks, w.spins = true, false, w.rand.IntN(2) == 0
}

// Batches of prompts are answered to the end with one graph per token. Attention reads more with
// each token, inside the graph.
func graphDecode(w *world) {
	w.kernels = []string{"sample", "copy_tokens", "flash_prefill"}
	token, tokens, longest := w.between(0.02, 0.05), 0.0, 0.0
	size := 1.0
	w.next = func() step {
		if tokens >= longest {
			tokens, longest = 0, w.between(800, 5000)
			size = w.between(0.5, 1.5)
			return step{kernels: []float64{1, 1, 200}, gpu: w.between(0.3, 2), compute: 0.9, host: 0.01, prepare: w.between(0.01, 0.4), bytes: 1e6, copies: 1e-4, grid: 64}
		}
		tokens++
		return step{
			kernels: []float64{3, 2, 0}, graphs: 1, grid: 8, gpu: token * (1 + size*tokens/2500) * w.noise(0.01), compute: 0.3,
			host: 0.0005, prepare: 0.0004 * w.noise(0.3), bytes: 2048, copies: 1e-5,
		}
	}
}

// request returns a step that answers one request of a fixed size, and its duration.
func request(w *world) step {
	w.kernels = []string{"conv", "batch_norm", "relu", "gemm", "softmax"}
	gpu := w.between(0.01, 0.05)
	return step{kernels: []float64{53, 53, 49, 1, 1}, grid: 32, gpu: gpu, compute: 0.8, host: gpu * 0.6, prepare: gpu * 0.1, bytes: 6e5, copies: gpu * 0.02}
}

func modelServer(w *world) {
	s := longer(request(w), 4)
	s.host *= 4
	rate, due := w.load(w.between(0.2, 0.7)/(s.gpu*1.12)), 0.0
	w.next = func() step {
		for due+1 < w.now { // a request that waits for a second is dropped
			due += w.rand.ExpFloat64() / rate()
		}
		if due > w.now {
			return step{input: math.Max(1e-6, due-w.now)}
		}
		due += w.rand.ExpFloat64() / rate()
		return w.vary(s)
	}
}

// For hours there are more requests than it can answer, all of one size; then there are fewer.
func saturatedServer(w *world) {
	s := request(w)
	level, due, drop := 2.0, 0.0, 0.0
	until := w.between(1800, 9000)
	w.next = func() step {
		if w.now > until {
			until = w.now + w.between(1800, 9000)
			if level >= 1 {
				level = w.between(0.3, 0.9)
			} else {
				level = 2
			}
			due = w.now
		}
		if level >= 1 {
			return w.vary(s)
		}
		for ; drop <= w.now; drop += 10 {
			level = min(0.95, max(0.1, level*w.noise(0.03)))
		}
		if due > w.now {
			return step{input: math.Max(1e-6, due-w.now)}
		}
		due = max(due, w.now-1) + w.rand.ExpFloat64()/level*s.gpu*1.12
		return w.vary(s)
	}
}

// Jobs of some seconds to some minutes come in bursts, with nothing to do in between.
func bursts(w *world) {
	s := request(w)
	end, by := 0.0, 1.0
	w.next = func() step {
		if w.now > end {
			rest := w.between(1, 10)
			if w.rand.IntN(5) == 0 {
				rest = w.between(10, 900)
			}
			end = w.now + rest + math.Exp(w.between(math.Log(2), math.Log(900)))
			by = w.between(0.7, 1.5)
			return step{input: rest}
		}
		return w.vary(longer(s, by))
	}
}

// Frames of a video are decoded, copied and looked at on several streams. How much there is to
// see in them differs.
func pipeline(w *world) {
	s := request(w)
	w.threads, w.every = 3, 8
	s.bytes, s.copies, s.host = 25e6, s.gpu*0.15, s.gpu*0.4
	scene := relength(w, 0.8, 1.3, 20, 600)
	w.next = func() step {
		t := w.vary(s)
		t.gpu *= scene()
		return t
	}
}

// Somebody tries this and that.
func notebook(w *world) {
	w.kernels, w.threads = trainingKernels, 2
	end := 0.0
	var t step
	w.next = func() step {
		if w.now >= end {
			s := trainer(w)
			t = longer(s, w.between(0.2, 2))
			if w.rand.IntN(2) == 0 {
				t.kernels = forwardOnly
			}
			end = w.now + math.Exp(w.between(math.Log(1), math.Log(900)))
			rest := math.Exp(w.between(math.Log(2), math.Log(1200)))
			end += rest
			return step{input: rest}
		}
		return w.vary(t)
	}
}
