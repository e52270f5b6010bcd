package device

import (
	"slices"
	"time"
)

const (
	// maxWatts is more than any accelerator draws. Energy that rises faster was misread.
	maxWatts = 10e3
	// slackJoules covers counters that are refreshed with a delay.
	slackJoules = 1e3
	// stubborn is how long a counter must insist on a value that cannot be true.
	stubborn = time.Hour
)

// Guard decides which readings of a device's counters to believe. Now and then a driver
// answers 0, or a value one unit lower than before. Taken for a counter reset, that would
// count everything since the driver was loaded once more. A lower value is therefore absent
// until a second slow read confirms it. Energy must also have moved on, and by no more than
// a device can draw from 0. The zero Guard has seen nothing.
type Guard struct {
	// Rejected is the number of readings that were not believed.
	Rejected uint64

	believed map[counterKey]float64
	doubted  map[counterKey]doubt
	moved    time.Time // when the believed energy last changed
}

// doubt is the reading that started a doubt.
type doubt struct {
	value float64
	at    time.Time
}

// counterKey identifies a counter of a Sample.
type counterKey struct {
	group      string
	kind, part string
	link       int
}

var (
	energyKey    = counterKey{group: "energy"}
	heartbeatKey = counterKey{group: "heartbeat"}
	replaysKey   = counterKey{group: "replays"}
)

// Verdict is what Guard.Believe found out besides the believable values.
type Verdict struct {
	// Reset: the driver's counters restarted at 0.
	Reset bool
	// Jumped: the energy counter continues at another level, and the difference from the last
	// one is more than any device draws.
	Jumped bool
}

// Believe returns s without the counters that are not believable. slow means that all
// counters were read for s; a fast read repeats some of them, which confirms nothing.
func (g *Guard) Believe(s Sample, slow bool, now time.Time) (Sample, Verdict) {
	if g.believed == nil {
		g.believed, g.doubted = map[counterKey]float64{}, map[counterKey]doubt{}
	}
	var verdict Verdict
	var rejected map[counterKey]bool
	s.counters(func(k counterKey, v *Value) {
		f, ok := v.Get()
		if !ok || g.judge(k, f, slow, now, &verdict) {
			return
		}
		if rejected == nil {
			rejected = map[counterKey]bool{}
		}
		rejected[k] = true
	})
	if rejected == nil {
		return s, verdict
	}
	s.cloneCounters()
	s.counters(func(k counterKey, v *Value) {
		if rejected[k] {
			*v = Value{}
		}
	})
	return s, verdict
}

// judge reports whether to believe a reading.
func (g *Guard) judge(k counterKey, v float64, slow bool, now time.Time, verdict *Verdict) bool {
	last, known := g.believed[k]
	first, doubted := g.doubted[k]
	fell := v < last
	doubted = doubted && fell == (first.value < last)
	energy := k == energyKey
	switch {
	case !known, !fell && (!energy || g.fits(v-last, now)):
	case !doubted:
		g.doubted[k] = doubt{v, now}
		g.Rejected++
		return false
	case !slow || energy && v <= first.value: // a counter that was really reset moves on
		return false
	case energy && (!fell || !g.fits(first.value, first.at)):
		if now.Sub(first.at) < stubborn {
			g.Rejected++
			return false
		}
		verdict.Jumped = true
	default:
		verdict.Reset = verdict.Reset || k.driver()
	}
	delete(g.doubted, k)
	g.believed[k] = v
	if energy && (!known || v != last) {
		g.moved = now
	}
	return true
}

// fits reports whether a device can have used so much since the energy counter last moved.
// After the clock was set back, nothing is known about the time.
func (g *Guard) fits(joules float64, now time.Time) bool {
	elapsed := now.Sub(g.moved).Seconds()
	return elapsed < 0 || joules <= maxWatts*elapsed+slackJoules
}

