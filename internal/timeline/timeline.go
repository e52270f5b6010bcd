// Package timeline remembers the last minutes of every device of this machine, tick by tick,
// and answers what the devices of a workload did between two moments.
//
// A reading is in force from its tick to the next one, as in a store of time series: asked for
// one moment, both give the same value. It is in force for three intervals at most, or 10 s, so that
// a pause of the readings is not filled with old values. Joules are counted, not sampled; see
// pool. docs/spans.md has the definitions.
//
// The package is pure: ticks and questions go in, and the only clock is that of the ticks.
package timeline

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Limits of what is remembered of each device.
const (
	Keep        = 10 * time.Minute // of readings, if they are fewer than maxReadings
	maxReadings = 600
	maxDevices  = 4096 // physical devices, including those that are gone
)

// Timeline is safe for concurrent use. The zero Timeline remembers nothing yet.
type Timeline struct {
	mu     sync.Mutex
	tracks []*track // by index, then by UUID
	newest int64    // time of the last tick, 0 before it
	hold   int64    // how long a reading is in force without a successor
	coarse uint64
}

// track is one physical device.
type track struct {
	id      device.ID
	entries []entry // by time
	pools   []*pool // of the workloads in entries
}

// entry is one reading. It is not modified after See.
type entry struct {
	at, until int64 // in force; the next entry may end it earlier
	units     []unit
	// Of the physical device.
	temperature, power, clock device.Value
	throttled                 device.Buckets
	throttles                 bool // the device reports throttling
	holders                   []holder
}

// unit is the device, or one of its partitions.
type unit struct {
	id           device.ID
	utilization  device.Value
	used, memory device.Value // bytes: used, and total
	pids         []uint32
}

// holder is a workload on the device at an entry.
type holder struct {
	pool *pool
	unit int // index in units
	// utilization is what the workload used of the device, 0 to 1, power what it drew in watts.
	utilization, power device.Value
	others             []string // names of the other workloads that used the unit, sorted
	busier             float64  // what they used together
}

// See adds a tick.
func (l *Timeline) See(t *node.Tick) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := t.Time.UnixNano()
	before := l.newest
	if before >= at { // the clock was set back: what is ahead of it is of another time
		l.rewind(at)
		before = 0
	}
	if before != 0 {
		l.hold = holding(at - before)
	} else if l.hold == 0 {
		l.hold = holding(int64(defaultInterval))
	}
	l.newest = at
	if t.Paused {
		return
	}
	for i := range t.Readings {
		if r := &t.Readings[i]; r.ID.Parent == "" {
			if k := l.track(r.ID); k != nil {
				k.see(r, t.Readings, before, at, l.hold)
			}
		}
	}
	for _, k := range l.tracks {
		l.coarse += k.forget(at)
	}
	l.tracks = slices.DeleteFunc(l.tracks, func(k *track) bool { return len(k.entries) == 0 })
}

// Coarse returns how often there was no room to remember which time was shared out exactly:
// joules between two spans were then given to none.
func (l *Timeline) Coarse() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.coarse
}

// Newest returns the time of the last tick, in nanoseconds; 0 before it.
func (l *Timeline) Newest() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.newest
}

// Oldest returns the time of the oldest reading that is remembered, in nanoseconds; the largest number if
// there is none.
func (l *Timeline) Oldest() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	oldest := int64(math.MaxInt64)
	for _, k := range l.tracks {
		oldest = min(oldest, k.entries[0].at)
	}
	return oldest
}

// defaultInterval stands for the interval until there are two ticks.
const defaultInterval = 10 * time.Second

// leastHold is how long a reading is in force at least: a tick waits up to 5 s for a device that is late.
const leastHold = 10 * time.Second

// holding returns how long a reading is in force without a successor.
func holding(interval int64) int64 {
	return max(3*min(interval, int64(node.MaxInterval)), int64(leastHold))
}

// rewind drops everything at or after a time.
func (l *Timeline) rewind(at int64) {
	for _, k := range l.tracks {
		i, _ := slices.BinarySearchFunc(k.entries, at, func(e entry, at int64) int { return cmp.Compare(e.at, at) })
		clear(k.entries[i:])
		k.entries = k.entries[:i]
		k.pools = nil // energy is counted from here
		for i := range k.entries {
			k.entries[i].holders = nil
		}
	}
}

