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
	fewProof    = 5   // the same where all other kernels agree
	fewEnded    = 6   // the same for a process that has ended
	leastSteps  = 3
	sureSteps   = 100
	perStep     = 4096 // launches of one kernel
	clean       = 0.85 // of the readings do not interrupt an update
	agreed      = 0.65 // the same where all other kernels agree
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
	first  int // the first reading that has the marker and all of plain
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

// find determines the marker and its launches in a step. What is known is kept while nothing speaks against it.
func (r *rhythm) find() {
	name := r.choose()
	if name == "" {
		return
	}
	r.first = r.window(name)
	for _, other := range r.plain {
		r.first = max(r.first, r.window(other))
	}
	k, offset := r.burst(name, clean)
	proof := func(every, offset uint64) bool {
		return r.growing(name) >= fewProof && r.check(name, every) == proven && !r.chance(name, every, offset, k)
	}
	if name == r.marker && proof(r.every, r.offset) {
		return
	}
	if k > 0 && proof(k, offset) {
		r.set(name, k, offset)
		return
	}
	if k, offset := r.burst(name, agreed); k > 0 && proof(k, offset) {
		r.set(name, k, offset)
		return
	}
	enough := r.growing(name) >= fewCuts
	fits := func(every uint64) bool {
		v := r.check(name, every)
		return v == possible && (enough || r.ended && r.growing(name) >= fewEnded) || v == doubtful && enough
	}
	switch each := r.spread(name); {
	case k > 0 && (r.last(name)-offset)/k >= leastSteps && (k > 1 || len(r.kinds) == 1) && fits(k):
		r.set(name, k, offset)
	case each > 0 && (r.check(name, each) == proven && enough || fits(each)):
		r.set(name, each, 0)
	}
}

func (r *rhythm) last(name string) uint64 { return r.cuts[len(r.cuts)-1].counts[name] }

func (r *rhythm) set(name string, every, offset uint64) {
	r.marker, r.every, r.offset = name, every, offset
}

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

// chance reports whether a number divides counts only as a multiple of the launches of an update, by chance: the
// counts that it does not divide are not those of interrupted updates either.
func (r *rhythm) chance(name string, every, offset, update uint64) bool {
	if update <= 1 || every <= update || every%update != 0 {
		return false
	}
	odd, whole := 0, 0
	for i := range r.cuts {
		if n := r.cuts[i].counts[name]; n > offset && (n-offset)%every != 0 {
			if odd++; (n-offset)%update == 0 {
				whole++
			}
		}
	}
	return odd >= leastSteps && float64(whole) >= agreed*float64(odd)
}

// burst returns the launches of an update, as the greatest common divisor of the counts in a share of the readings;
// 0 if it is not known. offset is what the kernel was launched before, for something else.
func (r *rhythm) burst(name string, share float64) (k, offset uint64) {
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
		if k := divisor(list, share); k > 1 {
			return k, from % k
		}
	}
	return 1, 0 // once a step, or in the middle of an update at each reading
}

// divisor returns the largest number that divides a share of a list.
func divisor(list []uint64, share float64) uint64 {
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
			if float64(fits) >= share*float64(len(list)) {
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

// spread returns the launches in a step where updates are spread over it; 0 if that is not known.
func (r *rhythm) spread(marker string) uint64 {
	s, n := r.period(marker), r.grown(marker)
	if s < leastSteps {
		return 0
	}
	each := (n + s/2) / s
	if s < sureSteps && !r.ended { // a step more or less makes too much of a difference
		return 0
	}
	if each > perStep {
		return 0
	}
	return each
}

// period returns the number of steps in the window of a marker: in how many equal parts it divides, so that
// each kernel that is evidence, and each that runs with the marker, ran a whole number of times in each; 0 if
// that is not known. Parts that are not whole, at both ends, add or leave up to a part's launches.
func (r *rhythm) period(marker string) uint64 {
	most := 0
	for name := range r.kinds {
		most = max(most, r.growing(name))
	}
	var list []uint64
	for name := range r.kinds {
		if n := r.grown(name); n > 0 && 10*r.growing(name) >= 9*most {
			list = append(list, n)
		}
	}
	with := slices.Clone(list)
	for _, name := range r.plain {
		if r.together(name, marker) {
			with = append(with, r.grown(name))
		}
	}
	return cmp.Or(parts(with), parts(list))
}

// window returns the first reading that has a kernel. What ran before it belongs to the startup of the process.
func (r *rhythm) window(name string) int {
	return max(0, slices.IndexFunc(r.cuts, func(c cut) bool { return c.counts[name] > 0 }))
}

// grown returns the launches of a kernel since the first reading that has all.
func (r *rhythm) grown(name string) uint64 {
	return r.last(name) - r.cuts[r.first].counts[name]
}

// together reports whether a kernel runs in proportion to another one in all intervals.
func (r *rhythm) together(name, marker string) bool {
	if len(r.cuts)-r.first < 3 {
		return false
	}
	a, b := float64(r.grown(name)), float64(r.grown(marker))
	if a == 0 || b == 0 {
		return false
	}
	for i := r.first; i+1 < len(r.cuts); i++ {
		f, t := r.cuts[i].counts, r.cuts[i+1].counts
		x, y := float64(t[name]-f[name]), float64(t[marker]-f[marker])
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
		if whole(list, s) {
			return s
		}
	}
	return 0
}

// whole reports whether each number is k times s, or up to k more or less, for a whole k. It needs some numbers
// for which that is not always so.
func whole(list []uint64, s uint64) bool {
	telling := 0
	for _, n := range list {
		low, high := (n+s)/(s+1), n/(s-1) // k*(s-1) <= n <= k*(s+1)
		if low > high {
			return false
		}
		if high < s/2 {
			telling++
		}
	}
	return telling >= 2
}
