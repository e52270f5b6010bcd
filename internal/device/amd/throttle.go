//go:build linux

package amd

import (
	"fmt"
	"math/bits"

	"github.com/gpumeter/gpumeter/internal/device"
)

const (
	power   = device.BucketPower | device.BucketSW // the firmware keeps a limit
	thermal = device.BucketThermal | device.BucketSW
	hot     = device.BucketThermal | device.BucketHW // a pin of the hardware
)

// throttleBit is one cause in a set of flags.
type throttleBit struct {
	bit     int
	cause   string
	buckets device.Buckets
}

const hotspotBit = 36

var (
	// independentBits are of the field that is the same on every GPU, from v1.3 on and in
	// the tables of APUs from v2.2 on.
	independentBits = []throttleBit{
		{0, "ppt0", power},
		{1, "ppt1", power},
		{2, "ppt2", power},
		{3, "ppt3", power},
		{4, "spl", power},
		{5, "fppt", power},
		{6, "sppt", power},
		{7, "sppt_apu", power},
		{16, "tdc_gfx", power},
		{17, "tdc_soc", power},
		{18, "tdc_mem", power},
		{19, "tdc_vdd", power},
		{20, "tdc_cvip", power},
		{21, "edc_cpu", power},
		{22, "edc_gfx", power},
		{23, "apcc", power},
		{32, "temp_gpu", thermal},
		{33, "temp_core", thermal},
		{34, "temp_mem", thermal},
		{35, "temp_edge", thermal},
		{hotspotBit, "temp_hotspot", thermal},
		{37, "temp_soc", thermal},
		{38, "temp_vr_gfx", thermal},
		{39, "temp_vr_soc", thermal},
		{40, "temp_vr_mem0", thermal},
		{41, "temp_vr_mem1", thermal},
		{42, "temp_liquid0", thermal},
		{43, "temp_liquid1", thermal},
		{44, "vrhot0", hot},
		{45, "vrhot1", hot},
		{46, "prochot_cpu", hot},
		{47, "prochot_gfx", hot},
		{56, "ppm", power},
		{57, "fit", device.BucketHW},
	}
	// socketBits are of the MI300 family, v1.4 and v1.5.
	socketBits = []throttleBit{
		{0, "prochot", hot},
		{1, "ppt", power},
		{2, "socket_thermal", thermal},
		{3, "vr_thermal", thermal},
		{4, "hbm_thermal", thermal},
	}
)

// residencies are the counters that took the flags' place in v1.6: ticks of the firmware
// during which a cause held the clocks down. Those of each die are in rows.
var residencies = []struct {
	column  string
	cause   string
	buckets device.Buckets
	detail  bool
}{
	{"prochot_residency_acc", "prochot", hot, false},
	{"ppt_residency_acc", "ppt", power, false},
	{"socket_thm_residency_acc", "socket_thermal", thermal, false},
	{"vr_thm_residency_acc", "vr_thermal", thermal, false},
	{"hbm_thm_residency_acc", "hbm_thermal", thermal, false},
	{"gfx_below_host_limit_acc", "below_host_limit", 0, true},
	{"gfx_below_host_limit_ppt_acc", "below_host_limit_power", 0, true},
	{"gfx_below_host_limit_thm_acc", "below_host_limit_thermal", 0, true},
	{"gfx_below_host_limit_total_acc", "below_host_limit", 0, true},
	{"gfx_low_utilization_acc", "low_utilization", 0, true},
}

// readThrottle reads why the clocks are held down, by what the version of the table has.
func (g *gpu) readThrottle() {
	g.sample.Throttles, g.sample.ThrottleTimes = nil, nil
	if g.m == nil {
		return
	}
	if set, ok := g.m.bits("indep_throttle_status"); ok {
		g.sample.Throttles = throttles(g.believed(set), independentBits)
		return
	}
	set, ok := g.m.bits("throttle_status")
	switch {
	case ok && g.m.version.since(4):
		g.sample.Throttles = throttles(set, socketBits)
	case ok:
		g.sample.Throttles = throttles(set, nil) // what a bit means differs from GPU to GPU
	default:
		g.residency.update(g.m)
		g.sample.Throttles, g.sample.ThrottleTimes = g.residency.throttles(), g.residency.times()
	}
}

