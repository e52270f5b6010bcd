package anomaly

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// least is the share of the lost time below which a cause is noise.
const least = 0.01

// quotaPeriod is the length in seconds of the periods of CPU quotas, unless configured.
const quotaPeriod = 0.1

// claim is what a cause may have taken from a window.
type claim struct {
	cause   Cause
	seconds float64
	fact    string
}

// explain attributes the lost seconds of a window to concurrent facts, each by its change
// against its own baseline. The sum never exceeds lost; if it would, all shrink in
// proportion. Waiting for other ranks gets the remainder, because the local facts also make
// a rank wait.
func (j *judge) explain(lost float64) []claim {
	var list []claim
	for _, c := range slices.Concat(j.clocks(), j.neighbours(), j.hostDelay(), j.copies()) {
		if c.seconds = min(c.seconds, lost); c.seconds >= least*lost {
			list = append(list, c)
		}
	}
	sum := total(list)
	if c, ok := j.communication(); ok {
		list, sum = remainder(list, c, sum, lost)
	}
	if c, ok := j.lateInput(); ok {
		list, sum = remainder(list, c, sum, lost)
	}
	if sum > lost {
		for i := range list {
			list[i].seconds *= lost / sum
		}
	}
	slices.SortStableFunc(list, func(a, b claim) int { return cmp.Compare(b.seconds, a.seconds) })
	return list
}

// remainder adds a claim on what the others, which claim sum, leave of the lost time.
func remainder(list []claim, c claim, sum, lost float64) ([]claim, float64) {
	if c.seconds = min(c.seconds, lost-sum); c.seconds < least*lost {
		return list, sum
	}
	return append(list, c), sum + c.seconds
}

func total(list []claim) float64 {
	sum := 0.0
	for _, c := range list {
		sum += c.seconds
	}
	return sum
}

// clocks: GPU work takes longer in proportion to a lower clock, if the driver reports
// throttling. With several devices the slowest one decides, because the others wait for it.
func (j *judge) clocks() []claim {
	var worst []claim
	for _, on := range j.placed {
		f := on.facts
		if f == nil {
			continue
		}
		now, ok := f.SMClock.Get()
		usual, known := j.phase.signals["clock "+on.uuid].median()
		if !ok || !known || now <= 0 || now >= 0.97*usual {
			continue
		}
		power := clip(f.PowerCapped.Default(0))
		heat := max(clip(f.ThermalThrottled.Default(0)), clip(f.HWSlowdown.Default(0)))
		if power+heat == 0 {
			continue // an idle device lowers its clock by itself
		}
		busy := on.busy
		if own, ok := on.own.Get(); ok {
			busy = clip(own) * j.sample.seconds
		}
		took := busy * (1 - now/usual)
		fact := fmt.Sprintf("SM clock %.0f -> %.0f MHz", usual/1e6, now/1e6)
		if limit, ok := f.PowerLimit.Get(); ok {
			if was, ok := j.phase.signals["limit "+on.uuid].median(); ok && limit < 0.99*was {
				fact += fmt.Sprintf(", limit %.0f -> %.0f W", was, limit)
			} else if draw, ok := f.Power.Get(); ok {
				fact += fmt.Sprintf(", %.0f of %.0f W", draw, limit)
			}
		}
		list := []claim{
			{PowerCap, took * power / (power + heat), fact},
			{Throttling, took * heat / (power + heat), fact + ", " + heatOf(f)},
		}
		if total(list) > total(worst) {
			worst = list
		}
	}
	return worst
}

func heatOf(f *DeviceFacts) string {
	if f.ThermalThrottled.Default(0) >= f.HWSlowdown.Default(0) {
		return "too hot"
	}
	return "hardware slowdown"
}

// neighbours: others use more of the device's time, or of its links, than before.
func (j *judge) neighbours() []claim {
	var worst claim
	for _, on := range j.placed {
		if len(on.others) == 0 {
			continue
		}
		time, _ := j.phase.excess(j.sample.values, "neighbours "+on.uuid)
		copies, _ := j.phase.excess(j.sample.values, "neighbour copies "+on.uuid)
		took := max(time, copies) * j.sample.seconds
		if took > worst.seconds {
			worst = claim{Neighbour, took, on.others[0].String()}
		}
	}
	return []claim{worst}
}

// hostDelay: launching threads were runnable without a CPU, or waited for storage or memory.
// Without scheduler events, the kernel's facts about the main thread and the control group
// are used.
func (j *judge) hostDelay() []claim {
	var facts []string
	more := func(name, text string) float64 {
		v, ok := j.phase.excess(j.sample.values, name)
		if v *= j.sample.seconds; !ok || v < 0.001*j.sample.seconds {
			return 0
		}
		facts = append(facts, fmt.Sprintf(text, seconds(v)))
		return v
	}
	has := func(name string) bool { _, ok := j.sample.values[name]; return ok }

	// A thread of a group that exhausted its CPU quota is runnable but does not run, so these
	// facts count the same seconds. The kernel sums throttled time over CPUs and threads that do
	// not launch: it only explains the others, and without them it is at most that of the periods
	// in which it happened.
	const throttled = "CPU throttling of its cgroup took %s more, summed over CPUs"
	cpu := 0.0
	switch {
	case has("queued"):
		cpu = more("queued", "launching threads waited %s more for a CPU")
	case has("main"):
		cpu = more("main", "the main thread waited %s more for a CPU")
	case has("cpu pressure"):
		cpu = more("cpu pressure", "tasks of its cgroup waited %s more for a CPU")
	case has("throttled periods"):
		periods, _ := j.phase.excess(j.sample.values, "throttled periods")
		cpu = min(more("throttled", throttled), periods*quotaPeriod*j.sample.seconds)
	}
	if len(facts) == 1 && (has("queued") || has("main") || has("cpu pressure")) {
		more("throttled", throttled)
	}
	var disk float64
	if has("disk") {
		disk = more("disk", "the main thread waited %s more for block I/O")
	} else {
		disk = more("io pressure", "tasks of its cgroup waited %s more for I/O")
	}
	memory := more("memory pressure", "tasks of its cgroup waited %s more for memory")
	if n, ok := j.phase.excess(j.sample.values, "faults"); ok && len(facts) > 0 && n*j.sample.seconds >= 1 {
		facts = append(facts, fmt.Sprintf("%.0f more major page faults", n*j.sample.seconds))
	}
	return []claim{{HostDelay, cpu + disk + memory, strings.Join(facts, ", ")}}
}

