package timeline

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
)

// pool holds the joules that one workload used of one device, by time, and which time was
// shared out among spans. Its joules are those of gpu.workload.energy: between two readings of
// the energy counter they follow the power draw, and their sum is what the counter counted.
// Until the counter has been read again they are an estimate from power.
//
// A moment is shared out once, equally among the spans that ask for it together. Who asks later
// gets nothing for that moment, so that the joules of all spans never add up to more than those
// of the workload.
type pool struct {
	id, name  string
	partition string

	slots   []slot // by time, without overlap
	pending int    // index of the first slot whose joules are an estimate
	shared  []stretch
	coarse  uint64

	accounts map[int64]float64 // last energy of each account, by its start
	held     int64             // last tick with this holder
	seen     int64             // last tick that knew of it
	live     bool              // a holder at the last tick
	power    device.Value      // watts at held
	tail     float64           // joules given of the time since held

	// Of the tick that is being added.
	was, moved bool
	fresh      float64
	born       int64 // start of a holder that the previous tick did not show; 0: none
}

// slot is the time between two ticks.
type slot struct {
	from, to int64
	joules   float64 // of all of it
	given    float64 // joules given to spans
	free     float64 // watts of the time that was not shared out yet
	final    bool    // joules are from the counter
}

// stretch is a time.
type stretch struct{ from, to int64 }

const (
	maxShared   = 4096 // stretches of each pool
	maxAccounts = 64   // of each pool
	second      = 1e9  // in nanoseconds
)

func (k *track) pool(h *node.Holder) *pool {
	for _, p := range k.pools {
		if p.id == h.ID && p.partition == h.Partition {
			return p
		}
	}
	p := &pool{id: h.ID, partition: h.Partition, accounts: map[int64]float64{}}
	k.pools = append(k.pools, p)
	return p
}

// begin prepares for the accounts of a tick.
func (p *pool) begin() {
	p.was, p.live, p.moved, p.fresh, p.born = p.live, false, false, 0, 0
}

// settle adds what one account of the workload says at a tick. A workload has a second account
// if its description changes.
func (p *pool) settle(h *node.Holder, before, at int64) {
	since := h.Since.UnixNano()
	if energy, ok := h.Energy.Get(); ok {
		last, known := p.accounts[since]
		if began := before != 0 && since >= before; !known && !began {
			last = energy // what it used before is not of our time
		}
		if energy != last {
			p.fresh, p.moved = p.fresh+max(0, energy-last), true
		}
		p.accounts[since] = energy
	}
	p.seen = at
	if h.Ended {
		return
	}
	p.live, p.name = true, h.Name
	p.power = h.Power
	if before != 0 && since >= before && since < at { // a process that the previous tick did not show
		p.born = since
	}
}

// finish ends the slot of a tick, and makes the joules of all slots since the counter last moved
// those of the counter.
func (p *pool) finish(at int64) {
	from := p.born
	if p.was {
		from = p.held
	}
	if from != 0 && from < at {
		power := p.power.Default(0)
		p.slots = append(p.slots, slot{from: from, to: at, joules: power * float64(at-from) / second, given: p.tail, free: power})
	}
	if p.tail = 0; p.live {
		p.held = at
	}
	if p.moved {
		p.count(p.fresh)
	}
}

// count makes joules the sum of the slots whose joules are an estimate.
func (p *pool) count(joules float64) {
	list := p.slots[p.pending:]
	estimate, length := 0.0, 0.0
	for _, s := range list {
		estimate += s.joules
		length += float64(s.to - s.from)
	}
	left, weight := joules, 0.0
	for i := range list {
		s := &list[i]
		if estimate > 0 {
			s.joules *= joules / estimate
		} else {
			s.joules = joules * float64(s.to-s.from) / length
		}
		s.final, s.free = true, s.joules/float64(s.to-s.from)*second
		left -= s.given
		weight += s.free * p.open(s.from, s.to)
	}
	for i := range list {
		if weight > 0 {
			list[i].free *= max(0, left) / weight
		}
	}
	p.pending = len(p.slots)
}

