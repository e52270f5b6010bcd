package training

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// Limits of a rhythm.
const (
	maxEvidence = 128 // kernels
	maxPlain    = 64  // kernels that are no evidence, the ones with the fewest launches
	maxCuts     = 48  // readings
	fewCuts     = 8   // readings that say enough where nothing else agrees
	leastSteps  = 3
	perStep     = 4096 // launches of one kernel
	clean       = 0.85 // of the readings do not interrupt an update
)

// cut is a reading of the launches that are evidence, in the middle of anything.
type cut struct {
	at     time.Time
	counts map[string]uint64
}

// rhythm finds the number of launches that a step takes.
//
// An update of an optimizer takes the same launches each time, within a short part of the step. So a count of
// such a kernel is, in most readings, a multiple of its launches in one update, and with different numbers of
// steps between readings that number is their greatest common divisor. Gradients that are accumulated do not
// change that, nor do evaluations.
//
// Where updates are spread over the step, as with one in each hook of the backward pass, a reading is always
// in the middle of one. Then the step is the largest period in which all kernels that are evidence run a whole
// number of times.
type rhythm struct {
	kinds  map[string]Evidence
	plain  []string // further kernels, of which those that run with the optimizer say how long a step is
	cuts   []cut
	ended  bool
	marker string // a kernel of the optimizer; empty until it is known
	every  uint64 // its launches in a step
	offset uint64 // its launches before the first step that counts
}

// see adds a reading.
func (r *rhythm) see(p *tracer.Process, now time.Time) {
	if r.kinds == nil {
		r.kinds = map[string]Evidence{}
	}
	c := cut{at: now, counts: map[string]uint64{}}
	for _, name := range slices.Sorted(maps.Keys(p.Launches)) {
		if _, ok := r.kinds[name]; !ok {
			kind := EvidenceOf(name)
			if kind == None || len(r.kinds) >= maxEvidence {
				continue
			}
			r.kinds[name] = kind
		}
		c.counts[name] = p.Launches[name]
	}
	r.others(p, &c)
	if n := len(r.cuts); n > 0 && r.cuts[n-1].back(&c) { // counts fell: start again
		r.cuts, r.marker, r.every, r.offset = nil, "", 0, 0
	}
	r.cuts = append(r.cuts, c)
	if len(r.cuts) > maxCuts {
		r.cuts = slices.Delete(r.cuts, 0, 1)
	}
	r.ended = p.Ended
	r.find()
}

// others adds kernels that are no evidence. They are chosen once, when the process has shown that it trains.
func (r *rhythm) others(p *tracer.Process, c *cut) {
	if marker := r.choose(); r.plain == nil && marker != "" && r.growing(marker) >= 2 {
		for name, n := range p.Launches {
			if r.kinds[name] == None && n >= leastSteps {
				r.plain = append(r.plain, name)
			}
		}
		slices.SortFunc(r.plain, func(a, b string) int { return cmp.Or(cmp.Compare(p.Launches[a], p.Launches[b]), cmp.Compare(a, b)) })
		r.plain = slices.Clone(r.plain[:min(len(r.plain), maxPlain)])
	}
	for _, name := range r.plain {
		if n := p.Launches[name]; n > 0 {
			c.counts[name] = n
		}
	}
}

func (c *cut) back(next *cut) bool {
	for name, n := range c.counts {
		if next.counts[name] < n {
			return true
		}
	}
	return false
}

// steps returns the number of steps at a reading.
func (r *rhythm) steps(c *cut) uint64 {
	n := c.counts[r.marker]
	if r.every == 0 || n < r.offset {
		return 0
	}
	return (n - r.offset) / r.every
}

// find determines the marker and its launches in a step.
func (r *rhythm) find() {
	name := r.choose()
	if name == "" {
		return
	}
	k, offset := r.burst(name)
	s := r.period(name)
	last := r.cuts[len(r.cuts)-1].counts[name]
	var n uint64
	if k > 0 {
		n = (last - offset) / k
	}
	enough := r.growing(name) >= fewCuts || r.ended
	switch {
	case n < leastSteps && s < leastSteps:
	case k > 0 && s > 0 && near(n, s): // both say the same
		r.set(name, k, offset)
	case k > 1 && (s == 0 || n < s), k == 1 && len(r.kinds) == 1: // gradients are accumulated, or nothing else is evidence
		if enough {
			r.set(name, k, offset)
		}
	case s > 0 && enough: // updates are spread over the step
		if each := uint64(math.Round(float64(last) / float64(s))); each > 0 && each <= perStep {
			r.set(name, each, 0)
		}
	}
}

func (r *rhythm) set(name string, every, offset uint64) {
	r.marker, r.every, r.offset = name, every, offset
}

func near(a, b uint64) bool { return max(a, b)-min(a, b) <= 1+max(a, b)/200 }

