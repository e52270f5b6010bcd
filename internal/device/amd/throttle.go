//go:build linux

package amd

import (
	"fmt"
	"math/bits"

	"github.com/gpumeter/gpumeter/internal/device"
)

const (
	power   = device.BucketPower | device.BucketSW // the firmware enforces a limit
	thermal = device.BucketThermal | device.BucketSW
	hot     = device.BucketThermal | device.BucketHW // signaled by a hardware pin
)

// throttleBit is one cause in a bit set.
type throttleBit struct {
	bit     int
	cause   string
	buckets device.Buckets
}

const hotspotBit = 36

var (
	// independentBits belong to the field that is the same on every GPU, from v1.3 on and
	// in APU tables from v2.2 on.
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
	// socketBits belong to the MI300 family, v1.4 and v1.5.
	socketBits = []throttleBit{
		{0, "prochot", hot},
		{1, "ppt", power},
		{2, "socket_thermal", thermal},
		{3, "vr_thermal", thermal},
		{4, "hbm_thermal", thermal},
	}
)

// residencies are the counters that replaced the flags in v1.6: firmware ticks during which
// a cause reduced the clocks. Per-die counters are in rows.
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

// readThrottle reads why the clocks are reduced, from whichever source this table version
// has.
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
		g.sample.Throttles = throttles(set, nil) // the meaning of a bit varies between GPUs
	default:
		g.residency.update(g.m)
		g.sample.Throttles, g.sample.ThrottleTimes = g.residency.throttles(), g.residency.times()
	}
}

// believed clears the hotspot bit while the hotspot is far from its limit: RDNA3 always
// sets the bit, even when idle at 54 degrees.
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

// throttles returns every known cause, and each unknown bit as a cause in the hardware
// bucket.
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

// residency converts tick counters to seconds, and to whether a cause was active between
// the last two tables.
type residency struct {
	seen   bool
	known  bool   // at least two tables were seen
	ticks  uint64 // of the previous table
	clock  uint64 // driver clock of the previous table, in ns
	causes [10]residencyCause
}

type residencyCause struct {
	present bool
	last    []uint64 // per die
	active  bool
	seconds float64
}

// update records the counters of a table. Tables less than 100 ms apart count as one,
// because the driver answers from its cache.
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

// update records one counter, averaged over the dies. If delta is false it only stores the
// values. A counter equal to the total tick counter is ignored: firmware from 2024 reports
// that for power and thermal on an idle GPU.
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

// throttles returns the causes, or nil until two tables can be compared.
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

// times returns how long each cause has reduced the clocks since the first table.
func (r *residency) times() []device.ThrottleTime {
	var list []device.ThrottleTime
	for i, c := range residencies {
		if r.seen && r.causes[i].present {
			list = append(list, device.ThrottleTime{Cause: c.cause, Seconds: device.Of(r.causes[i].seconds), Detail: c.detail})
		}
	}
	return list
}
