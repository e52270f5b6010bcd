package sim

// service is what an inference engine in a role has to do, and how it copes.
type service struct {
	prompt, output float64 // mean tokens of a request
	limit          float64 // most tokens of an output, the request's max_tokens
	reused         float64 // ratio of the tokens of prompts that the prefix cache has
	empty, full    float64 // memory that a device holds with an empty and with a full cache, in ratios
	perToken       float64 // seconds from one token of a request to the next, without load
	queue          float64 // length of the longest queue; 0: no request waits
	patience       float64 // seconds after which clients leave the queue
}

// The cache of chat never fills: what the role holds ends before.
var chat = &service{
	prompt: 900, output: 220, limit: 1024, reused: 0.35,
	empty: 0.55, full: 0.98, perToken: 0.016,
}

// Requests stay for as long as it takes to write a long summary, so the cache bounds how many run.
var summaries = &service{
	prompt: 6000, output: 1400, limit: 4096, reused: 0.08,
	empty: 0.65, full: 0.96, perToken: 0.053, queue: 120, patience: 170,
}

// levels is the number of levels of load. All requests at one level take equally long, apart from
// their own differences. One more level has the requests that were given up in the queue.
const (
	levels = 16
	gaveUp = levels
)

// byLevel has a value for each level, and for requests that were given up.
type byLevel [levels + 1]float64

// rates is how fast an engine works.
type rates struct {
	capacity float64 // tokens per second of a device that is always busy
	devices  float64
	tokens   float64 // mean per request
	pool     float64 // tokens that fit into the cache

	queue, prefill, perToken byLevel // mean seconds
	preempted                byLevel // mean per request
}

// shapes say how requests differ from each other.
type shapes struct {
	prompt, output   *shape // tokens
	queue, prefill   *shape // times, around a mean of 1
	perToken, decode *shape // time per token, around a mean of 1, and its product with the gaps of a request
	gap, step        *shape // times between tokens, and tokens per step, around a mean of 1
}

func (s *service) shapes() shapes {
	x := shapes{
		prompt: sizes(s.prompt, 0.8, 8*s.prompt), output: sizes(s.output, 0.8, s.limit),
		queue: spread(0.7), prefill: spread(0.6), perToken: spread(0.12), gap: spread(0.25), step: spread(1),
	}
	if s.queue > 0 { // first come, first served: all wait alike
		x.queue = spread(0.2)
	}
	x.decode = indexed(func(i int) float64 { return x.perToken.values[i] * (x.output.values[i] - 1) })
	return x
}

// overhead is the time in seconds that a request spends outside the scheduler.
const overhead = 0.004

func (s *service) rates(n *network, gpus []*gpu) rates {
	r := rates{capacity: capacity(gpus[0].id.Model, n), devices: float64(len(gpus)), tokens: s.prompt + s.output}
	for _, g := range gpus {
		r.pool += (s.full - s.empty) * (g.model.memory - g.model.reserved) / n.cache
	}
	whole := r.capacity * r.devices
	prefill := s.prompt * (1 - s.reused) / whole // of a request alone
	for i := range levels {
		load := (float64(i) + 0.5) / levels
		if s.queue > 0 { // the devices are always busy: only the queue differs
			r.queue[i] = 0.05
			r.prefill[i], r.perToken[i] = 1.6*prefill, s.perToken
			if i > 0 {
				r.queue[i] = (float64(i) - 0.5) / (levels - 1) * s.queue * r.tokens / whole
				r.preempted[i] = 0.04
			}
			continue
		}
		r.queue[i] = 0.001 + 0.02*load*load*load
		r.prefill[i] = prefill * (1.5 + 2.5*load*load)
		r.perToken[i] = s.perToken * (1 + 1.2*load)
		if i >= levels-3 {
			r.preempted[i] = 0.002
		}
	}
	r.queue[gaveUp] = s.patience
	return r
}

// level returns the level of load during a second. Where requests wait, level 0 is for an empty queue.
func (s *service) level(busy, waiting float64) int {
	switch {
	case s.queue == 0:
		return min(int(busy*levels), levels-1)
	case waiting < 1:
		return 0
	}
	return min(1+int(waiting/s.queue*(levels-1)), levels-1)
}
