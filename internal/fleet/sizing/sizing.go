// Package sizing compares what workloads asked for with what they used: who held eight devices and used one, and what smaller
// device or partition would have carried the peaks.
//
// Time comes from the rows of a bill, peaks from gauges of the last week, and what is held now and which models there are from the
// fleet. Nothing is proposed that is below a peak that was seen plus Headroom, nor where a peak is not known: absent is not zero.
package sizing

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Row is what one instance of a workload had of one device or partition in a period.
type Row struct {
	Labels                 query.Labels
	Held, Used, Unmeasured fleet.Seconds // Used is known of Held without Unmeasured
}

// Options configure Read. The zero value reads everything and has no prices.
type Options struct {
	fleet.MeterOptions

	Price fleet.Pricer
	Facts Facts
}

// Report is what the workloads of a period asked for and used.
type Report struct {
	From, To  time.Time
	Peaks     time.Duration // the peaks are from the end of the period, so far back
	Step      time.Duration // Workload.Most is from moments so far apart
	Workloads []Workload    // the largest saving first
}

// Workload is what one workload asked for and used.
type Workload struct {
	fleet.Owner

	Mean   float64 // devices held, on average over the whole period
	Most   float64 // devices held at once, at moments Report.Step apart
	Now    float64 // devices held at the end
	Models []Model // by time held

	// The rest is about the instances that hold devices at the end or, if none does, about the one that held the most. A
	// partition counts as a device.
	Devices      int
	Used         optional.Float // how many of the devices were used, absent if that is not known of one
	Activity     optional.Float // mean, by time held; see Peaks
	ActivityPeak optional.Float
	MemoryPeak   optional.Float // bytes, of the device with the highest peak
	MemorySize   optional.Float // bytes, of that device
	Observed     time.Duration  // how long one instance held a device in the period, at most

	Advice  []Advice // the largest saving first
	Because string   // why there is none
}

// Model is how much of a model of device a workload held.
type Model struct {
	Name string
	Mean float64 // devices, on average over the whole period
}

// unit is an instance on one device or partition.
type unit struct {
	Row
	key      string // fleet.Instance
	owner    fleet.Owner
	instance string // of the workload, whatever devices it has
	now      float64
	most     float64 // the highest part of the device that it had, as far as is known; 0: it may have been the whole
}

// observed is how long the device of a unit was held, at least: its time held counts by parts, which may change.
func (j *judge) observed(u *unit) time.Duration {
	held := u.Held.Duration()
	if u.most > 0 && u.most < 1 {
		held = time.Duration(float64(held) / u.most)
	}
	return min(held, j.period)
}

func (u *unit) measured() bool { return u.Unmeasured == 0 && u.Held > 0 }

// Read reads what the rows do not say, and compares. The rows are those of a bill of (from, to], and f is the fleet at the end.
func Read(ctx context.Context, store query.Store, rows []Row, f *fleet.Fleet, from, to time.Time, o Options) (*Report, error) {
	period := to.Sub(from)
	peaks, err := ReadPeaks(ctx, store, period, to, o.MeterOptions)
	if err != nil {
		return nil, err
	}
	out := &Report{From: from, To: to, Peaks: min(period, Window), Step: stepOf(period, len(f.Devices))}
	most, err := mostHeld(ctx, store, from, to, out.Step, o.MeterOptions)
	if err != nil {
		return nil, err
	}
	list := units(rows, peaks)
	if err := mostParts(ctx, store, list, from, to, out.Step, o.MeterOptions); err != nil {
		return nil, err
	}
	byOwner := map[string][]*unit{}
	for _, u := range list {
		byOwner[u.owner.ID] = append(byOwner[u.owner.ID], u)
	}
	j := &judge{o: o, peaks: peaks, fleet: f, period: period, to: to}
	for _, list := range byOwner {
		w := j.workload(list)
		w.Most = max(round(most[w.ID]), w.Now)
		out.Workloads = append(out.Workloads, w)
	}
	slices.SortFunc(out.Workloads, func(a, b Workload) int {
		x, y := a.best(), b.best()
		return cmp.Or(cmp.Compare(y.PerDay.Default(0), x.PerDay.Default(0)), cmp.Compare(y.Hours, x.Hours), cmp.Compare(b.Mean, a.Mean), cmp.Compare(a.ID, b.ID))
	})
	return out, nil
}

// best returns the advice with the largest saving, the zero Advice if there is none.
func (w *Workload) best() Advice {
	if len(w.Advice) == 0 {
		return Advice{}
	}
	return w.Advice[0]
}

// units merges the rows of workloads: a label that arrived late gives an instance two rows.
func units(rows []Row, peaks *Peaks) []*unit {
	by := map[string]*unit{}
	var out []*unit
	for _, r := range rows {
		owner, ok := fleet.OwnerOf(r.Labels)
		if !ok || !fleet.IsWorkload(owner.Kind) {
			continue
		}
		key := fleet.Instance(r.Labels)
		u := by[key]
		if u == nil {
			u = &unit{Row: Row{Labels: r.Labels}, key: key, now: peaks.Now[key]}
			by[key] = u
			out = append(out, u)
		}
		if now := peaks.Labels[key]; r.Labels.Key() == now || u.Labels.Key() != now && len(r.Labels) > len(u.Labels) {
			u.Labels = r.Labels // the latest: those of its gauge, else the larger set
		}
		u.Held, u.Used, u.Unmeasured = u.Held+r.Held, u.Used+r.Used, u.Unmeasured+r.Unmeasured
	}
	for _, u := range out {
		u.owner, _ = fleet.OwnerOf(u.Labels)
		u.instance = cmp.Or(u.Labels[fleet.LabelPodUID], u.Labels[fleet.LabelSlurmJob], u.Labels[fleet.LabelContainerID])
	}
	return out
}

