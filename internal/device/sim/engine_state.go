package sim

import (
	"math"
	"time"
)

// table has the integrals of one period of an engine's devices, by second.
type table struct {
	gpus    []*gpu
	service *service
	before  [period + 1]byLevel // sums over the earlier seconds
}

func newTable(gpus []*gpu, s *service) *table {
	t := &table{gpus: gpus, service: s}
	for second := range period {
		next := t.before[second]
		level, busy := t.second(second)
		next[level] += busy
		next[gaveUp] += gpus[0].timeline.moments[second].quitting
		t.before[second+1] = next
	}
	return t
}

// second returns the level of load in one second, and the seconds that all devices are busy in it.
func (t *table) second(second int) (level int, busy float64) {
	for _, g := range t.gpus {
		busy += g.timeline.moments[second].busy
	}
	return t.service.level(busy/float64(len(t.gpus)), t.gpus[0].timeline.moments[second].waiting), busy
}

// at returns the seconds that devices were busy since boot at each level, and the requests that were
// given up. All values of a second are on a binary grid, so no sum ever decreases: see timeline.at.
func (t *table) at(up time.Duration) byLevel {
	seconds := int(up / time.Second)
	second, rounds, part := seconds%period, float64(seconds/period), (up % time.Second).Seconds()
	sum := t.before[second]
	for i := range sum {
		sum[i] += rounds * t.before[period][i]
	}
	level, busy := t.second(second)
	sum[level] += part * busy
	sum[gaveUp] += part * t.gpus[0].timeline.moments[second].quitting
	return sum
}

// state is what an engine knows at a moment.
type state struct {
	up       float64 // seconds since the engine started
	tokens   float64 // of prompts and outputs
	busy     float64 // mean of the devices, and since the engine started, in seconds of one device
	busyTime float64

	requests counts // that got an answer
	all      counts // and those that were given up
	gaps     counts // between two tokens of one request
	steps    counts // of the engine

	running, waiting, rate float64 // requests; rate: tokens per second
	cached                 float64 // part of the cache that is in use
	preempted              float64
	preemptedNow           float64 // in the last second
}

func (e *Engine) state(up time.Duration) *state {
	r, s := &e.rates, e.service
	sum := e.since(up)
	x := &state{up: (up - e.From).Seconds(), requests: e.requests(&sum)}
	x.all = x.requests
	x.all[gaveUp] = uint64(sum[gaveUp])
	for i := range levels {
		x.busyTime += sum[i]
		x.gaps[i] = uint64(sum[i] * r.capacity / r.tokens * (s.output - 1))
		x.steps[i] = uint64(sum[i] / r.devices / r.perToken[i])
	}
	x.tokens = x.busyTime * r.capacity
	x.preempted = e.preempted(&x.requests)
	earlier := e.since(max(e.From, up-time.Second))
	done := e.requests(&earlier)
	x.preemptedNow = x.preempted - e.preempted(&done)

	second := int(up/time.Second) % period
	level, busy := e.table.second(second)
	x.busy = busy / r.devices
	x.rate = busy * r.capacity
	// Little's law: what runs is what starts per second, times how long it stays.
	x.running = math.Round(x.rate / r.tokens * (r.prefill[level] + r.perToken[level]*e.shapes.decode.mean()))
	x.waiting = math.Floor(e.gpus[0].timeline.moments[second].waiting)
	for _, g := range e.gpus {
		x.cached += (g.timeline.moments[second].held - s.empty) / (s.full - s.empty) / r.devices
	}
	x.cached = min(max(x.cached, 0), 1)
	return x
}

// since returns the integrals from the start of the engine to up.
func (e *Engine) since(up time.Duration) byLevel {
	sum, start := e.table.at(up), e.table.at(e.From)
	for i := range sum {
		sum[i] -= start[i]
	}
	return sum
}

// requests returns the requests that got an answer, by level.
func (e *Engine) requests(sum *byLevel) (c counts) {
	for i := range levels {
		c[i] = uint64(sum[i] * e.rates.capacity / e.rates.tokens)
	}
	return c
}

// preempted returns how often a request had to make room for others.
func (e *Engine) preempted(c *counts) (n float64) {
	for i := range levels {
		n += math.Floor(float64(c[i]) * e.rates.preempted[i])
	}
	return n
}
