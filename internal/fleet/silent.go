package fleet

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/query"
)

// A device is silent if the store has samples of it from the last day, but none recent enough to
// be current: its node or its agent is gone, or cannot reach the store. A silent device stays in
// the fleet, with the time of its last sample and without any value, for SilentFor. After that it
// counts as removed. Fleet rules report the same devices as missing, with the same lookback.

// SilentFor is how long a device that no longer reports stays in the fleet.
const SilentFor = day

// How finely the last day is searched for devices. A device that reported for less than a step
// may be overlooked if nobody watched at that time.
const (
	silentStep = time.Hour
	// lookback is how old the newest sample of a series may be to be current, in all stores.
	lookback  = 5 * time.Minute
	sinceStep = lookback * 4 / 5
)

// Silent reports whether the device no longer reports.
func (d *Device) Silent() bool { return !d.Since.IsZero() }

// roster remembers which devices reported in the last day, so that the store is searched only
// once. It belongs to the moments before upto.
type roster struct {
	upto  time.Time
	whole bool                 // the store shows the whole fleet
	last  map[string]time.Time // when a device was seen last, by DeviceKey
	gone  map[string]*lost     // silent devices, by DeviceKey
}

// lost is what a silent device was.
type lost struct {
	labels query.Labels
	since  time.Time
}

// silent adds the devices to a fleet that reported in the day before and do not report now.
func (r *Reader) silent(ctx context.Context, f *Fleet) error {
	if r.o.Restricted {
		return nil
	}
	r.rosterMu.Lock()
	defer r.rosterMu.Unlock()
	all, past := r.roster, false
	switch {
	case all == nil || f.At.Sub(all.upto) >= SilentFor:
		all = newRoster(f.At)
	case f.At.Before(all.upto.Add(-lookback)): // someone looks at the past
		all, past = newRoster(f.At), true
	}
	if err := r.watch(ctx, all, f); err != nil {
		return err
	}
	if !past {
		r.roster = all
	}
	for _, key := range slices.Sorted(maps.Keys(all.gone)) {
		if _, ok := f.Index[key]; ok {
			continue // an older answer may not know yet that the device is gone
		}
		x := all.gone[key]
		d := r.device(x.labels)
		d.Since = x.since
		f.Index[key] = len(f.Devices)
		f.Devices = append(f.Devices, d)
	}
	return nil
}

func newRoster(at time.Time) *roster {
	return &roster{upto: at.Add(-SilentFor), last: map[string]time.Time{}, gone: map[string]*lost{}}
}

// watch brings a roster up to the time of a fleet of devices that report.
func (r *Reader) watch(ctx context.Context, all *roster, f *Fleet) error {
	if !all.whole {
		var err error
		if all.whole, err = r.whole(ctx, f.At); err != nil || !all.whole {
			return err
		}
	}
	if gap := f.At.Sub(all.upto); gap > lookback {
		if err := r.search(ctx, all, f.At, min(silentStep, max(gap/4, sinceStep))); err != nil {
			return err
		}
	}
	for i := range f.Devices {
		all.last[f.Devices[i].Key()] = f.At
		delete(all.gone, f.Devices[i].Key())
	}
	if f.At.After(all.upto) {
		all.upto = f.At
	}
	found := map[time.Time][]string{} // newly silent, by when they were seen
	for key, at := range all.last {
		switch {
		case f.At.Sub(at) > SilentFor:
			delete(all.last, key)
			delete(all.gone, key)
		case at.Before(f.At) && all.gone[key] == nil:
			uuid, _, _ := strings.Cut(key, "\xff")
			found[at] = append(found[at], uuid)
		}
	}
	for at, uuids := range found {
		if err := r.identify(ctx, all, uuids, at); err != nil {
			return err
		}
	}
	return nil
}

// everyone matches series without a team and a namespace, of a node or of a device that is free or
// shared.
var everyone = "count ({" + LabelName + `=~"` + SeriesUp + "|" + SeriesAttribution + `",` + LabelTeam + `="",` + LabelNamespace + `=""})`

// whole reports whether a store shows more than some teams or namespaces. The series of a device
// that a team sees end with its workload, which says nothing about the device.
func (r *Reader) whole(ctx context.Context, at time.Time) (bool, error) {
	now, err := r.store.Instant(ctx, everyone, at)
	if err != nil || len(now) > 0 {
		return len(now) > 0, err
	}
	day, err := r.store.Range(ctx, everyone, at.Add(-SilentFor), at, silentStep)
	return len(day) > 0, err
}

// search looks for devices that reported between the last look and at. Queries of moments cost
// less than one of the whole period, which decodes every sample.
func (r *Reader) search(ctx context.Context, all *roster, at time.Time, step time.Duration) error {
	for t := all.upto; t.Before(at); t = t.Add(step) {
		list, err := r.store.Instant(ctx, perDevice(SeriesUp), t)
		if err != nil {
			return err
		}
		for _, s := range list {
			all.last[DeviceKey(s.Labels)] = t
		}
	}
	return nil
}

// identify adds silent devices, which were seen at a moment, to a roster.
func (r *Reader) identify(ctx context.Context, all *roster, uuids []string, at time.Time) error {
	for _, match := range AnyOf(LabelUUID, uuids) {
		samples, err := r.store.Instant(ctx, r.identity(match), at)
		if err != nil {
			return err
		}
		f := r.identities(samples, at)
		for i := range f.Devices {
			if key := f.Devices[i].Key(); all.last[key].Equal(at) { // another host may have the same ID
				all.gone[key] = &lost{labels: f.Devices[i].Labels, since: at}
			}
		}
		// The last sample came before the next look, after which it was no longer current.
		list, err := r.store.Range(ctx, Newest(match), at, at.Add(silentStep+lookback), sinceStep)
		if err != nil {
			return err
		}
		for _, s := range list {
			x := all.gone[DeviceKey(s.Labels)]
			if x == nil {
				continue
			}
			x.since = time.Time{}
			for _, p := range s.Points {
				if t := time.UnixMilli(int64(p.Value * 1000)).UTC(); t.After(x.since) {
					x.since = t
				}
			}
		}
	}
	return nil
}
