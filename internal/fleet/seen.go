package fleet

import (
	"context"
	"time"

	"github.com/gpumeter/gpumeter/internal/query"
)

// Sighting is a device that a store has samples of.
type Sighting struct {
	Labels query.Labels
	// First and Last are when the device was seen in the period, to the step of the search. They
	// are zero if it was not, or was not searched for.
	First, Last time.Time
	In          bool // there are samples in the period
	// Gaps are when the device was not seen between First and Last, to the step of the search.
	Gaps []Span
}

// Span is the time between two moments.
type Span struct{ From, To time.Time }

// lately is how long before a period a device must have been seen to be expected in it.
const lately = 24 * time.Hour

// Sightings returns the devices, by DeviceKey, that a store has seen in a period or in the day before
// it. Whether the device answered does not matter.
func Sightings(ctx context.Context, store query.Store, match map[string]string, from, to time.Time) (map[string]*Sighting, error) {
	out := map[string]*Sighting{}
	spans := []Span{{from.Add(-lately), from}, {from, to}, {later(from, to.Add(-day)), to}} // labels are those of the last day
	if !lists(store) {
		spans = spans[:1]
		begin := from
		for _, end := range append(Days(from, to), to) { // a query reads a day of samples at most
			spans, begin = append(spans, Span{begin, end}), end
		}
	}
	for _, span := range spans {
		list, err := listed(ctx, store, Select(SeriesUp, match), span.From, span.To)
		if err != nil {
			return nil, err
		}
		for _, l := range list {
			labels := Row(l)
			key := DeviceKey(labels)
			if out[key] == nil {
				out[key] = &Sighting{}
			}
			if index := l[LabelIndex]; index != "" { // Row drops it, because it may change
				labels[LabelIndex] = index
			}
			out[key].Labels = labels
			out[key].In = out[key].In || span.To.After(from)
		}
	}
	return out, nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// searchPoints is how many moments of a period are examined for each device.
const searchPoints = 500

// gapAfter is how long a device must be silent for a gap. Agents report at least once a minute.
const gapAfter = 2 * time.Minute

// Search sets First, Last and Gaps of the devices with these keys.
func Search(ctx context.Context, store query.Store, seen map[string]*Sighting, keys []string, from, to time.Time) error {
	step := max(5*time.Second, (to.Sub(from) / searchPoints).Truncate(time.Second))
	wanted := map[string]bool{}
	uuids := make([]string, len(keys))
	for i, key := range keys {
		wanted[key], uuids[i] = true, seen[key].Labels[LabelUUID]
	}
	for _, match := range AnyOf(LabelUUID, uuids) {
		list, err := store.Range(ctx, "max by ("+keyLabels+") (timestamp("+Select(SeriesUp, nil, match)+"))", from, to, step)
		if err != nil {
			return err
		}
		for _, s := range list {
			d := seen[DeviceKey(s.Labels)]
			if d == nil || !wanted[DeviceKey(s.Labels)] {
				continue
			}
			for _, p := range s.Points { // the value is the time of the newest sample
				at := time.UnixMilli(int64(p.Value * 1000)).UTC()
				if at.Before(from) {
					continue
				}
				if d.First.IsZero() || at.Before(d.First) {
					d.First = at
				} else if gap := at.Sub(d.Last); gap > step*3/2 && gap > gapAfter {
					d.Gaps = append(d.Gaps, Span{d.Last, at})
				}
				if at.After(d.Last) { // a device that moved has several hosts
					d.Last = at
				}
			}
		}
	}
	return nil
}
