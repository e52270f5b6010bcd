package timeline

import (
	"slices"

	"github.com/gpumeter/gpumeter/internal/device"
)

// State is what one device, or one partition, did during a span, while the workload held it.
type State struct {
	ID device.ID
	// Start and End are of the readings in force when the span began and ended.
	Utilization Range
	Temperature Range // degrees Celsius
	Memory      Range // bytes used
	// MemoryTotal is what the device has, in bytes.
	MemoryTotal  device.Value
	Power, Clock device.Value // means, in watts and hertz
	// Throttled are the seconds with a cause in each bucket, if Throttles: the device reports them.
	Throttles                bool
	ByPower, Thermal, SW, HW float64
	Throttled                float64 // seconds with any cause
	ThrottledAt              int64
	Causes                   device.Buckets // all that were active
	// Own and Others are the mean utilization by the workload, and by all others.
	Own, Others device.Value
	// Neighbours are the names of other workloads that used the device, sorted. The list is not
	// to be modified.
	Neighbours  []string
	NeighbourAt int64
	// Joules are those given to the span, Workload those that the workload used meanwhile on this
	// device. They are Counted, or estimated from power until the energy counter has been read.
	Joules, Workload device.Value
	Counted          bool
	// Late: the beginning of the span is older than what is remembered, and only what is in force
	// at its end is known.
	Late bool
	// Age is how long before the span the reading in force was made, in nanoseconds; 0 if there
	// is a reading during the span.
	Age int64

	pool *pool
}

// Holder returns the ID of the workload that held the device.
func (st *State) Holder() string { return st.pool.id }

// Range is how a value developed.
type Range struct {
	Start, End, Mean, Max device.Value
	MaxAt                 int64 // when Max was first in force
}

// mean sums a value by time.
type mean struct{ sum, weight float64 }

func (m *mean) add(v device.Value, weight float64) {
	if x, ok := v.Get(); ok {
		m.sum, m.weight = m.sum+x*weight, m.weight+weight
	}
}

func (m *mean) value() device.Value {
	if m.weight == 0 {
		return device.Value{}
	}
	return device.Of(m.sum / m.weight)
}

func (r *Range) see(v device.Value, at int64) {
	if x, ok := v.Get(); ok && x > r.Max.Default(x-1) {
		r.Max, r.MaxAt = v, at
	}
}

// state appends the state of a device during a span, if the workload of p held it at any time.
func (k *track) state(list []State, p *pool, s *Span) []State {
	n := len(k.entries)
	if n == 0 || s.To < k.entries[0].at {
		return list
	}
	first := k.force(s.From)
	begin := first
	if first < 0 { // before the first reading, or in a gap
		for begin = 0; begin < n && k.entries[begin].at < s.From; begin++ {
		}
	}
	var st State
	var utilization, temperature, memory, power, clock, own, others mean
	found, reading := false, false
	for i := begin; i < n && k.entries[i].at <= s.To; i++ {
		e := &k.entries[i]
		reading = reading || e.at >= s.From
		h := e.holder(p)
		if h == nil {
			continue
		}
		from, to := max(e.at, s.From), min(e.until, s.To)
		last := true
		if i+1 < n {
			last = k.entries[i+1].at > s.To
			to = min(to, k.entries[i+1].at)
		}
		if from > to || from == to && (!last || e.until <= s.To) {
			continue
		}
		u := &e.units[h.unit]
		if !found {
			found = true
			st.ID = u.id
		}
		weight := float64(to - from)
		if s.From == s.To {
			weight = 1
		}
		if i == first {
			st.Utilization.Start, st.Temperature.Start, st.Memory.Start = u.utilization, e.temperature, u.used
		}
		if last && e.until > s.To {
			st.Utilization.End, st.Temperature.End, st.Memory.End = u.utilization, e.temperature, u.used
		}
		st.Utilization.see(u.utilization, from)
		st.Temperature.see(e.temperature, from)
		st.Memory.see(u.used, from)
		st.MemoryTotal = u.memory.Or(st.MemoryTotal)
		utilization.add(u.utilization, weight)
		temperature.add(e.temperature, weight)
		memory.add(u.used, weight)
		power.add(e.power, weight)
		clock.add(e.clock, weight)
		own.add(h.utilization, weight)
		if h.utilization.OK() {
			others.add(device.Of(h.busier), weight)
		}
		st.throttle(e, from, to)
		if len(h.others) > 0 {
			st.beside(h.others, from)
		}
	}
	if !found {
		return list
	}
	st.Utilization.Mean, st.Temperature.Mean, st.Memory.Mean = utilization.value(), temperature.value(), memory.value()
	st.Power, st.Clock, st.Own, st.Others = power.value(), clock.value(), own.value(), others.value()
	st.pool = p
	if st.Late = s.From < k.entries[0].at; st.Late {
		st.forget()
		return append(list, st)
	}
	if !reading && first >= 0 {
		st.Age = s.From - k.entries[first].at
	}
	st.Workload, st.Counted = p.used(s.From, s.To, k.entries[n-1].until)
	return append(list, st)
}

// throttle adds the time of an entry to the buckets.
func (st *State) throttle(e *entry, from, to int64) {
	st.Throttles = st.Throttles || e.throttles
	if e.throttled == 0 {
		return
	}
	st.Causes |= e.throttled
	if st.ThrottledAt == 0 {
		st.ThrottledAt = from
	}
	seconds := float64(to-from) / second
	st.Throttled += seconds
	for _, b := range []struct {
		bucket device.Buckets
		sum    *float64
	}{{device.BucketPower, &st.ByPower}, {device.BucketThermal, &st.Thermal}, {device.BucketSW, &st.SW}, {device.BucketHW, &st.HW}} {
		if e.throttled&b.bucket != 0 {
			*b.sum += seconds
		}
	}
}

// beside adds the neighbours of an entry.
func (st *State) beside(names []string, at int64) {
	switch {
	case st.Neighbours == nil:
		st.Neighbours, st.NeighbourAt = names, at
	case !slices.Equal(st.Neighbours, names):
		all := slices.Concat(st.Neighbours, names)
		slices.Sort(all)
		st.Neighbours = slices.Compact(all)
	}
}

// forget removes what is not known of a span whose beginning is not remembered.
func (st *State) forget() {
	*st = State{
		ID: st.ID, MemoryTotal: st.MemoryTotal, Throttles: false, Late: true, pool: st.pool,
		Utilization: Range{End: st.Utilization.End}, Temperature: Range{End: st.Temperature.End}, Memory: Range{End: st.Memory.End},
	}
}
