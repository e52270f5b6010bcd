package fleet

import (
	"context"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
)

// The definitions of held, busy and idle, for everything that shows or judges a fleet.
// docs/workloads.md states them for users.
//
//   - A device is held if it is allocated to workloads, in whole or in part, whether they use
//     it or not. Use without an allocation does not make a device held.
//   - A device is busy to the extent of its utilization.
//   - A workload has been idle on a device since its active time last grew by more than
//     usedAtLeast of a step of the history: a notebook that touches its GPU once a minute
//     counts as idle.
//   - A device is idle if it is held, its utilization is below quiet, and the workload that
//     used it last has been idle for IdleAfter.
const (
	// IdleAfter is how long a held device must be unused to be idle.
	IdleAfter = 10 * time.Minute

	usedAtLeast = 0.02
	quiet       = 0.05
)

// How far back the history is searched: first finely, then coarsely. usedAtLeast is relative to
// the step.
const (
	recently, recentStep = time.Hour, 2 * time.Minute
	longAgo, longStep    = 24 * time.Hour, 30 * time.Minute

	maxIdleCells = 200_000 // devices times steps per query
	maxNamed     = 250     // devices named per query: some stores limit its length
	maxQueries   = 8       // with more devices the whole fleet is queried
)

// Held reports whether the device is allocated to workloads, in whole or in part.
func (d *Device) Held() bool { return d.Allocated > 0 }

// IsIdle reports whether the device is held and nobody has used it for IdleAfter.
func (d *Device) IsIdle() bool {
	idle, ok := d.Idle.Get()
	return ok && d.Held() && idle >= IdleAfter.Seconds()
}

// idleness determines how long held devices have been unused.
func (r *Reader) idleness(ctx context.Context, f *Fleet) error {
	var quietOnes []int
	for i := range f.Devices {
		d := &f.Devices[i]
		switch busy, ok := d.Utilization.Get(); {
		case !ok || !d.Held():
		case busy >= quiet:
			d.Idle = optional.Of(0)
		default:
			quietOnes = append(quietOnes, i)
		}
	}
	left, err := r.lookBack(ctx, f, quietOnes, recently, recentStep)
	if err != nil {
		return err
	}
	_, err = r.lookBack(ctx, f, left, longAgo, longStep)
	return err
}

// lookBack sets how long devices have been idle, up to length, and returns the devices that were
// idle throughout.
func (r *Reader) lookBack(ctx context.Context, f *Fleet, which []int, length, step time.Duration) ([]int, error) {
	if len(which) == 0 {
		return nil, nil
	}
	if least := length * time.Duration(len(which)) / maxIdleCells; step < least {
		step = least.Round(time.Second)
	}
	uuids := make([]string, len(which))
	for i, n := range which {
		uuids[i] = f.Devices[n].UUID
	}
	series, err := activeTime(ctx, r.store, uuids, f.At, length, step)
	if err != nil {
		return nil, err
	}
	idle := map[int]time.Duration{}
	for _, s := range series {
		i, ok := f.find(s.Labels)
		if !ok || !f.holds(i, s.Labels) || !current(s.Points, f.At, step) {
			continue // without an owner, or of a workload that has left
		}
		d := streak(s.Points)
		if before, ok := idle[i]; ok {
			d = min(d, before) // the device is as idle as the holder that used it last
		}
		idle[i] = d
	}
	var left []int
	for _, i := range which {
		d, ok := idle[i]
		if !ok {
			continue
		}
		// The second search is coarser and must not shorten what the first one found.
		if before, ok := f.Devices[i].Idle.Get(); !ok || d.Seconds() > before {
			f.Devices[i].Idle = optional.Of(d.Seconds())
		}
		if d >= length-step {
			left = append(left, i)
		}
	}
	return left, nil
}

// IdleInstances returns how long workload instances on the devices have been idle, up to length, by
// instance key. Instances that ended are omitted.
func IdleInstances(ctx context.Context, store query.Store, uuids []string, at time.Time, length time.Duration) (map[string]time.Duration, error) {
	step := recentStep
	if least := length * time.Duration(len(uuids)) / maxIdleCells; step < least {
		step = least.Round(time.Second)
	}
	series, err := activeTime(ctx, store, uuids, at, length, step)
	if err != nil {
		return nil, err
	}
	out := map[string]time.Duration{}
	for _, s := range series {
		if current(s.Points, at, step) {
			out[Instance(s.Labels)] = streak(s.Points)
		}
	}
	return out, nil
}

// activeTime returns the active time of each instance on the devices over a length of time.
func activeTime(ctx context.Context, store query.Store, uuids []string, at time.Time, length, step time.Duration) ([]query.Series, error) {
	if len(uuids) == 0 {
		return nil, nil
	}
	if len(uuids) > maxNamed*maxQueries {
		series, err := store.Range(ctx, Once(SeriesActiveTime), at.Add(-length), at, step)
		return byInstance(series), err
	}
	var out []query.Series
	for part := range slices.Chunk(uuids, maxNamed) {
		for _, match := range AnyOf(LabelUUID, part) {
			series, err := store.Range(ctx, Once(Select(SeriesActiveTime, nil, match)), at.Add(-length), at, step)
			if err != nil {
				return nil, err
			}
			out = append(out, series...)
		}
	}
	return byInstance(out), nil
}

// current reports whether a series still has a value at the end of a range.
func current(points []query.Point, at time.Time, step time.Duration) bool {
	return len(points) > 0 && points[len(points)-1].Time.After(at.Add(-step))
}

// holds reports whether the workload of a series holds a device now.
func (f *Fleet) holds(i int, l query.Labels) bool {
	return slices.ContainsFunc(f.Devices[i].Owners, func(n int) bool {
		o := &f.Owners[n]
		return o.Kind == l[LabelKind] && o.Name == l[LabelWorkload] && o.Job == l[LabelSlurmJob]
	})
}

// streak returns how long a counter of active time has not grown by more than usedAtLeast of the
// elapsed time.
func streak(points []query.Point) time.Duration {
	last := len(points) - 1
	first := last
	for ; first > 0; first-- {
		a, b := points[first-1], points[first]
		used := b.Value - a.Value
		if used < 0 || used > usedAtLeast*b.Time.Sub(a.Time).Seconds() {
			break
		}
	}
	return points[last].Time.Sub(points[first].Time)
}

// History tracks the active time of accounts on a node, for a view of one machine without a
// store. The zero History is ready to use. It is not safe for concurrent use.
type History struct {
	points map[string][]query.Point
}

// Idle records the active time of an account, in seconds, and returns how long the account has
// been idle within the recorded history.
func (h *History) Idle(account string, at time.Time, active float64) time.Duration {
	if h.points == nil {
		h.points = map[string][]query.Point{}
	}
	list := h.points[account]
	// Replace the newest point until it is a full step after the one before.
	if n := len(list); n > 1 && list[n-1].Time.Sub(list[n-2].Time) < recentStep {
		list = list[:n-1]
	}
	list = append(list, query.Point{Time: at, Value: active})
	if limit := int(longAgo / recentStep); len(list) > limit {
		list = slices.Clone(list[len(list)-limit:])
	}
	h.points[account] = list
	return streak(list)
}

// Forget drops the accounts for which keep returns false.
func (h *History) Forget(keep func(account string) bool) {
	for account := range h.points {
		if !keep(account) {
			delete(h.points, account)
		}
	}
}
