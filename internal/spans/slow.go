package spans

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
)

// Cause is a class of reasons for lost time, in the words of anomalies.
type Cause string

// The causes. OwnLoad: the workload itself used more of a device that was full.
const (
	Throttling Cause = "throttling"
	PowerCap   Cause = "power_cap"
	Neighbour  Cause = "neighbour"
	OwnLoad    Cause = "own_load"
	Nothing    Cause = "unexplained"
)

// Slow is a span that took longer than spans of its name usually do, while its device was throttled,
// full or shared.
type Slow struct {
	Span

	Usual float64 // seconds; the median
	Lost  float64 // seconds beyond it
	// Explanations are the causes, largest first. Their shares of the lost time and Unexplained
	// add up to 1.
	Explanations []Explanation
	Unexplained  float64
}

// Explanation is the share of one cause in the lost time.
type Explanation struct {
	Cause   Cause
	Share   float64
	Seconds float64
	Fact    string // with numbers, usually and now
}

// Cause returns the largest cause, which may be Nothing.
func (s *Slow) Cause() Cause {
	if len(s.Explanations) == 0 || s.Unexplained > s.Explanations[0].Share {
		return Nothing
	}
	return s.Explanations[0].Cause
}

// Text returns the slow span as one sentence.
func (s *Slow) Text() string {
	var parts []string
	for _, e := range s.Explanations {
		parts = append(parts, fmt.Sprintf("%.0f %% %s (%s)", 100*e.Share, words[e.Cause], e.Fact))
	}
	if s.Unexplained >= 0.005 {
		parts = append(parts, fmt.Sprintf("%.0f %% unexplained", 100*s.Unexplained))
	}
	return fmt.Sprintf("%s of %s took %.3g s instead of %.3g s: of the lost time %s", s.Name, cmp.Or(s.Service, "an application"), seconds(s.To-s.From), s.Usual, strings.Join(parts, ", "))
}

var words = map[Cause]string{
	Throttling: "is throttling", PowerCap: "is a power cap", Neighbour: "is a neighbor on the GPU", OwnLoad: "is the load of the workload itself",
}

func seconds(ns int64) float64 { return float64(ns) / 1e9 }

const (
	learned   = 50   // spans of a name before one can be slow
	forgetAt  = 1024 // spans, from which on the older half of them counts half
	adoptEach = 8    // of slow spans one counts as usual, so that a new normal is accepted in the end,
	adoptIn   = 5e9  // and none sooner after another, in nanoseconds: within some ten minutes
	spread    = 3    // how far beyond the median a slow span is, in distances from there to the 90th percentile
	least     = 1.25 // and how many times the median
	worth     = 0.1  // part of the lost time that has to be explained
	full      = 0.9  // utilization of a device that is full
	memory    = 1. / 64
	perOctave = 8
	octaves   = 36 // from 1 us to 19 h
)

// usual is what spans of one name usually do: a histogram of durations, and means of facts.
type usual struct {
	counts [octaves * perOctave]uint16
	n      int
	slow   int   // since one counted as usual
	as     int64 // when that one ended
	used   bool

	own, others, clock mean
	median, limit      float64 // of the last look, in seconds
	stale              int     // spans since
}

// mean is a mean in which newer values count more.
type mean struct {
	value float64
	n     int
}

func (m *mean) add(v device.Value) {
	if x, ok := v.Get(); ok {
		m.n++
		m.value += (x - m.value) * max(1/float64(m.n), memory)
	}
}

// judge adds a span to what is usual, and reports whether it is slow with a cause worth naming.
func (u *usual) judge(s *Span) (Slow, bool) {
	u.used = true
	took := seconds(s.To - s.From)
	if u.stale--; u.stale < 0 && u.n >= learned {
		u.look()
	}
	if u.n < learned || took <= u.limit {
		u.learn(took, &s.Facts)
		return Slow{}, false
	}
	if u.slow++; u.slow >= adoptEach && s.To-u.as >= adoptIn {
		u.slow, u.as = 0, s.To
		u.learn(took, &s.Facts)
	}
	return u.explain(s, took)
}

func (u *usual) learn(took float64, f *Facts) {
	i := int(perOctave * math.Log2(took*1e6))
	u.counts[min(max(i, 0), len(u.counts)-1)]++
	if u.n++; u.n >= forgetAt {
		u.n = 0
		for i := range u.counts {
			u.counts[i] /= 2
			u.n += int(u.counts[i])
		}
	}
	u.own.add(f.Own)
	u.others.add(f.Others)
	u.clock.add(f.Clock)
}

// look computes the median and from when a span is slow.
func (u *usual) look() {
	u.stale = 16
	u.median = u.quantile(0.5)
	u.limit = max(least*u.median, u.median+spread*(u.quantile(0.9)-u.median))
}

// quantile returns the middle of the bucket of a quantile, in seconds.
func (u *usual) quantile(q float64) float64 {
	rank := int(q * float64(u.n))
	for i, c := range u.counts {
		if rank -= int(c); rank < 0 {
			return math.Exp2((float64(i)+0.5)/perOctave) / 1e6
		}
	}
	return 0
}

// explain attributes the lost time to concurrent facts, each by its change against what is usual. The sum
// never exceeds what was lost; if it would, all shrink in proportion.
func (u *usual) explain(s *Span, took float64) (Slow, bool) {
	lost := took - u.median
	var list []Explanation
	claim := func(c Cause, seconds float64, fact string) {
		if seconds = min(seconds, lost); seconds >= 0.01*lost {
			list = append(list, Explanation{Cause: c, Seconds: seconds, Fact: fact})
		}
	}
	own, known := s.Own.Get()
	if clock, ok := s.Clock.Get(); ok && known && u.clock.n > 0 && clock > 0 && clock < 0.97*u.clock.value && s.ByPower+s.ByHeat > 0 {
		slower := own * (1 - clock/u.clock.value) * took
		fact := fmt.Sprintf("clock %.0f -> %.0f MHz", u.clock.value/1e6, clock/1e6)
		claim(PowerCap, slower*s.ByPower/(s.ByPower+s.ByHeat), fact)
		claim(Throttling, slower*s.ByHeat/(s.ByPower+s.ByHeat), fact)
	}
	if others, ok := s.Others.Get(); ok && len(s.Neighbours) > 0 {
		claim(Neighbour, (others-u.others.value)*took, fmt.Sprintf("%s: %.0f -> %.0f %% of the GPU", strings.Join(s.Neighbours, ", "), 100*u.others.value, 100*others))
	}
	if busy, ok := s.Busy.Get(); ok && known && busy >= full {
		claim(OwnLoad, (own-u.own.value)*took, fmt.Sprintf("%.0f -> %.0f %% of the GPU", 100*u.own.value, 100*own))
	}
	sum := 0.0
	for _, e := range list {
		sum += e.Seconds
	}
	if sum < worth*lost {
		return Slow{}, false
	}
	scale := min(1, lost/sum)
	slow := Slow{Span: *s, Usual: u.median, Lost: lost, Unexplained: 1 - min(1, sum/lost)}
	for _, e := range list {
		e.Seconds *= scale
		e.Share = e.Seconds / lost
		slow.Explanations = append(slow.Explanations, e)
	}
	slices.SortStableFunc(slow.Explanations, func(a, b Explanation) int { return cmp.Compare(b.Seconds, a.Seconds) })
	return slow, true
}