// driver reports whether the counter restarts when the driver is loaded or the device is
// reset. Error counts may be cleared on their own, or last as long as the board.
func (k counterKey) driver() bool {
	switch k.group {
	case "energy", "heartbeat", "replays", "throttle", "tx", "rx", "resets":
		return true
	}
	return false
}

// Marks are the counters by which a reset while no agent ran is detected.
type Marks struct {
	Energy, Heartbeat, Replays Value
}

// Marks returns the last believed values.
func (g *Guard) Marks() Marks {
	get := func(k counterKey) Value {
		if v, ok := g.believed[k]; ok {
			return Of(v)
		}
		return Value{}
	}
	return Marks{get(energyKey), get(heartbeatKey), get(replaysKey)}
}

// Restore continues with the values that were believed at a time.
func (g *Guard) Restore(m Marks, at time.Time) {
	g.believed, g.doubted, g.moved = map[counterKey]float64{}, map[counterKey]doubt{}, at
	for k, v := range map[counterKey]Value{energyKey: m.Energy, heartbeatKey: m.Heartbeat, replaysKey: m.Replays} {
		if f, ok := v.Get(); ok {
			g.believed[k] = f
		}
	}
}

// counters calls visit for every counter of the device. The counters of a runtime are left
// out, because they restart with each workload.
func (s *Sample) counters(visit func(counterKey, *Value)) {
	visit(energyKey, &s.Energy)
	visit(heartbeatKey, &s.Heartbeat)
	visit(replaysKey, &s.PCIe.Replays)
	errors := func(group, part string, link int, list []ErrorCount) {
		for i := range list {
			visit(counterKey{group, list[i].Type, part, link}, &list[i].Count)
		}
	}
	errors("pcie", "", 0, s.PCIe.Errors)
	errors("resets", "", 0, s.Resets)
	for i := range s.ThrottleTimes {
		visit(counterKey{group: "throttle", kind: s.ThrottleTimes[i].Cause}, &s.ThrottleTimes[i].Seconds)
	}
	for i := range s.Interconnects {
		c := &s.Interconnects[i]
		visit(counterKey{group: "tx", kind: c.Type}, &c.TX)
		visit(counterKey{group: "rx", kind: c.Type}, &c.RX)
		errors("interconnect", c.Type, 0, c.Errors)
		for j := range c.Links {
			l := &c.Links[j]
			visit(counterKey{group: "link tx", kind: c.Type, link: l.Index}, &l.TX)
			visit(counterKey{group: "link rx", kind: c.Type, link: l.Index}, &l.RX)
			errors("link", c.Type, l.Index, l.Errors)
		}
	}
	for i := range s.ECC {
		e := &s.ECC[i]
		visit(counterKey{group: e.Lifetime, kind: e.Type, part: e.Location}, &e.Count)
	}
	visit(counterKey{group: "remap corrected"}, &s.RowRemap.Corrected)
	visit(counterKey{group: "remap uncorrected"}, &s.RowRemap.Uncorrected)
	visit(counterKey{group: "retired corrected"}, &s.PageRetirement.Corrected)
	visit(counterKey{group: "retired uncorrected"}, &s.PageRetirement.Uncorrected)
}

// cloneCounters copies the slices that hold counters, which other Samples may share.
func (s *Sample) cloneCounters() {
	s.PCIe.Errors, s.Resets = slices.Clone(s.PCIe.Errors), slices.Clone(s.Resets)
	s.ThrottleTimes, s.ECC = slices.Clone(s.ThrottleTimes), slices.Clone(s.ECC)
	s.Interconnects = slices.Clone(s.Interconnects)
	for i := range s.Interconnects {
		c := &s.Interconnects[i]
		c.Errors, c.Links = slices.Clone(c.Errors), slices.Clone(c.Links)
		for j := range c.Links {
			c.Links[j].Errors = slices.Clone(c.Links[j].Errors)
		}
	}
}
