package fleet

import (
	"time"

	"github.com/gpumeter/gpumeter/internal/quantity"
)

const (
	// Near is how far apart two samples of a live account are at most.
	Near = 5 * time.Minute
	near = Near
	// maxLanes bounds the senders that are told apart.
	maxLanes = 8
)

// reading has the counters of one account at one moment.
type reading struct {
	at      int64 // ms
	account int32
	row     int32
	hasHeld bool // the device time counter has a sample at this moment
	Sums
}

// segment is the growth of an account's counters over an interval, in which it is spread evenly.
type segment struct {
	from, to int64 // ms
	row      int32
	measured bool // there is activity data
	metered  bool // there is energy data
	held     Seconds
	active   Seconds
	energy   Energy
}

// lane is one sequence of counter values. An account has one lane for as long as one agent counts
// it. A restarted agent, and a second agent on the same host, begin another lane: only values of
// the same lane can be subtracted from each other.
type lane struct {
	account     int32
	at, changed int64 // ms: of the last reading, and of the last one with more device time
	Sums
	track int // its segments
}

// follower turns the readings of one workload instance into lanes.
type follower struct {
	lanes  []lane
	known  map[int32]int64 // accounts seen so far, and when last
	tracks [][]segment     // by lane, in order of time, without overlap
	unseen func(r *reading, held Seconds)
}

// follow processes readings in order of time.
func (f *follower) follow(list []reading) {
	for i := range list {
		r := &list[i]
		if l := f.continued(r); l != nil {
			f.take(l, r)
		} else if r.hasHeld {
			f.open(r)
		}
		if last, ok := f.known[r.account]; r.hasHeld && (!ok || last < r.at) {
			f.known[r.account] = r.at
		}
	}
}

// continued returns the lane that a reading continues: of its own account, or of another account
// of the instance if a label was added on the way to the store. It is nil if there is none.
func (f *follower) continued(r *reading) *lane {
	var own, other *lane
	for i := range f.lanes {
		l := &f.lanes[i]
		if !l.leads(r) {
			continue
		}
		switch {
		case l.account == r.account:
			if own == nil || l.better(own, r) {
				own = l
			}
		// An account that its agent opened at zero has at most what could accrue since.
		case r.hasHeld && r.at > l.at && r.at-l.at <= back.Milliseconds() && r.Held > tolerated(r.at-l.at) && f.rises(l, r):
			if other == nil || l.Held > other.Held {
				other = l
			}
		}
	}
	if own == nil {
		return other
	}
	return own
}

// better reports whether a reading is more likely the next of l than of o, and it may be either:
// first comes a lane in which device time did not grow faster than time passed, then the one that
// was seen last.
func (l *lane) better(o *lane, r *reading) bool {
	fits := func(l *lane) bool { return r.Held-l.Held <= span(r.at-l.at) }
	if fits(l) != fits(o) {
		return fits(l)
	}
	return l.at > o.at || l.at == o.at && l.Held > o.Held
}

// rises reports whether l is ahead of all lanes of the reading's own account.
func (f *follower) rises(l *lane, r *reading) bool {
	for i := range f.lanes {
		if o := &f.lanes[i]; o.account == r.account && o.Held >= l.Held {
			return false
		}
	}
	return true
}

// tolerated returns the highest growth of device time in a number of milliseconds. Scrapes are
// less regular than the counters they read.
func tolerated(ms int64) Seconds { return Seconds(ms*1000 + ms*1000/8 + 1e6) }

// leads reports whether a reading may be the next of the lane: no counter fell, and device time did
// not grow faster than time passed since it last grew.
func (l *lane) leads(r *reading) bool {
	if !r.hasHeld {
		return l.account == r.account && !l.with(r.Sums).below(l.Sums)
	}
	if r.below(l.Sums) {
		return false
	}
	grown := r.Held - l.Held
	return grown == 0 || r.at > l.at && grown <= tolerated(r.at-max(l.changed, l.at-near.Milliseconds()))
}

// take continues a lane.
func (f *follower) take(l *lane, r *reading) {
	next := l.with(r.Sums)
	if r.hasHeld {
		next.Held = r.Held
	}
	s := segment{
		from: l.at, to: r.at, row: r.row, measured: next.HasActive, metered: next.HasEnergy,
		held: next.Held - l.Held, active: next.Active - l.Active, energy: next.Energy - l.Energy,
	}
	// A counter seen for the first time counts from its value, unless the account has just started.
	if !l.HasActive && l.Held > 0 {
		s.active = 0
	}
	if !l.HasEnergy && l.Held > 0 {
		s.energy = 0
	}
	if s.held > span(s.to-s.from) { // a page that is read more often than it changes
		s.from = min(l.at, max(l.changed, l.at-near.Milliseconds(), s.to-ceil(s.held)))
	}
	f.add(l.track, f.bridge(s, r))
	if s.held > 0 {
		l.changed = r.at
	}
	l.account, l.at, l.Sums = r.account, r.at, next
}

// bridge limits growth across a gap of more than an hour to what fits in the hour before the reading
// that ends it. Nobody saw more: the rest is reported as unseen. Little growth is that of an agent
// that has just come back.
func (f *follower) bridge(s segment, r *reading) segment {
	if s.to-s.from <= back.Milliseconds() {
		return s
	}
	s.from = s.to - back.Milliseconds()
	if s.held <= span(near.Milliseconds()) {
		s.from = s.to - near.Milliseconds()
	}
	if most := span(back.Milliseconds()); s.held > most {
		f.unseen(r, s.held-most)
		s.active = Seconds(quantity.Portion(int64(s.active), uint64(most), uint64(s.held)))
		s.energy = Energy(quantity.Portion(int64(s.energy), uint64(most), uint64(s.held)))
		s.held = most
	}
	return s
}

// span converts milliseconds.
func span(ms int64) Seconds { return Seconds(ms * 1000) }

// ceil returns the least number of milliseconds, at least one, in which device time can accrue.
func ceil(held Seconds) int64 { return max(1, int64(held+999)/1000) }

// add appends a segment to a track unless it is empty.
func (f *follower) add(track int, s segment) {
	list := f.tracks[track]
	if n := len(list); n > 0 {
		s.from = max(s.from, list[n-1].to)
	}
	if s.from < s.to && (s.held > 0 || s.active > 0 || s.energy > 0) {
		f.tracks[track] = append(list, s)
	}
}

// open begins a lane at a reading that continues none.
func (f *follower) open(r *reading) {
	l := lane{account: r.account, at: r.at, changed: r.at, Sums: r.Sums, track: len(f.tracks)}
	f.tracks = append(f.tracks, nil)
	switch last, known := f.known[r.account]; {
	case !known && r.Held > fresh: // the store missed its start
		f.unseen(r, r.Held)
	case !known, r.Held <= span(r.at-last): // it started, or restarted, at zero
		f.add(l.track, segment{from: r.at - ceil(r.Held), to: r.at, row: r.row, measured: r.HasActive, metered: r.HasEnergy, held: r.Held, active: r.Active, energy: r.Energy})
	}
	if len(f.lanes) < maxLanes {
		f.lanes = append(f.lanes, l)
		return
	}
	oldest := 0
	for i := range f.lanes {
		if f.lanes[i].at < f.lanes[oldest].at {
			oldest = i
		}
	}
	f.lanes[oldest] = l
}
