package anomaly

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// judge is one process in one window, with all there is to judge it by.
type judge struct {
	process *tracer.Process
	sample  *sample
	placed  []placed
	phase   *phase
	groups  []tracer.CommGroup
	all     map[uint32]*running // the processes of the window
	now     time.Time
	waited  time.Duration // in the synchronisation under way
	longest time.Duration // of those before
}

// kind is what a window is.
type kind int

const (
	unjudged kind = iota // too little happened, or too little is known
	quiet                // as usual
	slow
)

// ruling is what is said of a window.
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
// Time is lost if the launches there were would have taken less before. An operation that
// takes longer while launches come as fast as ever has lost nothing: its time moved. Only
// where a process launches nothing are its operations judged one by one.
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
		return ruling{kind: quiet} // there is no baseline yet: this is what it is made of
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

// ruleWithout judges a window with hardly any launch.
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

// unasked returns which part of the lost time the process was idle of its own accord: it
// slept between a synchronisation and the next launch, or outside of any call while the GPU
// took no longer for a launch than before, and nothing of the host kept it from running. A
// server that is asked for less is not slower. Where nothing of the host is known it is 0.
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

// changes returns what in the process takes longer than it did, the most first, and all of
// it in seconds.
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
