package anomaly

import (
	"math"
	"slices"
	"strings"
)

// Parameters of the baseline. They are few, so that they can be remembered.
const (
	history     = 40   // windows remembered per signal
	enough      = 6    // windows needed for a judgment
	minCalls    = 20   // launches or calls a window needs to count
	spread      = 5    // accepted distance from the median, in deviations
	margin      = 0.10 // accepted distance from the median, as a fraction of it
	material    = 0.10 // fraction of the window that must be lost
	samePhase   = 0.08 // fraction of launches that may differ within a phase
	maxPhases   = 6    // per process
	maxSignals  = 48   // operation signals per phase
	topOps      = 32   // operations per window, by time, that become signals
	drift       = 0.10 // how fast a phase follows its kernel mix
	faintest    = 0.10 // fraction of the usual launches below which a window is idle
	maxKernels  = 64   // kernels used to distinguish phases
	maxOps      = 256  // per process
	maxComms    = 64   // per process
	maxTracked  = 512  // processes tracked
	longWindow  = 6    // times the usual length: the machine or the agent slept
	sleepyRatio = 1.15 // growth of GPU time per launch up to which the GPU is not slower
)

// signal is the history of one number in quiet windows.
type signal struct {
	values []float32
	next   int
	sorted []float32 // sorted values; nil if outdated
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

// median returns the median and whether the history is long enough. A nil signal has none.
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

// deviation returns the standard deviation of a normal distribution with the median absolute
// deviation of the history.
func (s *signal) deviation() float64 {
	mid := s.quantile(0.5)
	off := make([]float64, len(s.values))
	for i, v := range s.values {
		off[i] = math.Abs(float64(v) - mid)
	}
	slices.Sort(off)
	return 1.4826 * off[len(off)/2]
}

// limit returns the value above which a sample is unusual: the median plus five deviations,
// at least a tenth above the median, and at least the 90th percentile, so that a signal with
// two usual levels accepts both.
func (s *signal) limit() (float64, bool) {
	mid, ok := s.median()
	if !ok {
		return 0, false
	}
	return max(mid+max(spread*s.deviation(), margin*mid), s.quantile(0.9)), true
}

// phase is one kind of work of a process, identified by its mix of kernels: training and
// evaluation are not compared with each other.
type phase struct {
	mix     map[string]float64 // fraction of launches by kernel
	signals map[string]*signal
	grids   map[string]span      // of quiet windows, by kernel
	pending []map[string]float64 // the last slow windows, in case they become the new normal
	other   int                  // consecutive windows at another pace without a reason
	used    uint64               // number of its last window
	ops     int                  // number of operation signals
}

func newPhase(mix map[string]float64) *phase {
	return &phase{mix: mix, signals: map[string]*signal{}, grids: map[string]span{}}
}

// learn adds a quiet window to the history.
func (p *phase) learn(values, mix map[string]float64) {
	p.pending, p.other = nil, 0
	for name, v := range values {
		s := p.signals[name]
		if s == nil {
			if strings.HasPrefix(name, opSignal) { // the number of other signals is small
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

// learnGrids widens the ranges of the grids.
func (p *phase) learnGrids(grids map[string]float64) {
	for name, v := range grids {
		r, ok := p.grids[name]
		if !ok {
			if len(p.grids) >= 2*maxKernels {
				continue
			}
			r = span{v, v}
		}
		p.grids[name] = span{min(r.low, v), max(r.high, v)}
	}
}

// hold remembers a slow window.
func (p *phase) hold(values map[string]float64) {
	if len(p.pending) >= 2*enough {
		p.pending = p.pending[1:]
	}
	p.pending = append(p.pending, values)
}

// adopt replaces the history by the slow windows.
func (p *phase) adopt() {
	pending := p.pending
	p.signals, p.grids, p.pending, p.ops = map[string]*signal{}, map[string]span{}, nil, 0
	for _, values := range pending {
		p.learn(values, p.mix)
	}
}

// distance returns the fraction of launches that differ, 0 to 1.
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

// excess returns how far a value is above its usual level, at least 0, and false if the
// usual level is unknown.
func (p *phase) excess(values map[string]float64, name string) (float64, bool) {
	v, there := values[name]
	usual, ok := p.signals[name].median()
	if !there || !ok {
		return 0, false
	}
	return max(0, v-usual), true
}
