package timeline

import (
	"cmp"
	"slices"

	"github.com/gpumeter/gpumeter/internal/device"
)

// Subject is whose devices a question is about.
type Subject struct {
	// Workloads are the IDs of the workload or, if only its pod or job is known, of all that
	// belong to it.
	Workloads []string
	// PID, if not 0, is a process of the workload: only the devices that it is on count. If it
	// is on none, such as the front end of an engine, all devices of the workload count.
	PID uint32
}

// Span is a stretch of time, in nanoseconds since 1970.
type Span struct {
	From, To int64
	// Parent is the index of the span that encloses it, or -1. While a span runs, the one that
	// encloses it gets no joules.
	Parent int
}

// Answer has the states of spans. It may be used again.
type Answer struct {
	states []State
	first  []int // index of the first state, by span; one more than there are spans
	moves  []move
	parts  []part
	held   []*track
	pools  []*pool
}

// Of returns the states of the i-th span: one for each device that its workload held during it,
// or for each partition, by index. They are valid until the Answer is used again.
func (a *Answer) Of(i int) []State { return a.states[a.first[i]:a.first[i+1]] }

// Ask answers what the devices of a workload did during spans, and gives each span its joules.
// A moment is shared out to the spans of one question together.
func (l *Timeline) Ask(who Subject, spans []Span, a *Answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a.states, a.first = a.states[:0], append(a.first[:0], 0)
	l.choose(who, spans, a)
	for i := range spans {
		for j, p := range a.pools {
			a.states = a.held[j].state(a.states, p, &spans[i])
		}
		a.first = append(a.first, len(a.states))
	}
	if len(a.states) > 0 {
		a.order(spans)
		for j, p := range a.pools {
			k := a.held[j]
			a.divide(spans, p, k.entries[len(k.entries)-1].until)
		}
	}
}

// choose sets the pools that a question is about.
func (l *Timeline) choose(who Subject, spans []Span, a *Answer) {
	a.held, a.pools = a.held[:0], a.pools[:0]
	if len(spans) == 0 {
		return
	}
	for _, k := range l.tracks {
		for _, p := range k.pools {
			if slices.Contains(who.Workloads, p.id) {
				a.held, a.pools = append(a.held, k), append(a.pools, p)
			}
		}
	}
	if who.PID == 0 || len(a.pools) < 2 {
		return
	}
	from, to := spans[0].From, spans[0].To
	for _, s := range spans {
		from, to = min(from, s.From), max(to, s.To)
	}
	n := 0
	for j, p := range a.pools {
		if a.held[j].on(p, who.PID, from, to) {
			a.pools[n], a.pools[j] = a.pools[j], a.pools[n]
			a.held[n], a.held[j] = a.held[j], a.held[n]
			n++
		}
	}
	if n > 0 {
		a.held, a.pools = a.held[:n], a.pools[:n]
	}
}

// on reports whether a process was on the device or partition of a pool.
func (k *track) on(p *pool, pid uint32, from, to int64) bool {
	for i := max(0, k.force(from)); i < len(k.entries) && k.entries[i].at <= to; i++ {
		e := &k.entries[i]
		if h := e.holder(p); h != nil && slices.Contains(e.units[h.unit].pids, pid) {
			return true
		}
	}
	return false
}

func (e *entry) holder(p *pool) *holder {
	for i := range e.holders {
		if e.holders[i].pool == p {
			return &e.holders[i]
		}
	}
	return nil
}

// move is the beginning or the end of a span.
type move struct {
	at   int64
	span int32
	end  bool
}

// part is what a span has of a pool so far.
type part struct {
	state    *State // nil: it is not on the device
	inner    int32  // running spans that it encloses
	running  bool
	since    float64 // the joules of one span when it began to take part
	gathered float64
}

// order sorts the beginnings and ends of all spans.
func (a *Answer) order(spans []Span) {
	a.moves = a.moves[:0]
	for i, s := range spans {
		if s.From < s.To && a.first[i] < a.first[i+1] {
			a.moves = append(a.moves, move{s.From, int32(i), false}, move{s.To, int32(i), true})
		}
	}
	slices.SortFunc(a.moves, func(x, y move) int { return cmp.Compare(x.at, y.at) })
}

// divide gives the joules of a pool to the spans: at each moment equally to those that run and
// enclose no other that runs.
func (a *Answer) divide(spans []Span, p *pool, until int64) {
	a.parts = slices.Grow(a.parts[:0], len(spans))[:len(spans)]
	clear(a.parts)
	for i := range spans {
		for j := a.first[i]; j < a.first[i+1]; j++ {
			if s := &a.states[j]; s.pool == p && !s.Late && s.Workload.OK() {
				a.parts[i].state = s
			}
		}
	}
	each, takers := 0.0, 0 // joules so far of a span that always takes part
	var last, since int64
	takes := func(x *part) bool { return x.running && x.inner == 0 }
	turn := func(x *part, change func()) {
		before := takes(x)
		change()
		switch now := takes(x); {
		case now && !before:
			x.since = each
			takers++
		case before && !now:
			x.gathered += each - x.since
			takers--
		}
	}
	for _, m := range a.moves {
		x := &a.parts[m.span]
		if x.state == nil {
			continue
		}
		if takers > 0 && m.at > last {
			each += p.take(last, m.at, until) / float64(takers)
		}
		idle := takers == 0
		last = m.at
		turn(x, func() { x.running = !m.end })
		if outer := spans[m.span].Parent; outer >= 0 && a.parts[outer].state != nil {
			o := &a.parts[outer]
			turn(o, func() {
				if m.end {
					o.inner--
				} else {
					o.inner++
				}
			})
		}
		switch {
		case idle && takers > 0:
			since = m.at
		case !idle && takers == 0 && since < m.at:
			p.share(since, m.at)
		}
	}
	for i := range a.parts {
		if x := &a.parts[i]; x.state != nil {
			x.state.Joules = device.Of(x.gathered)
		}
	}
}
