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
	idle    float64       // part of the last windows in which the process had less to do
}

// kind classifies a window.
type kind int

const (
	unjudged kind = iota // too little activity or too little history
	quiet                // as usual
	unasked              // less to do
	other                // another pace, without a reason: not shown to be slow
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
// Time is lost if the same work would have taken less time before: the same number of launches,
// as far as they do not keep the device busy for longer at the same clock. An operation that
// takes longer while launches proceed at the usual rate has lost nothing: time merely moved.
// Only for a process without launches are operations judged one by one.
func (j *judge) rule() ruling {
	s := j.sample
	if g, waited := j.behind(); g != nil && waited >= s.seconds/2 {
		usual, _ := j.phase.signals["collective"].median()
		return j.slow(Collective, usual, j.now.Sub(g.Waiting).Seconds(), waited, nil)
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
		return j.ruleByWork()
	}
	claims := j.explain(lost)
	explained := total(claims)
	rest := lost - explained
	slept := j.unasked(rest)
	more := min(j.moreWork(), rest)
	unknown := max(0, rest-slept-more)
	shown := j.shown(unknown)
	certain := explained + shown
	// A cause beside a pause, or beside more work, is not why the process is slower.
	named := explained >= max(part*lost, mostly*(lost-slept))
	if certain >= material*s.seconds && (named || shown >= material*s.seconds) {
		if explained >= mostly*(explained+unknown) { // then the rest is worth mentioning
			certain = explained + unknown
		}
		return j.slow(Step, usual, observed, certain, claims)
	}
	if r := j.ruleByWork(); r.kind == slow {
		return r
	}
	switch {
	case slept >= mostly*rest:
		return ruling{kind: unasked}
	case more >= mostly*rest:
		return ruling{kind: quiet}
	}
	return ruling{kind: other}
}

// shown returns how much of the remaining lost time is certain although nothing explains it: the
// time that a loop needed more for the same work. A program that never waits for the device in
// a traced call may as well wait for requests, without sleeping.
func (j *judge) shown(rest float64) float64 {
	if rest <= 0 || j.sample.wait <= 0 || !j.loop() || !j.sameInput() {
		return 0
	}
	return rest
}

// ruleByWork judges the window by the time in which the device did not work for the process.
// Where the work of a launch varies, a loss may hide in it. It must be explained.
func (j *judge) ruleByWork() ruling {
	s := j.sample
	observed, there := s.values["rest"]
	usual, ok := j.phase.signals["rest"].median()
	limit, _ := j.phase.signals["rest"].limit()
	if !there || !ok {
		return ruling{kind: quiet}
	}
	// At a lower clock the same work takes longer.
	observed += s.values["gpu"] * (1 - j.clock())
	lost := min((observed-usual)*s.launches, s.seconds)
	if observed <= limit || lost < material*s.seconds {
		return ruling{kind: quiet}
	}
	var claims []claim
	for _, c := range j.explain(lost) {
		if c.cause != LateInput && c.cause != Communication { // their share of the device's time is unknown
			claims = append(claims, c)
		}
	}
	explained := total(claims)
	if explained < max(material*s.seconds, mostly*lost) {
		return ruling{kind: quiet}
	}
	step := s.values[Step]
	return j.slow(Step, step-explained/s.launches, step, explained, claims)
}

// ruleWithout judges a window with hardly any launches.
func (j *judge) ruleWithout() ruling {
	s := j.sample
	_, launched := j.phase.signals[Step].median()
	if launched && j.waited.Seconds() >= 0.99*s.seconds && j.waited > 2*j.longest {
		return j.slow(Sync, j.longest.Seconds(), j.waited.Seconds(), s.seconds, nil)
	}
	if launched {
		return ruling{}
	}
	changes, lost := j.changes()
	if lost = min(lost, s.seconds); lost >= material*s.seconds {
		return j.slow(changes[0].Op, changes[0].Baseline, changes[0].Observed, lost, nil)
	}
	for _, d := range s.ops {
		if d.count >= minCalls {
			return ruling{kind: quiet}
		}
	}
	return ruling{}
}

// slow returns the ruling on a slow window. Without claims, the lost time is explained first.
func (j *judge) slow(op string, usual, observed, lost float64, claims []claim) ruling {
	changes, _ := j.changes()
	if claims == nil {
		claims = j.explain(lost)
	}
	return ruling{
		kind: slow, op: op, baseline: usual, observed: observed, lost: lost,
		claims: claims, changes: changes[:min(len(changes), 5)],
	}
}

// unasked returns the part of the rest of the lost time, which nothing explains, in which the
// process was idle by choice: it slept between a synchronization and the next launch, or
// outside any call while the GPU took no longer per launch. A server with fewer requests is
// not slower. Without host facts it is 0.
func (j *judge) unasked(rest float64) float64 {
	s := j.sample
	slept, sleepKnown := j.slept()
	_, pressureKnown := s.values["cpu pressure"]
	idle := 0.0
	if bubble, ok := j.phase.excess(s.values, "bubble"); ok && (sleepKnown || pressureKnown) {
		idle = max(0, bubble*s.launches-total(j.hostDelay()))
		if sleepKnown {
			idle = min(idle, slept)
		}
	}
	usual, ok := j.phase.signals["gpu"].median()
	if now, there := s.values["gpu"]; ok && there && sleepKnown && now <= sleepyRatio*usual {
		idle = max(idle, slept)
	}
	return min(max(0, idle), rest)
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
