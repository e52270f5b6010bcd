// Package sighting finds out when a store has seen each device, and what it has missed: the first and the
// last sample of a period, and the gaps in between. Where a store keeps usage by the hour, the samples
// of hours with usage need not be read.
package sighting

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Device is a device that a store has samples of.
type Device struct {
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

const day = 24 * time.Hour

// Devices returns the devices, by fleet.DeviceKey, that a store has seen in a period or in the day
// before it. Whether a device answered does not matter.
func Devices(ctx context.Context, store query.Store, match map[string]string, from, to time.Time) (map[string]*Device, error) {
	out := map[string]*Device{}
	spans := []Span{{from.Add(-fleet.SilentFor), from}, {from, to}, {later(from, to.Add(-day)), to}} // labels are those of the last day
	if !lists(store) {
		spans = append(spans[:1], daily(from, to)...) // a query reads a day of samples at most
	}
	for _, span := range spans {
		list, err := listed(ctx, store, fleet.Select(fleet.SeriesUp, match), span.From, span.To)
		if err != nil {
			return nil, err
		}
		for _, l := range list {
			labels := fleet.Row(l)
			key := fleet.DeviceKey(labels)
			if out[key] == nil {
				out[key] = &Device{}
			}
			if index := l[fleet.LabelIndex]; index != "" { // Row drops it, because it may change
				labels[fleet.LabelIndex] = index
			}
			out[key].Labels = labels
			out[key].In = out[key].In || span.To.After(from)
		}
	}
	return out, nil
}

// daily divides a period at each midnight (UTC).
func daily(from, to time.Time) (out []Span) {
	for _, end := range append(fleet.Days(from, to), to) {
		out, from = append(out, Span{from, end}), end
	}
	return out
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

// search looks for devices in a period.
type search struct {
	store query.Store
	step  time.Duration
	slack time.Duration // no gap is shorter
}

// Search sets First, Last and Gaps of the devices with these keys.
func Search(ctx context.Context, store query.Store, seen map[string]*Device, keys []string, from, to time.Time) error {
	if len(keys) == 0 {
		return nil
	}
	step := max(5*time.Second, (to.Sub(from) / searchPoints).Truncate(time.Second))
	s := &search{store, step, max(gapAfter, step*3/2)}
	parts := []Span{{from, to}}
	if fleet.Keeps(store) {
		parts = daily(from, to)
	}
	for _, part := range parts {
		hourly, err := s.hourly(ctx, part)
		if err != nil {
			return err
		}
		unsure := map[string]*Device{} // devices whose samples say more
		found := map[string][]Span{}
		for _, key := range keys {
			d := seen[key]
			if spans, sure := during(hourly[key], part, d.Last, s.slack); sure {
				d.add(spans, s.slack)
			} else {
				unsure[key], found[key] = d, spans
			}
		}
		if err := s.samples(ctx, part, unsure, found); err != nil {
			return err
		}
		for key, d := range unsure {
			slices.SortFunc(found[key], func(a, b Span) int { return a.From.Compare(b.From) }) // a device that moved has several series
			d.add(found[key], s.slack)
		}
	}
	return nil
}

// add adds when the device was seen, in order of time.
func (d *Device) add(spans []Span, slack time.Duration) {
	for _, s := range spans {
		if d.First.IsZero() {
			d.First = s.From
		} else if s.From.Sub(d.Last) > slack {
			d.Gaps = append(d.Gaps, Span{d.Last, s.From})
		}
		d.Last = later(d.Last, s.To)
	}
}

// hourKeeper is a Keeper that has the device time of hours without the rest of a day's usage.
type hourKeeper interface {
	Hourly(ctx context.Context, midnight, at time.Time) (map[string]*fleet.DayHours, error)
}

// hourly returns the device time of the hours of a day, nil if the store does not keep it.
func (s *search) hourly(ctx context.Context, part Span) (hourly map[string]*fleet.DayHours, err error) {
	midnight := part.From.UTC().Truncate(day)
	switch k := s.store.(type) {
	case hourKeeper:
		hourly, err = k.Hourly(ctx, midnight, part.To)
	case fleet.Keeper:
		var d *fleet.Day
		if d, err = k.Usage(ctx, midnight, part.To); err == nil {
			hourly = d.Hourly
		}
	}
	if errors.Is(err, fleet.ErrNotKept) {
		return nil, nil
	}
	return hourly, err
}

// samples adds when the newest sample at each step was taken.
func (s *search) samples(ctx context.Context, part Span, devices map[string]*Device, found map[string][]Span) error {
	uuids := make([]string, 0, len(devices))
	for _, d := range devices {
		uuids = append(uuids, d.Labels[fleet.LabelUUID])
	}
	for _, match := range fleet.AnyOf(fleet.LabelUUID, uuids) {
		list, err := s.store.Range(ctx, fleet.Newest(match), part.From, part.To, s.step)
		if err != nil {
			return err
		}
		for _, x := range list {
			key := fleet.DeviceKey(x.Labels)
			if devices[key] == nil {
				continue
			}
			for _, p := range x.Points {
				if at := time.UnixMilli(int64(p.Value * 1000)).UTC(); !at.Before(part.From) {
					found[key] = append(found[key], Span{at, at})
				}
			}
		}
	}
	return nil
}
