package anomaly

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// judge holds everything needed to judge one process in one window.
type judge struct {
	process *tracer.Process
	sample  *sample
	placed  []placed
	phase   *phase
	groups  []tracer.CommGroup
	all     map[uint32]*running // the processes of the window
	now     time.Time
	waited  time.Duration // in the pending synchronization
	longest time.Duration // longest earlier synchronization
}

// kind classifies a window.
type kind int

const (
	unjudged kind = iota // too little activity or too little history
	quiet                // as usual
	slow
)

// ruling is the judgment of a window.
type ruling struct {
	kind               kind
	op                 string
	baseline, observed float64
	lost               float64 // seconds
	claims             []claim
	changes            []Change
}

// rule judges the window.
//
// Time is lost if the same number of launches would have taken less time before. An operation
// that takes longer while launches proceed at the usual rate has lost nothing: time merely
// moved. Only for a process without launches are operations judged one by one.
func (j *judge) rule() ruling {
	s := j.sample
	if g, waited := j.behind(); g != nil && waited >= s.seconds/2 {
		usual, _ := j.phase.signals["collective"].median()
		return j.slow(Collective, usual, j.now.Sub(g.Waiting).Seconds(), waited)
	}
	if s.launches < minCalls {
		return j.ruleWithout()
	}
	if usual, ok := j.phase.signals["launches"].median(); ok && s.launches/s.seconds < faintest*usual {
		return ruling{}
	}
	observed := s.values[Step]
	usual, ok := j.phase.signals[Step].median()
	if !ok {
		return ruling{kind: quiet} // no baseline yet: learn from this window
	}
	limit, _ := j.phase.signals[Step].limit()
	lost := s.seconds - usual*s.launches
	if observed <= limit || lost < material*s.seconds {
		return ruling{kind: quiet}
	}
	lost -= j.unasked(lost)
	if lost < material*s.seconds {
		return ruling{}
	}
	return j.slow(Step, usual, observed, lost)
}

// ruleWithout judges a window with hardly any launches.
func (j *judge) ruleWithout() ruling {
	s := j.sample
	_, launched := j.phase.signals[Step].median()
	if launched && j.waited.Seconds() >= 0.99*s.seconds && j.waited > 2*j.longest {
		return j.slow(Sync, j.longest.Seconds(), j.waited.Seconds(), s.seconds)
	}
	if launched {
		return ruling{}
	}
	changes, lost := j.changes()
	if lost = min(lost, s.seconds); lost >= material*s.seconds {
		return j.slow(changes[0].Op, changes[0].Baseline, changes[0].Observed, lost)
	}
	for _, d := range s.ops {
		if d.count >= minCalls {
			return ruling{kind: quiet}
		}
	}
	return ruling{}
}

func (j *judge) slow(op string, usual, observed, lost float64) ruling {
	changes, _ := j.changes()
	return ruling{
		kind: slow, op: op, baseline: usual, observed: observed, lost: lost,
		claims: j.explain(lost), changes: changes[:min(len(changes), 5)],
	}
}

// unasked returns the part of the lost time in which the process was idle by choice: it slept
// between a synchronization and the next launch, or outside any call while the GPU took no
// longer per launch, and the host did not keep it from running. A server with fewer requests
// is not slower. Without host facts it is 0.
func (j *judge) unasked(lost float64) float64 {
	s := j.sample
	delayed := total(j.hostDelay())
	slept, sleepKnown := j.phase.excess(s.values, "sleep")
	slept *= s.launches
	_, pressureKnown := s.values["cpu pressure"]
	idle := 0.0
	if bubble, ok := j.phase.excess(s.values, "bubble"); ok && (sleepKnown || pressureKnown) {
		idle = max(0, bubble*s.launches-delayed)
		if sleepKnown {
			idle = min(idle, slept)
		}
	}
	usual, ok := j.phase.signals["gpu"].median()
	if now, there := s.values["gpu"]; ok && there && sleepKnown && now <= sleepyRatio*usual {
		idle = max(idle, min(slept, lost-total(j.explain(lost))))
	}
	return min(max(0, idle), lost)
}

// changes returns what in the process takes longer than before, largest first, and the sum
// in seconds.
func (j *judge) changes() (list []Change, sum float64) {
	s := j.sample
	add := func(op, name string, calls float64) {
		limit, ok := j.phase.signals[name].limit()
		if observed := s.values[name]; ok && observed > limit {
			usual, _ := j.phase.signals[name].median()
			c := Change{Op: op, Baseline: usual, Observed: observed, Seconds: (observed - usual) * calls}
			list = append(list, c)
			sum += c.Seconds
		}
	}
	add("bubble", "bubble", s.launches)
	for _, key := range s.top() {
		add(key.String(), key.signal(), s.ops[key].count)
	}
	slices.SortFunc(list, func(a, b Change) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(a.Op, b.Op))
	})
	return list, sum
}
