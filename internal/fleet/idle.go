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
//   - A device is held if workloads have been given it or a part of it, whether they use it
//     or not. Use without an allocation does not make a device held.
//   - A device is busy to the extent of its utilization.
//   - A workload has been idle on a device since its active time last grew by more than
//     usedAtLeast of a step of the history: a notebook that touches its GPU once a minute
//     does not work on it.
//   - A device is idle if it is held, its utilization is below quiet, and the workload that
//     used it last has been idle for IdleAfter.
const (
	// IdleAfter is how long nobody must have used a held device for it to be idle.
	IdleAfter = 10 * time.Minute

	usedAtLeast = 0.02
	quiet       = 0.05
)

// How far back the history is searched, first closely, then coarsely. The first step is
// what usedAtLeast is a part of for recent history.
const (
	recently, recentStep = time.Hour, 2 * time.Minute
	longAgo, longStep    = 24 * time.Hour, 30 * time.Minute

	maxIdleCells = 200_000 // devices times steps of one query
	maxNamed     = 250     // devices named in one query: some stores bound its length
	maxQueries   = 8       // with more devices the whole fleet is asked for
)

// Held reports whether workloads have been given the device or a part of it.
func (d *Device) Held() bool { return d.Allocated > 0 }

// IsIdle reports whether the device is held and nobody has used it for IdleAfter.
func (d *Device) IsIdle() bool {
	idle, ok := d.Idle.Get()
	return ok && d.Held() && idle >= IdleAfter.Seconds()
}

// idleness finds out for how long held devices have not been used.
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

// lookBack sets for how long devices have been idle, up to a length of time, and returns
// those that were idle for all of it.
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
		i, ok := f.Index[s.Labels[LabelUUID]]
		if !ok || !f.holds(i, s.Labels) || !current(s.Points, f.At, step) {
			continue // nobody's, or of a workload that left
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
		// The second look is coarser: it must not take away what the first one saw.
		if before, ok := f.Devices[i].Idle.Get(); !ok || d.Seconds() > before {
			f.Devices[i].Idle = optional.Of(d.Seconds())
		}
		if d >= length-step {
			left = append(left, i)
		}
	}
	return left, nil
}

// IdleAccounts returns for how long, up to a length of time, accounts on devices have been
// idle, by their keys. Accounts that are not there any more are left out.
func IdleAccounts(ctx context.Context, store query.Store, uuids []string, at time.Time, length time.Duration) (map[string]time.Duration, error) {
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
			key := Account(s.Labels)
			out[key] = max(out[key], streak(s.Points)) // of two series of one account, the longer history
		}
	}
	return out, nil
}

// activeTime returns the active time of each account on devices over a length of time.
func activeTime(ctx context.Context, store query.Store, uuids []string, at time.Time, length, step time.Duration) ([]query.Series, error) {
	if len(uuids) == 0 {
		return nil, nil
	}
	if len(uuids) > maxNamed*maxQueries {
		return store.Range(ctx, Once(SeriesActiveTime), at.Add(-length), at, step)
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
	return out, nil
}

// current reports whether a series still had a value at the end of a range.
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

// streak returns for how long a counter of active time has not grown by more than
// usedAtLeast of the time.
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

// History follows the active time of accounts as a node sees it, for a view of one machine
// that has no store behind it. The zero History is ready to use, by one goroutine.
type History struct {
	points map[string][]query.Point
}

// Idle adds the active time of an account, in seconds, and returns for how long the account
// has been idle, as far back as the history goes.
func (h *History) Idle(account string, at time.Time, active float64) time.Duration {
	if h.points == nil {
		h.points = map[string][]query.Point{}
	}
	list := h.points[account]
	// The newest point moves until it is a step away from the one before.
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

// Forget drops the accounts that keep says are gone.
func (h *History) Forget(keep func(account string) bool) {
	for account := range h.points {
		if !keep(account) {
			delete(h.points, account)
		}
	}
}
