package anomaly

import (
	"cmp"
	"slices"
	"time"
)

// episode is a sequence of slow windows of a process.
type episode struct {
	since   time.Time
	idle    float64 // watched.idle when it began
	windows int
	quiet   int // quiet windows since the last slow one
	unclear int // windows without a judgment since the last slow one
	open    bool
	op      string
	lost    float64
	over    float64
	base    float64 // weighted by lost
	now     float64
	claims  []claim       // summed by cause, with the latest facts
	seen    map[Cause]int // windows in which a cause had a relevant share
	changes []Change
	phase   *phase
}

// follow adds a window to a process's history, and returns an anomaly to report, if any.
func (p *watched) follow(j *judge, r ruling) (Anomaly, bool) {
	e := p.episode
	if r.kind == slow {
		if e == nil || e.op != r.op && !e.open {
			e = &episode{since: j.now.Add(-time.Duration(j.sample.seconds * float64(time.Second))), op: r.op, idle: p.idle, phase: j.phase, seen: map[Cause]int{}}
			p.episode = e
		}
		e.add(r, j.sample.seconds)
		switch {
		case e.open && e.windows >= normal && e.op != Sync && e.op != Collective: // a hang never becomes normal
			p.episode = nil
			e.phase.adopt()
			return e.anomaly(p, Adopted, j.now), true
		case !e.open && e.certain():
			e.open = true
			return e.anomaly(p, Open, j.now), true
		}
		return Anomaly{}, false
	}
	if e == nil {
		return Anomaly{}, false
	}
	if !e.open { // not enough consecutive slow windows
		p.episode = nil
		return Anomaly{}, false
	}
	if r.kind == quiet && j.phase == e.phase {
		e.quiet++
	} else { // another phase says nothing about this one
		e.unclear++
	}
	calm := over
	if e.largest() == LateInput {
		calm = patient // a loader that is late is not late in every window
	}
	if e.quiet >= calm || e.unclear >= vanished {
		p.episode = nil
		return e.anomaly(p, Ended, j.now), true
	}
	return Anomaly{}, false
}

// add adds a slow window.
func (e *episode) add(r ruling, length float64) {
	e.windows++
	e.quiet, e.unclear = 0, 0
	e.lost += r.lost
	e.over += length
	e.base += r.baseline * r.lost
	e.now += r.observed * r.lost
	e.changes = r.changes
	for _, c := range r.claims {
		if c.seconds >= part*r.lost {
			e.seen[c.cause]++
		}
		i := slices.IndexFunc(e.claims, func(k claim) bool { return k.cause == c.cause })
		if i < 0 && len(e.claims) < maxCauses {
			e.claims = append(e.claims, c)
		} else if i >= 0 {
			e.claims[i].seconds += c.seconds
			e.claims[i].fact = c.fact
		}
	}
}

// certain reports whether there are enough slow windows to report them.
func (e *episode) certain() bool {
	needed := sure
	if e.op == Step && e.largest() == Communication {
		needed = together
	}
	return e.windows >= patient || e.windows >= needed && e.steady() >= 0.5
}

// largest returns the largest cause so far.
func (e *episode) largest() Cause {
	if len(e.claims) == 0 {
		return Unexplained
	}
	return slices.MaxFunc(e.claims, func(a, b claim) int { return cmp.Compare(a.seconds, b.seconds) }).cause
}

// steady returns the share of the lost time explained by causes present in every slow
// window: two unrelated causes in consecutive windows do not count. Late input does not count
// either, because pauses look like it.
func (e *episode) steady() float64 {
	sum := 0.0
	for _, c := range e.claims {
		if e.seen[c.cause] >= e.windows && c.cause != LateInput {
			sum += c.seconds
		}
	}
	return ratio(sum, e.lost)
}

// anomaly returns the episode in the form in which it is reported.
func (e *episode) anomaly(p *watched, state State, now time.Time) Anomaly {
	a := Anomaly{
		State: state, Time: now, Since: e.since, PID: p.pid, Process: p.name, Workload: p.workload, Device: p.device,
		Op: e.op, Baseline: ratio(e.base, e.lost), Observed: ratio(e.now, e.lost),
		Lost: time.Duration(e.lost * float64(time.Second)), Over: time.Duration(e.over * float64(time.Second)),
		Changes: slices.Clone(e.changes), Unexplained: 1,
	}
	for _, c := range e.claims {
		share := clip(ratio(c.seconds, e.lost))
		a.Explanations = append(a.Explanations, Explanation{Cause: c.cause, Share: share, Seconds: c.seconds, Fact: c.fact})
		a.Unexplained -= share
	}
	a.Unexplained = clip(a.Unexplained)
	if a.Unexplained < 1e-9 {
		a.Unexplained = 0
	}
	slices.SortStableFunc(a.Explanations, func(a, b Explanation) int { return cmp.Compare(b.Share, a.Share) })
	return a
}
