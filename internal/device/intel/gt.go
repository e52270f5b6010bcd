//go:build linux

package intel

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// gt is a group of engines with its own clock: one for graphics and compute per tile and,
// from Battlemage on, one for media.
//
// Idle time (gtidle/idle_residency_ms, rc6_residency_ms) is not used. Its complement is the
// time the GT was awake, which a blinking cursor or reading these files is enough to cause,
// not how busy its engines were.
type gt struct {
	clock      string // type of its clock
	dir        sysfs.Dir
	actual     string // file of the current clock; 0 is asleep
	highest    string // file of the hardware's highest clock
	limit      device.Value
	throttle   sysfs.Dir
	prefix     string   // prefix of each cause's file
	status     string   // file: 1 while anything reduces the clock
	throttling []string // the causes that this GT reports
}

// findGTs lists the GTs and the causes that may reduce their clocks.
//
// xe places them in the tiles of the PCI device, i915 in the DRM device; before Linux 5.18
// the only GT is in the DRM device itself.
func (g *gpu) findGTs() {
	g.gts, g.causes = nil, nil
	for _, tile := range g.dir.Glob("tile[0-9]*") {
		for i, d := range tile.Glob("gt[0-9]*") {
			name, _ := g.text(d, "gtidle/name") // gt0-rc: render, gt1-mc: media
			kind := "graphics"
			if strings.HasSuffix(name, "-mc") || name == "" && i > 0 {
				kind = "media"
			}
			freq := d.Join("freq0")
			g.gts = append(g.gts, gt{
				clock: perTile(kind, tile.Base()), dir: freq, actual: "act_freq", highest: "rp0_freq",
				throttle: freq.Join("throttle"), prefix: "reason_", status: "status",
			})
		}
	}
	if g.driver == "i915" {
		for _, d := range g.card.Glob("gt/gt[0-9]*") { // one per tile on GPUs with their own memory
			g.gts = append(g.gts, gt{
				clock: perTile("graphics", d.Base()), dir: d, actual: "rps_act_freq_mhz", highest: "rps_RP0_freq_mhz",
				throttle: d, prefix: "throttle_reason_", status: "throttle_reason_status",
			})
		}
		if len(g.gts) == 0 {
			g.gts = []gt{{clock: "graphics", dir: g.card, actual: "gt_act_freq_mhz", highest: "gt_RP0_freq_mhz"}}
		}
	}
	known := map[string]bool{}
	for i := range g.gts {
		t := &g.gts[i]
		if t.prefix == "" {
			continue
		}
		for _, d := range t.throttle.Glob(t.prefix + "*") {
			if d.Base() != t.status {
				name := strings.TrimPrefix(d.Base(), t.prefix)
				t.throttling, known[name] = append(t.throttling, name), true
			}
		}
	}
	g.causes = sortCauses(known)
}

// perTile appends the tile number to the clock names of all tiles but the first.
func perTile(kind, folder string) string {
	if n := strings.TrimLeft(folder, "abcdefghijklmnopqrstuvwxyz"); n != "0" {
		return fmt.Sprintf("%s_tile%s", kind, n)
	}
	return kind
}

const mega = 1e6

func (g *gpu) readClockLimits() {
	for i := range g.gts {
		t := &g.gts[i]
		t.limit = g.number(t.dir, t.highest).Scale(mega) // MHz
	}
}

func (g *gpu) readClocks() {
	var list []device.Clock
	for _, t := range g.gts {
		c := device.Clock{Type: t.clock, Frequency: g.number(t.dir, t.actual).Scale(mega), Limit: t.limit} // MHz
		if c.Frequency.OK() || c.Limit.OK() {
			list = append(list, c)
		}
	}
	g.sample.Clocks = list
}

// cause is a reason why a clock may be reduced.
type cause struct {
	name    string
	buckets device.Buckets
}