// copies: time of the process's own copies per launch, in excess of the usual.
func (j *judge) copies() []claim {
	s := j.sample
	more, ok := j.phase.excess(s.values, "copy")
	if !ok {
		return nil
	}
	fact := fmt.Sprintf("copies took %s more", seconds(more*s.launches))
	usualBytes, _ := j.phase.signals["copied"].median()
	rate, _ := j.phase.signals["launches"].median()
	if now, was := s.copied/s.seconds/1e9, usualBytes*rate/1e9; math.Max(now, was) >= 0.05 {
		fact = fmt.Sprintf("%.1f -> %.1f GB/s, %s", was, now, fact)
	}
	return []claim{{Copy, more * s.launches, fact}}
}

// communication: excess time in the first synchronization after a collective, or ranks that
// have not arrived. Such a wait also includes the process's own work before the collective. If
// the device is busy for longer, it spins in the collective, unless the input is larger or it
// draws as much power as usual: then it calculates.
func (j *judge) communication() (claim, bool) {
	s := j.sample
	c := claim{cause: Communication}
	if more, ok := j.phase.excess(s.values, "barrier"); ok {
		c.seconds = more * s.launches
		if !j.sameInput() {
			c.seconds = max(0, c.seconds-j.moreWork())
		} else if more, ok := j.moreCycles(); ok && !j.dimmed() {
			c.seconds = max(0, c.seconds-more)
		}
		c.fact = fmt.Sprintf("waits after collectives took %s more%s", seconds(c.seconds), j.awaited())
	}
	if g, waited := j.behind(); waited > 0 {
		c.seconds = max(c.seconds, waited)
		c.fact = missing(g, j.now)
	}
	if n, ok := j.phase.excess(s.values, "retransmits"); ok && c.fact != "" && n*s.seconds >= 10 {
		c.fact += fmt.Sprintf(", %.0f more TCP retransmits in its network namespace", n*s.seconds)
	}
	return c, c.seconds > 0
}

// dimmed reports whether the devices draw less power than usual. Unknown is less.
func (j *judge) dimmed() bool {
	usual, ok := j.phase.signals["power"].median()
	now, there := j.sample.values["power"]
	return !ok || !there || now < dimmed*usual
}

// awaited names the local rank that the others wait for: the one that waits least, if that
// is less than half of what this rank waits.
func (j *judge) awaited() string {
	least, text := j.sample.barrier/2, ""
	for i := range j.groups {
		g := &j.groups[i]
		if !slices.ContainsFunc(g.Ranks, func(r tracer.RankSeen) bool { return r.PID == j.process.PID }) {
			continue
		}
		for _, r := range g.Ranks {
			if other := j.all[r.PID]; other != nil && other.sample != nil && other.sample.barrier < least {
				least = other.sample.barrier
				text = fmt.Sprintf(", rank %d (pid %d) waits least, with %s", r.Rank, r.PID, seconds(least))
			}
		}
	}
	return text
}

// behind returns the communicator in which the process waits for ranks that have not
// arrived, and for how long within the window.
func (j *judge) behind() (*tracer.CommGroup, float64) {
	for i := range j.groups {
		g := &j.groups[i]
		if len(g.Behind) == 0 || g.Waiting.IsZero() {
			continue
		}
		for _, r := range g.Ranks {
			if r.PID == j.process.PID && !slices.Contains(g.Behind, r.Rank) {
				return g, min(max(0, j.now.Sub(g.Waiting).Seconds()), j.sample.seconds)
			}
		}
	}
	return nil, 0
}

// missing names the ranks that have not arrived.
func missing(g *tracer.CommGroup, now time.Time) string {
	names := make([]string, 0, 4)
	for _, rank := range g.Behind {
		if len(names) == 4 {
			names = append(names, fmt.Sprintf("and %d more", len(g.Behind)-4))
			break
		}
		name := fmt.Sprintf("rank %d", rank)
		for _, r := range g.Ranks {
			if r.Rank == rank {
				name = fmt.Sprintf("rank %d (pid %d)", rank, r.PID)
			}
		}
		names = append(names, name)
	}
	op, furthest := "the collective", uint64(0)
	for _, r := range g.Ranks {
		if r.Sequence >= furthest && !slices.Contains(g.Behind, r.Rank) {
			furthest = r.Sequence
			if r.LastOp != "" {
				op = r.LastOp
			}
		}
	}
	return fmt.Sprintf("%s of %d did not enter %s %d for %s", strings.Join(names, ", "), g.Size, op, furthest, seconds(now.Sub(g.Waiting).Seconds()))
}

func clip(v float64) float64 {
	if !(v > 0) { // also NaN
		return 0
	}
	return min(1, v)
}
