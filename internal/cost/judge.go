package cost

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/sizing"
)

func (d *detective) neverUsed(g *instance) *Finding {
	at := g.all(func(i int) bool { return g.measured(i) && g.rows[i].Used == 0 && d.Peak[g.keys[i]] <= d.rules.Low })
	if len(at) < len(g.rows) {
		return nil
	}
	var held Seconds
	for _, i := range at {
		held += g.rows[i].Allocated()
	}
	return d.finding(NeverUsed, g, at, 1, map[string]float64{"held_hours": held.Hours(), "devices": float64(len(at))},
		"held %s for %.1f GPU-hours without any use", gpus(len(at)), held.Hours())
}

// idleHolder finds an instance that has been idle, as package fleet defines it, throughout
// IdleFor and held memory all that time, so nobody else could use the device.
func (d *detective) idleHolder(g *instance) *Finding {
	at := g.all(func(i int) bool {
		// The history has a point every few minutes, so the newest point may be that old.
		return d.idle[g.keys[i]] >= d.rules.IdleFor-5*time.Minute && d.memoryLow[g.keys[i]] >= d.rules.Memory
	})
	if len(at) < len(g.rows) {
		return nil
	}
	memory := 0.0
	var idle Seconds
	for _, i := range at {
		memory += d.memoryLow[g.keys[i]]
		idle += g.rows[i].Idle
	}
	return d.finding(IdleHolder, g, at, 1,
		map[string]float64{"memory_bytes": memory, "idle_hours": idle.Hours(), "idle_for_hours": d.rules.IdleFor.Hours(), "devices": float64(len(at))},
		"holds %s and %.0f GiB of memory, but has been idle for at least %s; %.1f GPU-hours idle in the period", gpus(len(at)), memory/(1<<30), short(d.rules.IdleFor), idle.Hours())
}

// short formats a duration without trailing zero units.
func short(d time.Duration) string {
	return strings.TrimSuffix(strings.TrimSuffix(d.String(), "0s"), "0m")
}

func (d *detective) partlyUsed(g *instance) *Finding {
	at := g.all(func(i int) bool {
		return g.measured(i) && sizing.Unused(g.rows[i].Used, g.rows[i].Allocated(), d.Peak[g.keys[i]], d.rules.Low)
	})
	if len(at) == 0 || len(at) == len(g.rows) {
		return nil
	}
	used := len(g.rows) - len(at)
	return d.finding(PartlyUsed, g, at, 1, map[string]float64{"devices": float64(len(g.rows)), "used": float64(used)},
		"requested %s but used %d", gpus(len(g.rows)), used)
}

// barelyUsed finds an instance that keeps devices active without using them, such as a spinning
// kernel that leaves the compute units idle.
func (d *detective) barelyUsed(g *instance) *Finding {
	most := 0.0
	at := g.all(func(i int) bool {
		peak, ok := d.Peak[g.keys[i]]
		most = max(most, peak)
		return ok && g.measured(i) && peak <= d.rules.Low && d.memoryLow[g.keys[i]] >= d.rules.Memory
	})
	if len(at) < len(g.rows) {
		return nil
	}
	return d.finding(BarelyUsed, g, at, 1, map[string]float64{"activity_peak": most, "devices": float64(len(at))},
		"keeps %s active, but their compute units never exceeded %.0f%%", gpus(len(at)), most*100)
}

// fitsSmaller compares peaks, with headroom, with the partitions that the device can have.
func (d *detective) fitsSmaller(g *instance) *Finding {
	if len(g.rows) != 1 || d.period < sizing.Period || g.rows[0].Labels[fleet.LabelPartition] != "" {
		return nil // a job that spans devices does so for a reason; partitions are not judged by size
	}
	key, l := g.keys[0], g.rows[0].Labels
	peak, ok1 := d.Peak[key]
	memory, ok2 := d.Memory[key]
	size, ok3 := d.Size[fleet.DeviceKey(l)]
	if !ok1 || !ok2 || !ok3 || size <= 0 || g.rows[0].Allocated().Duration() < sizing.Held {
		return nil
	}
	evidence := map[string]float64{"activity_peak": peak, "memory_peak_bytes": memory, "memory_bytes": size}
	need := sizing.Need{Model: l[fleet.LabelModel], Size: size, Activity: peak, Memory: memory}
	slice, can, fits := need.Slice(d.rules.Facts)
	switch {
	case fits:
		evidence["needs"] = slice.Part
		return d.finding(FitsSmaller, g, []int{0}, 1-slice.Part, evidence, "never used more than %.0f%% of its GPU and %.1f of %.0f GiB: a partition %s would suffice", peak*100, memory/(1<<30), size/(1<<30), slice.Profile)
	case can || peak > 0.45 || memory*(1+sizing.Headroom) > size/2:
		return nil
	}
	evidence["needs"] = 0.5
	return d.finding(FitsSmaller, g, []int{0}, 0.5, evidence, "never used more than %.0f%% of its GPU and %.0f of %.0f GiB: a GPU of half the size would suffice", peak*100, memory/(1<<30), size/(1<<30))
}

// hostBound finds an instance whose devices reach full load in bursts and wait in between. The
// waste is the time they wait.
func (d *detective) hostBound(g *instance) *Finding {
	mean, peak, n := 0.0, 1.0, 0
	for i, key := range g.keys {
		m, ok := d.Mean[key]
		if !ok || !g.measured(i) {
			return nil
		}
		mean, peak, n = mean+m, min(peak, d.Peak[key]), n+1
	}
	mean /= float64(n)
	var used, held Seconds
	for _, r := range g.rows {
		used, held = used+r.Used, held+r.Allocated()
	}
	busy := float64(used) / float64(held)
	// The instance is active most of the time and can fill the device, but on average does not.
	if peak < 0.9 || mean < d.rules.Low || mean > 0.5 || busy < 0.5 {
		return nil
	}
	return d.finding(HostBound, g, g.all(func(int) bool { return true }), busy-min(busy, mean), map[string]float64{"activity_mean": mean, "activity_peak": peak, "busy": busy},
		"was active %.0f%% of the time with a peak of %.0f%%, but averaged only %.0f%%: its GPUs wait, likely for input from the host", busy*100, peak*100, mean*100)
}

func gpus(n int) string {
	if n == 1 {
		return "1 GPU"
	}
	return fmt.Sprintf("%d GPUs", n)
}
