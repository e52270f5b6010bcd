package node

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload"
)

const (
	// keepEnded is how long the sums of an ended workload are kept, so that no scrape
	// misses the last value.
	keepEnded = 5 * time.Minute
	// maxOwned bounds the number of workloads distinguished on one device. Usage by further
	// workloads is counted under workload.Other, so that no sum loses anything.
	maxOwned = 256
)

// Holder is one workload on one physical device at one moment, with its total use so far.
// The part that nobody holds is a Holder, too.
type Holder struct {
	workload.Workload
	// Partition is the UUID of the partition that the workload holds, empty if it holds the
	// device.
	Partition string `json:"partition,omitempty"`
	Profile   string `json:"profile,omitempty"` // profile of the partition
	Stale     bool   `json:"stale,omitempty"`   // its source does not answer
	// Ended: the workload is gone. Only its totals are set.
	Ended bool `json:"ended,omitempty"`

	// Granted: a scheduler gave it the device, or part of it; Whole: all of it, or a replica of it. Works: it did some of the
	// device's work when that was read.
	Granted bool `json:"-"`
	Whole   bool `json:"-"`
	Works   bool `json:"-"`

	Basis       Basis        `json:"basis,omitempty"`
	Allocation  float64      `json:"allocation"` // share of the device that it holds
	Share       float64      `json:"share"`      // share of the device's work that it does
	Utilization device.Value `json:"utilization,omitzero"`
	MemoryUsed  device.Value `json:"memory_used,omitzero"` // bytes
	Power       device.Value `json:"power,omitzero"`       // watts

	// Totals since Since.
	Since     time.Time    `json:"since"`
	Energy    device.Value `json:"energy_joules,omitzero"`
	Allocated float64      `json:"allocated_seconds"` // seconds times allocation
	Active    device.Value `json:"active_seconds,omitzero"`
	Peak      device.Value `json:"peak_memory,omitzero"` // bytes, the highest at any tick
}

// ledger records what each workload used of one physical device. It is part of the state
// file.
type ledger struct {
	At        time.Time `json:"at"`                      // up to when it is complete
	Energy    *float64  `json:"energy_joules,omitempty"` // the device's counter when it last moved
	IdlePower *float64  `json:"idle_watts,omitempty"`    // lowest draw seen without a process
	// Sole is the ID of the sole holder of the device, empty if there was none or several.
	Sole  string     `json:"sole,omitempty"`
	Owned []*account `json:"owned,omitempty"` // by unit, then by workload; the newest description first
	// watched: this process knows the holders at At, so it counts their time. resumed: the
	// device has answered, so its energy is counted as well.
	watched bool
	resumed bool
	shares  []share // of the last tick
}

// account is what one workload used under one description.
type account struct {
	Workload  workload.Workload `json:"workload"`
	Unit      string            `json:"unit,omitempty"` // UUID of a partition
	Profile   string            `json:"profile,omitempty"`
	Basis     Basis             `json:"basis,omitempty"`
	Since     time.Time         `json:"since"`
	Seen      time.Time         `json:"seen"` // when it last held the device
	Energy    *float64          `json:"energy_joules,omitempty"`
	Allocated float64           `json:"allocated_seconds"`
	Active    *float64          `json:"active_seconds,omitempty"`
	Peak      *float64          `json:"peak_memory,omitempty"`

	// Told is what records of earlier stays have reported.
	Told spent `json:"told,omitzero"`

	// Since the counter last moved: joules estimated from power, and the seconds, times
	// share, in which the power was unknown.
	Pending   float64 `json:"pending_joules,omitempty"`
	unmetered float64
}

// owes reports whether joules of the account are still to be read from the counter.
func (o *account) owes() bool { return o.Pending > 0 || o.unmetered > 0 }

// advance books the time since the last tick on the workloads that held the device then,
// and records the current holders. fresh means that the energy counter was read for this
// tick.
func (l *ledger) advance(now time.Time, c cut, before, after owners, fresh bool) {
	if l.watched {
		l.book(now, c, c.shares(before.during(after)), fresh)
	}
	l.watched = true
	if !l.resumed && c.device.Up {
		l.resume(c, after)
	}
	l.learnIdle(c)
	l.shares = c.shares(after)
	if id := sole(l.shares); l.resumed {
		l.Sole = id
	} else if id != l.Sole {
		l.Sole = "" // the device has not answered yet, and its holder has changed meanwhile
	}
	for _, s := range l.shares {
		o := l.account(s, now)
		o.Seen = now
		if o.Energy == nil && (c.device.Energy.OK() || c.power().OK()) {
			o.Energy = new(float64) // a sum starts at 0, or its first joules would be lost
		}
	}
	l.At = now
	l.Owned = slices.DeleteFunc(l.Owned, func(o *account) bool { return now.Sub(o.Seen) > keepEnded && !o.owes() })
}