// How many values of the past one question may make a store compute, and how fine the answer is at best.
const (
	maxCells = 200_000
	maxSteps = 200
)

// stepOf returns how far apart the moments are at which Most is determined.
func stepOf(period time.Duration, devices int) time.Duration {
	steps := min(maxSteps, max(1, maxCells/max(1, devices)))
	return max(time.Minute, (period / time.Duration(steps)).Truncate(time.Second))
}

// mostHeld returns the most devices that each owner held at once, by its ID.
func mostHeld(ctx context.Context, store query.Store, from, to time.Time, step time.Duration, o fleet.MeterOptions) (map[string]float64, error) {
	expr := "sum by (" + fleet.OwnerLabels() + ") " + fleet.Once(fleet.Select(fleet.SeriesAllocation, o.Match, o.Matchers...))
	list, err := store.Range(ctx, expr, from.Add(step), to, step)
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for _, s := range list {
		owner, ok := fleet.OwnerOf(s.Labels)
		if !ok {
			continue
		}
		for _, p := range s.Points {
			if !math.IsNaN(p.Value) {
				out[owner.ID] = max(out[owner.ID], p.Value)
			}
		}
	}
	return out, nil
}

// mostParts fills in the highest part of units that have a part of their device at the end.
func mostParts(ctx context.Context, store query.Store, list []*unit, from, to time.Time, step time.Duration, o fleet.MeterOptions) error {
	parts := map[string]*unit{}
	for _, u := range list {
		if u.now > 0 && u.now < 1 {
			parts[u.key], u.most = u, u.now
		}
	}
	if len(parts) == 0 {
		return nil
	}
	series, err := store.Range(ctx, fleet.Once(fleet.Select(fleet.SeriesAllocation, o.Match, o.Matchers...)), from.Add(step), to, step)
	if err != nil {
		return err
	}
	for _, s := range series {
		u := parts[fleet.Instance(s.Labels)]
		for _, p := range s.Points {
			if u != nil && p.Value > u.most { // not so if it is NaN
				u.most = p.Value
			}
		}
	}
	return nil
}

// round turns eight eighths and seven sevenths into a whole.
func round(parts float64) float64 { return math.Round(parts*1e6) / 1e6 }

// workload compares what one workload asked for and used.
func (j *judge) workload(all []*unit) Workload {
	slices.SortFunc(all, func(a, b *unit) int { return cmp.Compare(a.key, b.key) })
	w := Workload{Owner: all[0].owner}
	models := map[string]fleet.Seconds{}
	var held fleet.Seconds
	for _, u := range all {
		held += u.Held
		w.Now += u.now
		models[u.Labels[fleet.LabelModel]] += u.Held
	}
	w.Mean, w.Now = j.mean(held), round(w.Now)
	for name, held := range models {
		w.Models = append(w.Models, Model{name, j.mean(held)})
	}
	slices.SortFunc(w.Models, func(a, b Model) int { return cmp.Or(cmp.Compare(b.Mean, a.Mean), strings.Compare(a.Name, b.Name)) })
	list := considered(all)
	j.describe(&w, list)
	j.advise(&w, list)
	return w
}

func (j *judge) mean(held fleet.Seconds) float64 {
	return held.Duration().Seconds() / j.period.Seconds()
}

// considered returns the units of the instances that hold devices at the end, else of the one that held the most.
func considered(all []*unit) []*unit {
	if now := slices.DeleteFunc(slices.Clone(all), func(u *unit) bool { return u.now <= 0 }); len(now) > 0 {
		return now
	}
	by := map[string][]*unit{}
	for _, u := range all {
		by[u.instance] = append(by[u.instance], u)
	}
	time := func(list []*unit) (sum fleet.Seconds) {
		for _, u := range list {
			sum += u.Held
		}
		return sum
	}
	var most []*unit
	for _, name := range sortedKeys(by) {
		if list := by[name]; len(list) > len(most) || len(list) == len(most) && time(list) > time(most) {
			most = list
		}
	}
	return most
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// describe fills in what the units used.
func (j *judge) describe(w *Workload, list []*unit) {
	used, known := 0, true
	var weighted, weight, highest float64
	for _, u := range list {
		w.Devices++
		w.Observed = max(w.Observed, j.observed(u))
		known = known && u.measured()
		if !j.unused(u) {
			used++
		}
		if v, ok := j.peaks.Mean[u.key]; ok {
			weighted, weight = weighted+v*u.Held.Float(), weight+u.Held.Float()
		}
		if v, ok := j.peaks.Peak[u.key]; ok {
			w.ActivityPeak = optional.Of(max(v, w.ActivityPeak.Default(0)))
		}
		memory, ok := j.peaks.Memory[u.key]
		size := j.size(u)
		if part, whole := memory/size, size > 0; ok && (!w.MemoryPeak.OK() || whole && part > highest) {
			w.MemoryPeak, w.MemorySize = optional.Of(memory), optional.Float{}
			if whole {
				w.MemorySize, highest = optional.Of(size), part
			}
		}
	}
	if known {
		w.Used = optional.Of(float64(used))
	}
	if weight > 0 {
		w.Activity = optional.Of(round(weighted / weight)) // stores add up in different orders
	}
}

// size returns the memory of the device of a unit, 0 if it is not known. The size of a partition is not that of its device.
func (j *judge) size(u *unit) float64 {
	if u.Labels[fleet.LabelPartition] != "" {
		return 0
	}
	return j.peaks.Size[fleet.DeviceKey(u.Labels)]
}

// unused reports whether nothing used the device of a unit, as far as is known.
func (j *judge) unused(u *unit) bool {
	return u.measured() && Unused(u.Used, u.Held, j.peaks.Peak[u.key], Low)
}