// believed takes the hotspot's bit out of the flags while the hotspot is far from its
// limit: RDNA3 has it set at all times, idle at 54 degrees too.
func (g *gpu) believed(set uint64) uint64 {
	const near = 3 // degrees
	for _, t := range g.sample.Temperatures {
		if t.Sensor != "hotspot" || len(t.Limits) == 0 {
			continue
		}
		now, ok1 := t.Value.Get()
		limit, ok2 := t.Limits[0].Limit.Get()
		if ok1 && ok2 && now < limit-near {
			set &^= 1 << hotspotBit
		}
	}
	return set
}

// throttles returns every known cause, and each bit nobody knows as one of its own in the
// hardware bucket.
func throttles(set uint64, known []throttleBit) []device.Throttle {
	list := make([]device.Throttle, 0, len(known))
	for _, t := range known {
		list = append(list, device.Throttle{Cause: t.cause, Buckets: t.buckets, Active: set>>t.bit&1 == 1})
		set &^= 1 << t.bit
	}
	for ; set != 0; set &= set - 1 {
		list = append(list, device.Throttle{
			Cause: fmt.Sprintf("bit_%d", bits.TrailingZeros64(set)), Buckets: device.BucketHW, Active: true,
		})
	}
	return list
}

// residency turns the counters of ticks into seconds, and into whether a cause was active
// between the last two tables.
type residency struct {
	seen   bool
	known  bool   // two tables were seen
	ticks  uint64 // of the table before
	clock  uint64 // ns of the driver's clock then
	causes [10]residencyCause
}

type residencyCause struct {
	present bool
	last    []uint64 // of each die
	active  bool
	seconds float64
}

// update takes the counters of a table. Tables less than 100 ms apart are one: the
// driver answers from its cache.
func (r *residency) update(m *metrics) {
	const apart = 100e6 // ns
	ticks, ok := m.raw("accumulation_counter", 0, 0)
	clock, timed := m.raw("system_clock_counter", 0, 0)
	if !ok || !timed {
		r.seen, r.known = false, false
		return
	}
	width := m.columns["accumulation_counter"].kind
	passed := difference(r.ticks, ticks, width)
	reset := clock < r.clock || r.seen && ticks < r.ticks && !wrapped(r.ticks, ticks, width)
	if r.seen && !reset && (passed == 0 || float64(clock-r.clock) < apart) {
		return
	}
	seconds := float64(clock-r.clock) / 1e9
	for i, c := range residencies {
		r.causes[i].update(m, c.column, float64(passed), seconds, r.seen && !reset)
	}
	r.known = r.seen && !reset
	r.seen, r.ticks, r.clock = true, ticks, clock
}

// update takes one counter, the mean over the dies. Without a delta it only remembers it.
// A counter that is the same as that of all ticks is none: firmware of 2024 has it there
// for power and heat of an idle GPU.
func (c *residencyCause) update(m *metrics, column string, ticks, seconds float64, delta bool) {
	var now []uint64
	all, _ := m.raw("accumulation_counter", 0, 0)
	for row := range m.rows(column) {
		for i := range m.count(column) {
			if v, ok := m.raw(column, row, i); ok && (v != all || v == 0) {
				now = append(now, v)
			}
		}
	}
	share := 0.0
	if delta && len(now) == len(c.last) {
		for i, v := range now {
			share += min(float64(difference(c.last[i], v, m.columns[column].kind))/ticks, 1)
		}
	}
	c.present = len(now) > 0
	if c.active = share > 0; c.active {
		c.seconds += share / float64(len(now)) * seconds
	}
	c.last = now
}

// throttles returns the causes, nil while there is nothing to compare with.
func (r *residency) throttles() []device.Throttle {
	if !r.known {
		return nil
	}
	list := []device.Throttle{}
	for i, c := range residencies {
		if r.causes[i].present && !c.detail {
			list = append(list, device.Throttle{Cause: c.cause, Buckets: c.buckets, Active: r.causes[i].active})
		}
	}
	return list
}

// times returns how long each cause held the clocks down since the first table.
func (r *residency) times() []device.ThrottleTime {
	var list []device.ThrottleTime
	for i, c := range residencies {
		if r.seen && r.causes[i].present {
			list = append(list, device.ThrottleTime{Cause: c.cause, Seconds: device.Of(r.causes[i].seconds), Detail: c.detail})
		}
	}
	return list
}
