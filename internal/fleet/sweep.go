package fleet

import "github.com/gpumeter/gpumeter/internal/quantity"

// sweep spreads the segments of one device over consecutive slots, so that no moment counts twice:
// of several lanes of one account only the highest counts, and all accounts together have at most
// the time that passed. Where they have more, workloads come before use by unknown processes, and
// that before free time.
//
// Samples do not tell when exactly one account ended and the next began, so device time that does
// not fit moves to free time within the last or the next minutes. What still does not fit is
// dropped.
type sweep struct {
	accounts []int32 // by row
	classes  []uint8 // by account
	edges    []int64 // ms: between the slots

	rows    [][]Sums // by slot and row
	dropped Seconds

	free  []free
	waits []share
	now   []share // of the current interval
}

// share is what a row gets of an interval.
type share struct {
	row, account int32
	class        uint8
	measured     bool
	metered      bool
	held, active Seconds
	energy       Energy
	until        int64 // ms: when a waiting share is dropped
}

// free is device time in an interval that no account has.
type free struct {
	from, to int64 // ms
	time     Seconds
}

// run spreads tracks over the time from the first to the last edge. Which time counts does not depend
// on the edges between them.
func (w *sweep) run(tracks [][]segment) {
	next := make([]int, len(tracks)) // segment of each track
	end := w.edges[len(w.edges)-1]
	for at := w.edges[0]; at < end; {
		to := end
		w.now = w.now[:0]
		for i, list := range tracks {
			for next[i] < len(list) && list[next[i]].to <= at {
				next[i]++
			}
			if next[i] == len(list) {
				continue
			}
			if s := &list[next[i]]; s.from > at {
				to = min(to, s.from)
			} else {
				to = min(to, s.to)
			}
		}
		for i, list := range tracks {
			if next[i] < len(list) && list[next[i]].from <= at {
				w.offer(list[next[i]].within(at, to))
			}
		}
		if len(w.now) > 0 {
			w.settle(at, to)
		}
		at = to
	}
	for _, s := range w.waits {
		w.dropped += s.held
	}
	w.waits, w.free = w.waits[:0], w.free[:0]
}

// within returns the part of a segment in an interval. The parts of a segment add up to it.
func (s *segment) within(from, to int64) share {
	out := share{row: s.row, measured: s.measured, metered: s.metered, held: s.held, active: s.active, energy: s.energy}
	if from > s.from || to < s.to {
		a, b, all := uint64(from-s.from), uint64(to-s.from), uint64(s.to-s.from)
		out.held = Seconds(quantity.Portion(int64(s.held), b, all) - quantity.Portion(int64(s.held), a, all))
		out.active = Seconds(quantity.Portion(int64(s.active), b, all) - quantity.Portion(int64(s.active), a, all))
		out.energy = Energy(quantity.Portion(int64(s.energy), b, all) - quantity.Portion(int64(s.energy), a, all))
	}
	return out
}

// offer adds a share, unless another lane of its account has more: another sender reported the same time.
func (w *sweep) offer(s share) {
	s.account, s.class = w.accounts[s.row], w.classes[w.accounts[s.row]]
	for i := range w.now {
		if w.now[i].account == s.account {
			w.dropped += min(s.held, w.now[i].held)
			if s.held > w.now[i].held {
				w.now[i] = s
			}
			return
		}
	}
	w.now = append(w.now, s)
}

// settle counts the shares of an interval.
func (w *sweep) settle(from, to int64) {
	var total Seconds
	for i := range w.now {
		total += w.now[i].held
	}
	room := span(to - from)
	if total <= room {
		for i := range w.now {
			w.count(from, to, &w.now[i])
		}
		w.rest(from, to, room-total)
		return
	}
	for class := range uint8(classes) {
		var sum Seconds
		for i := range w.now {
			if w.now[i].class == class {
				sum += w.now[i].held
			}
		}
		part := min(sum, room)
		for i := range w.now {
			if s := &w.now[i]; s.class == class {
				fits, over := *s, share{}
				if part < sum {
					fits, over = s.split(Seconds(quantity.Portion(int64(s.held), uint64(part), uint64(sum))))
				}
				w.count(from, to, &fits)
				w.move(over, to)
			}
		}
		room -= part
	}
}

// split divides a share in proportion to device time.
func (s share) split(held Seconds) (fits, over share) {
	fits, over = s, s
	if s.held == 0 {
		return fits, share{}
	}
	fits.held = held
	fits.active = Seconds(quantity.Portion(int64(s.active), uint64(held), uint64(s.held)))
	fits.energy = Energy(quantity.Portion(int64(s.energy), uint64(held), uint64(s.held)))
	over.held -= fits.held
	over.active -= fits.active
	over.energy -= fits.energy
	return fits, over
}

// move counts a share in earlier free time, and lets the rest wait for later free time.
func (w *sweep) move(s share, now int64) {
	for i := len(w.free) - 1; i >= 0 && s.held > 0 && w.free[i].to >= now-near.Milliseconds(); i-- {
		var fits share
		fits, s = s.split(min(s.held, w.free[i].time))
		w.free[i].time -= fits.held
		w.count(w.free[i].from, w.free[i].to, &fits)
	}
	if s.held > 0 {
		s.until = now + near.Milliseconds()
		w.waits = append(w.waits, s)
	}
}

// rest gives the free time of an interval to the shares that wait.
func (w *sweep) rest(from, to int64, room Seconds) {
	left := w.waits[:0]
	for _, s := range w.waits {
		if s.until < from {
			w.dropped += s.held
			continue
		}
		fits, over := s.split(min(s.held, room))
		room -= fits.held
		w.count(from, to, &fits)
		if over.held > 0 {
			left = append(left, over)
		}
	}
	w.waits = left
	if room > 0 {
		w.free = append(w.free, free{from, to, room})
	}
}

// count adds a share to the slots of its interval.
func (w *sweep) count(from, to int64, s *share) {
	x := segment{from: from, to: to, row: s.row, measured: s.measured, metered: s.metered, held: s.held, active: s.active, energy: s.energy}
	for slot := range w.rows {
		if a, b := max(from, w.edges[slot]), min(to, w.edges[slot+1]); a < b {
			part := x.within(a, b)
			w.rows[slot][s.row].add(&part)
		}
	}
}

func (a *Sums) add(s *share) {
	a.Held += s.held
	a.Active += s.active
	a.Energy += s.energy
	if s.measured {
		a.HasActive = true
	} else {
		a.Unmeasured += s.held
	}
	a.HasEnergy = a.HasEnergy || s.metered
}

// Classes of accounts, in the order in which they get the time of a device.
const (
	classWorkload = iota
	classUnknown
	classFree
	classes
)

func classOf(kind string) uint8 {
	switch {
	case kind == KindUnallocated:
		return classFree
	case IsWorkload(kind):
		return classWorkload
	}
	return classUnknown
}