// choose returns the kernel of the optimizer with the fewest launches of those that run whenever the
// optimizer does: its launches of an update are the least likely to be interrupted by a reading. It is empty
// without evidence of training.
func (r *rhythm) choose() string {
	if len(r.cuts) == 0 {
		return ""
	}
	backward, lists, sure := false, 0, false
	for _, kind := range r.kinds {
		backward, sure = backward || kind == Backward, sure || kind == Optimizer
		if kind == Foreach {
			lists++
		}
	}
	if !sure && (lists == 0 || !backward) {
		return ""
	}
	if r.marker != "" && r.growing(r.marker) > 0 {
		return r.marker
	}
	most := 0
	for name, kind := range r.kinds {
		if kind == Optimizer || kind == Foreach {
			most = max(most, r.growing(name))
		}
	}
	var best string
	var least uint64
	for _, name := range slices.Sorted(maps.Keys(r.kinds)) {
		kind := r.kinds[name]
		if kind != Optimizer && kind != Foreach || 10*r.growing(name) < 9*most || most == 0 {
			continue
		}
		n := r.cuts[len(r.cuts)-1].counts[name]
		if n == 0 || best != "" && n >= least {
			continue
		}
		best, least = name, n
	}
	return best
}

// growing returns in how many intervals between readings a kernel was launched. The time before the first
// reading is one.
func (r *rhythm) growing(name string) (n int) {
	var was uint64
	for i := range r.cuts {
		if now := r.cuts[i].counts[name]; now > was {
			n++
			was = now
		}
	}
	return n
}

// burst returns the launches of an update, as the greatest common divisor of the counts in nearly all readings;
// 0 if it is not known. offset is what the kernel was launched before, for something else.
func (r *rhythm) burst(name string) (k, offset uint64) {
	var counts []uint64
	for i := range r.cuts {
		n := r.cuts[i].counts[name]
		if n > 0 && (len(counts) == 0 || n != counts[len(counts)-1]) {
			counts = append(counts, n)
		}
	}
	if len(counts) < 2 && (!r.ended || len(counts) == 0) {
		return 0, 0
	}
	for _, from := range append([]uint64{0}, counts[:min(3, len(counts)-1)]...) {
		list := make([]uint64, 0, len(counts))
		for _, n := range counts {
			if n > from {
				list = append(list, n-from)
			}
		}
		if from > 0 && len(list) < fewCuts/2 {
			continue
		}
		if k := divisor(list); k > 1 {
			return k, from % k
		}
	}
	return 1, 0 // once a step, or in the middle of an update at each reading
}

// divisor returns the largest number that divides nearly all of a list.
func divisor(list []uint64) uint64 {
	tried := map[uint64]bool{}
	best := uint64(1)
	if len(list) == 1 {
		return 1
	}
	for i, a := range list {
		for _, b := range list[i+1:] {
			d := gcd(a, b)
			if d <= best || d > perStep || tried[d] {
				continue
			}
			tried[d] = true
			fits := 0
			for _, n := range list {
				if n%d == 0 {
					fits++
				}
			}
			if float64(fits) >= clean*float64(len(list)) {
				best = d
			}
		}
	}
	return best
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// period returns in how many equal parts the time since the process began divides, so that each kernel that
// is evidence, and each that runs with the marker, ran a whole number of times in each; 0 if that is not known.
// A part that is not over leaves up to a part's launches.
func (r *rhythm) period(marker string) uint64 {
	last := r.cuts[len(r.cuts)-1].counts
	most := 0
	for name := range r.kinds {
		most = max(most, r.growing(name))
	}
	var list []uint64
	for name := range r.kinds {
		if n := last[name]; n > 0 && 10*r.growing(name) >= 9*most {
			list = append(list, n)
		}
	}
	with := slices.Clone(list)
	for _, name := range r.plain {
		if r.together(name, marker) {
			with = append(with, last[name])
		}
	}
	return cmp.Or(parts(with), parts(list))
}

// together reports whether a kernel runs in proportion to another one in all intervals.
func (r *rhythm) together(name, marker string) bool {
	first := slices.IndexFunc(r.cuts, func(c cut) bool { return c.counts[name] > 0 })
	if first < 0 || len(r.cuts)-first < 3 {
		return false
	}
	grown := func(from, to int) (a, b float64) {
		f, t := r.cuts[from].counts, r.cuts[to].counts
		return float64(t[name] - f[name]), float64(t[marker] - f[marker])
	}
	a, b := grown(first, len(r.cuts)-1)
	if a == 0 || b == 0 {
		return false
	}
	for i := first; i+1 < len(r.cuts); i++ {
		x, y := grown(i, i+1)
		if want := y * a / b; math.Abs(x-want) > 2+0.05*want {
			return false
		}
	}
	return true
}

func parts(list []uint64) uint64 {
	if len(list) < 2 {
		return 0
	}
	slices.SortFunc(list, cmp.Compare[uint64])
	for parts := uint64(1); parts <= 64; parts++ {
		s := list[0] / parts
		if s < leastSteps {
			return 0
		}
		for _, try := range []uint64{s, s - 1} {
			if whole(list, try) {
				return try
			}
		}
	}
	return 0
}

// whole reports whether each number is k times s, or up to k more, for a whole k. It needs some numbers for
// which that is not always so.
func whole(list []uint64, s uint64) bool {
	telling := 0
	for _, n := range list {
		low, high := (n+s)/(s+1), n/s // k*s <= n <= k*(s+1)
		if low > high {
			return false
		}
		if high < s/2 {
			telling++
		}
	}
	return telling >= 2
}