func (l *Timeline) track(id device.ID) *track {
	order := func(k *track, id device.ID) int {
		return cmp.Or(cmp.Compare(k.id.Index, id.Index), cmp.Compare(k.id.UUID, id.UUID))
	}
	i, ok := slices.BinarySearchFunc(l.tracks, id, order)
	if !ok {
		if j := slices.IndexFunc(l.tracks, func(k *track) bool { return k.id.UUID == id.UUID }); j >= 0 { // renumbered
			k := l.tracks[j]
			k.id = id
			slices.SortStableFunc(l.tracks, func(a, b *track) int { return order(a, b.id) })
			return k
		}
		if len(l.tracks) >= maxDevices {
			return nil
		}
		l.tracks = slices.Insert(l.tracks, i, &track{})
	}
	l.tracks[i].id = id
	return l.tracks[i]
}

// see adds the reading of a device. before is the time of the previous tick.
func (k *track) see(r *node.Reading, all []node.Reading, before, at, hold int64) {
	e := entry{at: at, until: at + hold}
	if r.Up {
		e.temperature, e.power, e.clock = r.Temperature(), r.Power().Draw(), r.Clock()
		e.throttles = r.Throttles != nil
		for _, t := range r.Throttles {
			if t.Active {
				e.throttled |= t.Buckets
			}
		}
	}
	e.units = append(e.units, unitOf(r, r.Busy.Or(r.Utilization.Compute)))
	for i := range all {
		if p := &all[i]; p.ID.Parent == r.ID.UUID {
			e.units = append(e.units, unitOf(p, p.Profile.SMActive.Or(p.Profile.EngineActive).Or(p.Utilization.Compute)))
		}
	}
	k.hold(&e, r.Holders, before)
	k.entries = append(k.entries, e)
}

func unitOf(r *node.Reading, utilization device.Value) unit {
	u := unit{id: r.ID, utilization: utilization, used: r.Memory.Used, memory: r.Memory.Total}
	for _, p := range r.Processes {
		u.pids = append(u.pids, p.PID)
	}
	return u
}

// hold adds the holders of a device to an entry, and the joules that they have used since the
// previous tick to their pools.
func (k *track) hold(e *entry, list []node.Holder, before int64) {
	for _, p := range k.pools {
		p.begin()
	}
	for i := range list {
		h := &list[i]
		if h.Kind == workload.Unallocated {
			continue
		}
		p := k.pool(h)
		p.settle(h, before, e.at)
		if h.Ended {
			continue
		}
		u := slices.IndexFunc(e.units, func(u unit) bool { return u.id.UUID == h.Partition })
		if u < 0 { // the device, or a partition that does not answer
			if u = 0; h.Partition != "" {
				continue
			}
		}
		e.holders = append(e.holders, holder{pool: p, unit: u, utilization: h.Utilization, power: h.Power})
	}
	for _, p := range k.pools {
		p.finish(e.at)
	}
	for i := range e.holders {
		h := &e.holders[i]
		for j := range e.holders {
			o := &e.holders[j]
			if used := o.utilization.Default(0); j != i && o.unit == h.unit && used > 0 && o.pool.id != h.pool.id {
				h.busier += used
				h.others = append(h.others, o.pool.name)
			}
		}
		slices.Sort(h.others)
		h.others = slices.Compact(h.others)
	}
}

// forget drops what is too old.
func (k *track) forget(now int64) (coarse uint64) {
	old := max(0, len(k.entries)-maxReadings)
	for old < len(k.entries) && now-k.entries[old].at > int64(Keep) {
		old++
	}
	if old > 0 {
		k.entries = slices.Delete(k.entries, 0, old)
	}
	first := now
	if len(k.entries) > 0 {
		first = k.entries[0].at
	}
	k.pools = slices.DeleteFunc(k.pools, func(p *pool) bool {
		coarse += p.forget(first)
		return len(p.slots) == 0 && p.seen < first
	})
	return coarse
}

// force returns the index of the entry in force at a time, or -1.
func (k *track) force(at int64) int {
	i, found := slices.BinarySearchFunc(k.entries, at, func(e entry, at int64) int { return cmp.Compare(e.at, at) })
	if !found {
		i--
	}
	if i < 0 || at >= k.entries[i].until {
		return -1
	}
	return i
}