// open returns how many seconds between two moments were not shared out.
func (p *pool) open(from, to int64) float64 {
	n := to - from
	for i := p.after(from); i < len(p.shared) && p.shared[i].from < to; i++ {
		n -= min(to, p.shared[i].to) - max(from, p.shared[i].from)
	}
	return float64(n) / second
}

// after returns the index of the first shared stretch that ends after a moment.
func (p *pool) after(at int64) int {
	if n := len(p.shared); n == 0 || p.shared[n-1].to <= at { // spans are mostly newer than those before
		return n
	}
	i, _ := slices.BinarySearchFunc(p.shared, at+1, func(s stretch, at int64) int { return cmp.Compare(s.to, at) })
	return i
}

// first returns the index of the first slot that ends after a moment.
func (p *pool) first(at int64) int {
	if n := len(p.slots); n == 0 || p.slots[n-1].to <= at {
		return n
	}
	i, _ := slices.BinarySearchFunc(p.slots, at+1, func(s slot, at int64) int { return cmp.Compare(s.to, at) })
	return i
}

// take gives the joules between two moments that were not shared out, to spans that divide them.
// until is how long the last reading is in force.
func (p *pool) take(from, to, until int64) float64 {
	sum := 0.0
	for i := p.after(from); from < to; i++ {
		end, next := to, to
		if i < len(p.shared) && p.shared[i].from < to {
			end, next = max(from, p.shared[i].from), min(to, p.shared[i].to)
		}
		sum += p.draw(from, end, until)
		from = next
	}
	return sum
}

// draw gives the joules between two moments that are free.
func (p *pool) draw(from, to, until int64) float64 {
	sum := 0.0
	i := p.first(from)
	for ; i < len(p.slots) && p.slots[i].from < to; i++ {
		s := &p.slots[i]
		if d := min(to, s.to) - max(from, s.from); d > 0 {
			joules := s.free * float64(d) / second
			s.given += joules
			sum += joules
		}
	}
	if power, ok := p.power.Get(); p.live && ok {
		if d := min(to, until) - max(from, p.held); d > 0 {
			joules := power * float64(d) / second
			p.tail += joules
			sum += joules
		}
	}
	return sum
}

// used returns the joules between two moments, whoever they were given to, absent if none is
// known. counted: all are from the counter.
func (p *pool) used(from, to, until int64) (joules device.Value, counted bool) {
	sum, known, counted := 0.0, false, true
	for i := p.first(from); i < len(p.slots) && p.slots[i].from <= to; i++ {
		s := &p.slots[i]
		d := max(0, min(to, s.to)-max(from, s.from))
		sum += s.joules * float64(d) / float64(s.to-s.from)
		known, counted = true, counted && (d == 0 || s.final)
	}
	if power, ok := p.power.Get(); p.live && ok && to >= p.held && from < until {
		d := max(0, min(to, until)-max(from, p.held))
		sum += power * float64(d) / second
		known, counted = true, counted && d == 0
	}
	if !known {
		return device.Value{}, false
	}
	return device.Of(sum), counted
}

// share marks a time as shared out.
func (p *pool) share(from, to int64) {
	i := p.after(from - 1) // a stretch that ends where this one begins
	j := i
	for j < len(p.shared) && p.shared[j].from <= to {
		from, to = min(from, p.shared[j].from), max(to, p.shared[j].to)
		j++
	}
	p.shared = slices.Replace(p.shared, i, j, stretch{from, to})
	if len(p.shared) > maxShared { // what is between the oldest is given to none
		p.shared[1].from = p.shared[0].from
		p.shared = slices.Delete(p.shared, 0, 1)
		p.coarse++
	}
}

// forget drops what is before a moment.
func (p *pool) forget(first int64) (coarse uint64) {
	if n := p.first(first); n > 0 {
		p.slots = slices.Delete(p.slots, 0, n)
		p.pending = max(0, p.pending-n)
	}
	maps.DeleteFunc(p.accounts, func(int64, float64) bool { return len(p.accounts) > maxAccounts })
	if n := p.after(first); n > 0 {
		p.shared = slices.Delete(p.shared, 0, n)
	}
	coarse, p.coarse = p.coarse, 0
	return coarse
}