// resume continues the ledger of an earlier process. The gap was not observed: its energy
// is charged to the sole holder before and after, else to nobody, and no time is counted.
func (l *ledger) resume(c cut, after owners) {
	l.resumed = true
	energy, ok := c.device.Energy.Get()
	if !ok {
		return
	}
	if l.Energy == nil || l.At.IsZero() {
		l.Energy = &energy
		return
	}
	gap := energy - *l.Energy
	switch {
	case c.device.Jumped:
		gap = 0
	case gap < 0: // the driver was reloaded and counts from 0
		gap = energy
	}
	l.Energy = &energy
	if gap -= l.chargePending(gap); gap == 0 {
		return
	}
	now := c.shares(after)
	if id := sole(now); id != "" && id == l.Sole {
		l.earn(l.account(now[0], l.At), gap)
		return
	}
	l.earn(l.account(restOf(workload.Unattributed, "", 0), l.At), gap)
}

// suspend treats what follows as a gap, as if another process continued.
func (l *ledger) suspend() {
	l.watched, l.resumed = false, false
	for _, o := range l.Owned {
		o.unmetered = 0
	}
}

// restart restarts all sums with a new start time: what was last exported is unknown, and a
// sum must not decrease.
func (l *ledger) restart(now time.Time) { l.Owned, l.At = nil, now }

// sole returns the ID of the sole holder in list, or "".
func sole(list []share) string {
	if len(list) != 1 || list[0].basis != Exclusive {
		return ""
	}
	return list[0].ID
}

func (l *ledger) earn(o *account, joules float64) {
	if o.Energy == nil {
		o.Energy = new(float64)
	}
	*o.Energy += joules
}

// book adds what happened since the last tick to the accounts of list.
func (l *ledger) book(now time.Time, c cut, list []share, fresh bool) {
	seconds := now.Sub(l.At).Seconds()
	if seconds <= 0 {
		return
	}
	utilization, counted := c.utilization().Get()
	power, measured := c.power().Get()
	draws := watts(list, power, l.idle())
	for i, s := range list {
		o := l.account(s, l.At)
		o.Allocated += s.alloc * seconds
		if counted {
			if o.Active == nil {
				o.Active = new(float64)
			}
			if s.use > 0 && s.share*utilization > 0 {
				*o.Active += s.alloc * seconds
			}
		}
		switch {
		case !l.resumed: // resume charges for it
		case measured:
			o.Pending += draws[i] * seconds
		default:
			o.unmetered += s.share * seconds
		}
	}
	if l.resumed {
		l.settle(c, list, fresh)
	}
}

// settle replaces the estimates from power by the energy counter's value whenever the
// counter was read or moved. Without a counter the estimates stand.
func (l *ledger) settle(c cut, list []share, fresh bool) {
	energy, ok := c.device.Energy.Get()
	if !c.device.Up {
		return // it may have a counter
	}
	switch {
	case !ok && l.Energy != nil:
		return // the counter did not answer this time
	case !ok:
		for _, o := range l.Owned {
			if o.Pending > 0 {
				l.earn(o, o.Pending)
			}
			o.Pending, o.unmetered = 0, 0
		}
		return
	case l.Energy == nil:
		l.Energy = &energy
		return
	case energy == *l.Energy && !fresh:
		return
	}
	delta := energy - *l.Energy
	switch {
	case c.device.Jumped: // the estimates stand
		delta = l.estimated()
	case delta < 0: // the driver was reloaded and counts from 0
		delta = energy
	}
	l.Energy = &energy
	l.charge(delta, list)
}

func (l *ledger) idle() float64 {
	if l.IdlePower == nil {
		return 0
	}
	return *l.IdlePower
}

// learnIdle records the lowest draw of a device that nothing uses.
func (l *ledger) learnIdle(c cut) {
	power, ok := c.power().Get()
	busy, told := c.utilization().Get()
	if !ok || power <= 0 || !told || busy > 0 || len(c.device.Processes) > 0 { // processes may be hidden from the agent
		return
	}
	for _, p := range c.partitions {
		if len(p.Processes) > 0 {
			return
		}
	}
	if l.IdlePower == nil || power < *l.IdlePower {
		l.IdlePower = &power
	}
}

// power returns the draw of the device in watts.
func (c cut) power() device.Value { return c.device.Power().Draw() }

// account returns the account of a share, or that of workload.Other if there is no room.
func (l *ledger) account(s share, since time.Time) *account {
	i, ok := l.find(s)
	if !ok && len(l.Owned) >= maxOwned {
		l.forget()
		i, _ = l.find(s)
	}
	if !ok && len(l.Owned) >= maxOwned && !isRest(s.Kind) {
		s = restOf(workload.Other, "", 0)
		i, ok = l.find(s)
	}
	if !ok {
		l.Owned = slices.Insert(l.Owned, i, &account{Workload: s.Workload, Unit: s.unit, Since: since, Seen: since})
	}
	l.Owned[i].Basis = s.basis
	return l.Owned[i]
}

