package anomaly

import (
	"math"
	"slices"
	"strings"
)

// What a baseline is made of. They are few, so that somebody can know them by heart.
const (
	history     = 40   // windows that are remembered of a signal
	enough      = 6    // of them are needed to judge
	minCalls    = 20   // launches or calls that a window must have to count
	spread      = 5    // times the deviation that a value may be above the median
	margin      = 0.10 // part of the median that it may be above in any case
	material    = 0.10 // part of the window that must be lost
	samePhase   = 0.20 // part of the launches that may be of other kernels in the same phase
	maxPhases   = 4    // of a process
	maxSignals  = 48   // of a phase that are of operations
	topOps      = 32   // of a window, by time, that are signals
	drift       = 0.10 // how fast a phase follows the mix of its kernels
	faintest    = 0.10 // part of the usual launches below which a window is idle
	maxKernels  = 64   // that tell phases apart
	maxOps      = 256  // of a process
	maxComms    = 64   // of a process
	maxTracked  = 512  // processes
	longWindow  = 6    // times the usual: the machine slept, or we did
	sleepyRatio = 1.15 // GPU time a launch may have grown by and the GPU is not slower
)

// signal is the trail of one number in quiet windows.
type signal struct {
	values []float32
	next   int
	sorted []float32 // of values; nil: to be made
}

func (s *signal) add(v float64) {
	s.sorted = nil
	if len(s.values) < history {
		s.values = append(s.values, float32(v))
		return
	}
	s.values[s.next] = float32(v)
	s.next = (s.next + 1) % history
}

// median returns the middle of the trail, and whether it is long enough to count. A nil
// signal has none.
func (s *signal) median() (float64, bool) {
	if s == nil || len(s.values) < enough {
		return 0, false
	}
	return s.quantile(0.5), true
}

func (s *signal) quantile(q float64) float64 {
	if s.sorted == nil {
		s.sorted = slices.Sorted(slices.Values(s.values))
	}
	return float64(s.sorted[int(q*float64(len(s.sorted)-1)+0.5)])
}

// limit returns the value above which one is out of the ordinary: the median and five times
// the deviation from it, a tenth above it in any case, and no less than nine in ten of what
// there was, so that a signal with two usual levels has both.
func (s *signal) limit() (float64, bool) {
	mid, ok := s.median()
	if !ok {
		return 0, false
	}
	off := make([]float64, len(s.values))
	for i, v := range s.values {
		off[i] = math.Abs(float64(v) - mid)
	}
	slices.Sort(off)
	deviation := 1.4826 * off[len(off)/2] // of a normal distribution, its standard deviation
	return max(mid+max(spread*deviation, margin*mid), s.quantile(0.9)), true
}

// phase is one kind of work of a process, told from others by the mix of its kernels:
// training and evaluation are not compared with each other.
type phase struct {
	mix     map[string]float64 // part of the launches of each kernel
	signals map[string]*signal
	pending []map[string]float64 // the last slow windows, for when they become normal
	used    uint64               // number of the last window of it
	ops     int                  // how many signals are of operations
}

func newPhase(mix map[string]float64) *phase {
	return &phase{mix: mix, signals: map[string]*signal{}}
}

// learn takes a quiet window into the trail.
func (p *phase) learn(values, mix map[string]float64) {
	p.pending = nil
	for name, v := range values {
		s := p.signals[name]
		if s == nil {
			if strings.HasPrefix(name, opSignal) { // of others there are not many
				if p.ops >= maxSignals {
					continue
				}
				p.ops++
			}
			s = &signal{}
			p.signals[name] = s
		}
		s.add(v)
	}
	for k := range mix {
		if _, ok := p.mix[k]; !ok && len(p.mix) < 2*maxKernels {
			p.mix[k] = 0
		}
	}
	for k, v := range p.mix {
		if v += drift * (mix[k] - v); v < 1e-4 && mix[k] == 0 {
			delete(p.mix, k)
		} else {
			p.mix[k] = v
		}
	}
}

// hold keeps a slow window.
func (p *phase) hold(values map[string]float64) {
	if len(p.pending) >= 2*enough {
		p.pending = p.pending[1:]
	}
	p.pending = append(p.pending, values)
}

// adopt makes the slow windows the trail.
func (p *phase) adopt() {
	pending := p.pending
	p.signals, p.pending, p.ops = map[string]*signal{}, nil, 0
	for _, values := range pending {
		p.learn(values, p.mix)
	}
}

// distance returns which part of the launches is different, 0 to 1.
func distance(a, b map[string]float64) float64 {
	sum := 0.0
	for k, v := range a {
		sum += math.Abs(v - b[k])
	}
	for k, v := range b {
		if _, ok := a[k]; !ok {
			sum += v
		}
	}
	return sum / 2
}

// excess returns how much more a value is than usual, never less than 0, and false if what is
// usual is not known.
func (p *phase) excess(values map[string]float64, name string) (float64, bool) {
	v, there := values[name]
	usual, ok := p.signals[name].median()
	if !there || !ok {
		return 0, false
	}
	return max(0, v-usual), true
}
