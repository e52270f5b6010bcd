package days

import (
	"context"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpumeter/gpumeter/internal/fleet"
)

// complete returns a day with all hours up to a moment that have ended and settled.
func (d *Days) complete(ctx context.Context, midnight, at time.Time) (*kept, error) {
	k, err := d.load(midnight)
	if err != nil {
		return nil, err
	}
	if k == nil {
		k = &kept{day: midnight, devices: map[string]*device{}}
	}
	oldest, newest := d.o.Samples()
	if k.gone(oldest) || k.hours == 0 && midnight.Add(day+time.Hour).Before(oldest) { // the last hour depends on the next one
		return k, nil
	}
	hours := min(24, max(0, int(newest.Add(-settled).Sub(midnight)/time.Hour)))
	marked := d.marks.take(midnight)
	more := k.hours < hours && midnight.Add(time.Duration(k.hours)*time.Hour).Before(at)
	if len(marked) == 0 && !more {
		return k, nil
	}
	if first := oldest.UnixMilli(); k.hours == 0 || first < k.begin {
		k.begin = first
	}
	err = d.again(ctx, k, marked)
	if err == nil && more {
		err = d.extend(ctx, k, hours)
	}
	if err != nil {
		d.marks.restore(midnight, marked)
		d.forget(midnight) // it may have been changed in part
		return nil, err
	}
	clear(d.last)
	d.save(k)
	return k, nil
}

// again computes devices of a day again.
func (d *Days) again(ctx context.Context, k *kept, uuids []string) error {
	if len(uuids) == 0 || k.hours == 0 {
		return nil
	}
	if err := d.fill(k); err != nil {
		return err
	}
	k.whole = nil
	used, err := d.compute(ctx, k.day, []time.Time{k.day.Add(time.Duration(k.hours) * time.Hour)}, uuids)
	if err != nil {
		return err
	}
	for _, x := range used.Devices {
		// A late sample that ends a gap across midnight has marked the day before, see Late, but none
		// before that. If each day that is computed again marked the one before, devices with a sample
		// every few minutes would never be done.
		if !x.Touched.IsZero() {
			d.mark(x, x.Touched, k.day.Add(-day))
		}
		k.devices[x.Key] = d.device(x)
	}
	return nil
}

// extend computes further hours of a day.
func (d *Days) extend(ctx context.Context, k *kept, hours int) error {
	k.whole = nil
	from, to := k.day.Add(time.Duration(k.hours)*time.Hour), k.day.Add(time.Duration(hours)*time.Hour)
	d.raise(&kept{day: k.day, hours: hours}) // samples that arrive from now on are late
	used, err := d.compute(ctx, from, []time.Time{to}, nil)
	if err != nil {
		return err
	}
	k.refused += used.Refused
	var again []string
	for _, x := range used.Devices {
		if d.reaches(x, k.devices[x.Key], from) {
			again = append(again, uuidOf(x))
		}
		k.devices[x.Key] = k.devices[x.Key].append(d.device(x), k.hours)
	}
	k.hours = hours
	for _, x := range k.devices {
		x.pad(hours)
	}
	return d.again(ctx, k, again)
}

// reaches reports whether samples of a device after from change earlier hours of the same day, and
// marks the earlier days that they change.
func (d *Days) reaches(x *fleet.UsedDevice, old *device, from time.Time) bool {
	today := from.Truncate(day)
	since := x.Touched
	if since.IsZero() && !x.Crossed.IsZero() {
		if old == nil {
			if k, err := d.load(today.Add(-day)); err == nil && k != nil { // without it more is computed again than necessary
				old = k.devices[x.Key]
			}
		}
		if old == nil || old.seen < x.Crossed.UnixMilli() {
			since = from.Add(-fleet.Near)
		}
	}
	if since.IsZero() {
		return false
	}
	d.mark(x, since, today)
	return from.After(today)
}

// mark marks the days of a device from that of a moment up to another day.
func (d *Days) mark(x *fleet.UsedDevice, since, until time.Time) {
	for t := since.Truncate(day); t.Before(until); t = t.Add(day) {
		if err := d.marks.add(t, uuidOf(x)); err != nil {
			d.o.Log.Warn("A kept day cannot be marked for recomputation", "day", t.Format(time.DateOnly), "error", err)
		}
	}
}

func uuidOf(x *fleet.UsedDevice) string { return x.Rows[0][fleet.LabelUUID] }

// compute returns the usage of devices, all of them if uuids is nil.
func (d *Days) compute(ctx context.Context, from time.Time, edges []time.Time, uuids []string) (*fleet.Used, error) {
	if uuids == nil {
		var err error
		if uuids, err = d.o.Devices(ctx, from.Add(-time.Hour), edges[len(edges)-1].Add(time.Hour)); err != nil {
			return nil, err
		}
	}
	var matches []string
	for list := range slices.Chunk(uuids, chunk) {
		matches = append(matches, fleet.AnyOf(fleet.LabelUUID, list)...)
	}
	parts := make([]*fleet.Used, len(matches))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(min(maxParallel, runtime.GOMAXPROCS(0)))
	for i := range matches {
		group.Go(func() (err error) {
			parts[i], err = d.hours.Between(ctx, matches[i:i+1], from, edges)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	out := &fleet.Used{}
	for _, part := range parts {
		out.Edges, out.Refused = part.Edges, out.Refused+part.Refused
		out.Devices = append(out.Devices, part.Devices...)
	}
	return out, nil
}