// find returns the index of the account of a share, or where to insert it. A workload whose
// description changed, such as its team, has one account per description: a sum that
// continued under new labels would be billed under both.
func (l *ledger) find(s share) (int, bool) {
	first, end := l.accounts(s.unit, s.ID)
	for i := first; i < end; i++ {
		if l.Owned[i].Workload.Equal(s.Workload) {
			return i, true
		}
	}
	return first, false
}

// accounts returns the range of Owned that a workload has on a unit, the newest description
// first.
func (l *ledger) accounts(unit, id string) (first, end int) {
	first, _ = slices.BinarySearchFunc(l.Owned, [2]string{unit, id}, func(o *account, key [2]string) int {
		return cmp.Or(cmp.Compare(o.Unit, key[0]), cmp.Compare(o.Workload.ID, key[1]))
	})
	end = first
	for end < len(l.Owned) && l.Owned[end].Unit == unit && l.Owned[end].Workload.ID == id {
		end++
	}
	return first, end
}

// forget makes room by dropping the workload that has been gone the longest.
func (l *ledger) forget() {
	oldest := -1
	for i, o := range l.Owned {
		if o.Seen.Before(l.At) && !o.owes() && (oldest < 0 || o.Seen.Before(l.Owned[oldest].Seen)) {
			oldest = i
		}
	}
	if oldest >= 0 {
		l.Owned = slices.Delete(l.Owned, oldest, oldest+1)
	}
}

func isRest(kind string) bool {
	return kind == workload.Unallocated || kind == workload.Unattributed || kind == workload.Other
}

// holders returns all current holders of the device, and those that left recently.
func (l *ledger) holders(c cut) []Holder {
	utilization := c.utilization()
	power, measured := c.power().Get()
	draws := watts(l.shares, power, l.idle())
	list := make([]Holder, 0, len(l.Owned))
	at := map[*account]int{}
	for i, s := range l.shares {
		o := l.account(s, l.At)
		if _, ok := at[o]; !ok {
			at[o] = len(list)
			list = append(list, o.holder(c))
		}
		h := &list[at[o]] // shared by several shares if they are counted together
		h.Job = s.Job     // of now: the account has that of its beginning
		h.Basis, h.Stale = s.basis, h.Stale || s.stale
		h.Granted, h.Whole = h.Granted || s.granted, h.Whole || s.granted && !s.limited && h.Partition == ""
		h.Allocation += s.alloc
		h.Share += s.share
		h.MemoryUsed = add(h.MemoryUsed, s.memory)
		if u, ok := utilization.Get(); ok {
			h.Utilization = add(h.Utilization, device.Of(u*s.share))
			h.Works = h.Works || s.use > 0 && u*s.share > 0
		}
		if measured {
			h.Power = add(h.Power, device.Of(draws[i]))
		}
	}
	for o, i := range at {
		if used, ok := list[i].MemoryUsed.Get(); ok && (o.Peak == nil || used > *o.Peak) {
			o.Peak = &used
		}
		list[i].Peak = value(o.Peak)
	}
	for _, o := range l.Owned {
		if _, ok := at[o]; !ok {
			h := o.holder(c)
			h.Ended = true
			list = append(list, h)
		}
	}
	return list
}

func (o *account) holder(c cut) Holder {
	h := Holder{Workload: o.Workload, Since: o.Since, Energy: value(o.Energy), Allocated: o.Allocated, Active: value(o.Active), Basis: o.Basis, Peak: value(o.Peak)}
	if o.Unit != c.device.ID.UUID {
		h.Partition = o.Unit
	}
	for _, p := range c.partitions {
		if p.ID.UUID == o.Unit {
			o.Profile = p.ID.Profile
		}
	}
	h.Profile = o.Profile
	return h
}

// valid reports whether a ledger from a file can be continued.
func (l *ledger) valid() bool {
	for _, o := range l.Owned {
		if o == nil || o.Workload.ID == "" || !sane(o.Since) || !number64(o.Allocated) || !number64(orZero(o.Energy)) || !number64(orZero(o.Active)) || !number64(orZero(o.Peak)) || !number64(o.Pending) || !o.Told.valid() {
			return false
		}
	}
	return number64(orZero(l.Energy)) && number64(orZero(l.IdlePower)) &&
		slices.IsSortedFunc(l.Owned, func(a, b *account) int {
			return cmp.Or(cmp.Compare(a.Unit, b.Unit), cmp.Compare(a.Workload.ID, b.Workload.ID))
		})
}

func number64(f float64) bool { return f >= 0 && !math.IsInf(f, 0) && !math.IsNaN(f) }

func orZero(f *float64) float64 {
	if f == nil {
		return 0
	}
	return *f
}