// causes are those of xe_gt_throttle.c and of i915. PL1, PL2 and the PSYS pair are average
// limits enforced by firmware; PL4, ICCMAX and the voltage regulator limits are electrical.
var causes = []cause{
	{"pl1", device.BucketPower | device.BucketSW},
	{"pl2", device.BucketPower | device.BucketSW},
	{"pl4", device.BucketPower | device.BucketHW},
	{"psys_pl1", device.BucketPower | device.BucketSW},
	{"psys_pl2", device.BucketPower | device.BucketSW},
	{"psys_crit", device.BucketPower | device.BucketHW},
	{"iccmax", device.BucketPower | device.BucketHW},
	{"fastvmode", device.BucketPower | device.BucketHW},
	{"vr_tdc", device.BucketPower | device.BucketHW},
	{"thermal", device.BucketThermal | device.BucketSW},
	{"ratl", device.BucketThermal | device.BucketSW}, // running average of the temperature
	{"soc_thermal", device.BucketThermal | device.BucketSW},
	{"soc_avg_thermal", device.BucketThermal | device.BucketSW},
	{"mem_thermal", device.BucketThermal | device.BucketSW},
	{"prochot", device.BucketThermal | device.BucketHW}, // a hardware pin
	{"vr_thermalert", device.BucketThermal | device.BucketHW},
	{"vr_thermal", device.BucketThermal | device.BucketHW},
	{"p0_freq", device.BucketSW},
}

// sortCauses returns the causes with these names. Unknown causes come last, in the hardware
// bucket, so that a new kind of slowdown does not go unnoticed.
func sortCauses(names map[string]bool) []cause {
	var list, unknown []cause
	for _, c := range causes {
		if names[c.name] {
			list = append(list, c)
		}
	}
	for name := range names {
		if !slices.ContainsFunc(causes, func(c cause) bool { return c.name == name }) {
			unknown = append(unknown, cause{name, device.BucketHW})
		}
	}
	slices.SortFunc(unknown, func(a, b cause) int { return strings.Compare(a.name, b.name) })
	return append(list, unknown...)
}

// unnamed is the cause for a GT that reports throttling without naming a cause.
const unnamed = "other"

func (g *gpu) readThrottles() {
	g.sample.Throttles = nil
	active, answered := map[string]bool{}, false
	for i := range g.gts {
		names, ok := g.throttled(&g.gts[i])
		answered = answered || ok
		for _, name := range names {
			active[name] = true
		}
	}
	if !answered {
		return
	}
	all := map[string]bool{}
	for _, c := range g.causes {
		all[c.name] = true
	}
	for name := range active {
		all[name] = true
	}
	list := []device.Throttle{} // not nil: the GPU reported that it is not throttled
	for _, c := range sortCauses(all) {
		list = append(list, device.Throttle{Cause: c.name, Buckets: c.buckets, Active: active[c.name]})
	}
	g.sample.Throttles = list
}

// throttled returns what reduces the clock of a GT. Newer kernels list all causes in one
// file; otherwise they are read one by one, if the status says that there is any.
func (g *gpu) throttled(t *gt) (names []string, ok bool) {
	if t.prefix == "" {
		return nil, false
	}
	if text, err := g.text(t.throttle, "reasons"); err == nil {
		return parseReasons(text), true
	} else if !sysfs.Absent(err) {
		g.fail(err)
		return nil, false
	}
	status := g.number(t.throttle, t.status)
	if status == device.Of(0) {
		return nil, true
	}
	for _, name := range t.throttling {
		v := g.number(t.throttle, t.prefix+name)
		ok = ok || v.OK()
		if n, _ := v.Get(); n != 0 {
			names = append(names, name)
		}
	}
	if status.OK() && len(names) == 0 {
		names, ok = []string{unnamed}, true
	}
	return names, ok
}

// parseReasons parses a list of causes; "none" is the empty list.
func parseReasons(s string) []string {
	const most = 32 // bits of the register
	var names []string
	for name := range strings.FieldsSeq(s) {
		if name != "none" && len(names) < most && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
