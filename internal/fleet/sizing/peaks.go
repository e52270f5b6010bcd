package sizing

import (
	"context"
	"errors"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Window is the longest period whose peaks are read: what a hub keeps by the hour.
const Window = 7 * 24 * time.Hour

// Peaks is what gauges said of the instances of workloads on their devices, in a window that ends at a moment. The keys are those
// of fleet.Instance, except of Size.
type Peaks struct {
	Now    map[string]float64 // the part of the device that is held at the end
	Labels map[string]string  // the key of the row's labels at the end
	// Peak and Mean are activity, from 0 to 1: of the compute units if the device reports it and the instance was its sole
	// holder in the whole window, else the instance's utilization, which is 1 while anything runs. Sole has the former, and Shared
	// those whose device reports it and which were its sole holder for a part of the time only.
	Peak, Mean   map[string]float64
	Sole, Shared map[string]bool
	Memory       map[string]float64 // the peak, in bytes
	Size         map[string]float64 // memory of the device in bytes, by fleet.DeviceKey
}

// The activity of the compute units may lack some samples, as after a start: so few, or this part of all.
const few, missed = 3, 0.001

// ReadPeaks reads the peaks of a window.
func ReadPeaks(ctx context.Context, store query.Store, window time.Duration, at time.Time, o fleet.MeterOptions) (*Peaks, error) {
	p := &Peaks{Sole: map[string]bool{}, Shared: map[string]bool{}}
	window = min(window, Window)
	over := func(f, series string, window time.Duration) ([]query.Sample, error) {
		return OverTime(ctx, store, f, series, window, at, o)
	}
	now, err := over("last_over_time", fleet.SeriesAllocation, 5*time.Minute)
	if err != nil {
		return nil, err
	}
	p.Now, p.Labels = highest(now), rows(now)
	for _, q := range []struct {
		into   *map[string]float64
		f      string
		series string
	}{
		{&p.Peak, "max_over_time", fleet.SeriesWorkloadUtilization},
		{&p.Mean, "avg_over_time", fleet.SeriesWorkloadUtilization},
		{&p.Memory, "max_over_time", fleet.SeriesWorkloadMemory},
	} {
		list, err := over(q.f, q.series, window)
		if err != nil {
			return nil, err
		}
		*q.into = highest(list)
	}
	all, err := over("count_over_time", fleet.SeriesWorkloadUtilization, window)
	if err != nil {
		return nil, err
	}
	alone, err := over("count_over_time", fleet.SeriesSMActive, window)
	if err != nil {
		return nil, err
	}
	samples := count(all)
	for key, n := range count(alone) {
		// A series without an owner belongs to no workload.
		if whole, ok := samples[key]; ok {
			p.Sole[key] = n >= whole-max(few, whole*missed)
			p.Shared[key] = !p.Sole[key]
		}
	}
	for f, into := range map[string]map[string]float64{"max_over_time": p.Peak, "avg_over_time": p.Mean} {
		list, err := over(f, fleet.SeriesSMActive, window)
		if err != nil {
			return nil, err
		}
		for key, v := range highest(list) {
			if p.Sole[key] {
				into[key] = v
			}
		}
	}
	total, err := store.Instant(ctx, fleet.Over("max_over_time", fleet.Select(fleet.SeriesMemoryTotal, fleet.OfDevice(o.Match)), query.Duration(time.Hour)), at)
	if err != nil {
		return nil, err
	}
	p.Size = make(map[string]float64, len(total))
	for _, s := range total {
		p.Size[fleet.DeviceKey(s.Labels)] = s.Value
	}
	return p, nil
}

// OverTime evaluates a function such as max_over_time for the series with a name, over a window that ends at a moment. A store
// that keeps hours of it answers without reading the samples of the window.
func OverTime(ctx context.Context, store query.Store, f, name string, window time.Duration, at time.Time, o fleet.MeterOptions) ([]query.Sample, error) {
	if a, ok := store.(query.Aggregator); ok && len(o.Match) == 0 && len(o.Matchers) == 0 {
		if list, err := a.OverTime(ctx, f, name, window, at); !errors.Is(err, fleet.ErrNotKept) {
			return list, err
		}
	}
	return store.Instant(ctx, fleet.Over(f, fleet.Select(name, o.Match, o.Matchers...), query.Duration(window)), at)
}

// highest returns the highest value of each instance: it may have several series.
func highest(list []query.Sample) map[string]float64 {
	out := make(map[string]float64, len(list))
	for _, s := range list {
		key := fleet.Instance(s.Labels)
		if old, ok := out[key]; !ok || s.Value > old {
			out[key] = s.Value
		}
	}
	return out
}

// count adds up the samples of the series of each instance.
func count(list []query.Sample) map[string]float64 {
	out := make(map[string]float64, len(list))
	for _, s := range list {
		out[fleet.Instance(s.Labels)] += s.Value
	}
	return out
}

// rows returns the key of the row of each instance. If a label has just appeared, an instance has two rows; the larger label
// set wins.
func rows(list []query.Sample) map[string]string {
	out, most := map[string]string{}, map[string]int{}
	for _, s := range list {
		key, row := fleet.Instance(s.Labels), fleet.Row(s.Labels)
		if len(row) > most[key] {
			out[key], most[key] = row.Key(), len(row)
		}
	}
	return out
}
