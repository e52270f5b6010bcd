// Package days keeps the usage of a fleet by the hour, in one file a day beside the samples. A bill
// of past days thus reads a few megabytes instead of every sample, and last year's bill can be made
// again when its samples are gone. Files have device time and energy of each row, and no money:
// prices may change.
//
// A file is a result of the samples, never a source: it is made again where samples arrive late,
// and where a gap ends that began before it. While its samples exist, a damaged or missing file
// costs only time.
package days

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

const (
	day = 24 * time.Hour
	// settled is how long after its end an hour is computed: by then its last samples and the
	// first ones after it have arrived. Later ones make it be computed again.
	settled = 10 * time.Minute
	// chunk is how many devices are computed at a time: a day of one takes a megabyte.
	chunk = 50
	// maxLoaded bounds the rows in memory, of all days together.
	maxLoaded = 1_000_000
)

// Options configures Days.
type Options struct {
	// Samples returns the times of the oldest and the newest sample, zero if there is none.
	Samples func() (oldest, newest time.Time)
	// Devices returns the UUIDs with device time counters in a period.
	Devices func(ctx context.Context, from, to time.Time) ([]string, error)
	// Keep is how long files are kept; 0: for ever.
	Keep time.Duration
	Log  *slog.Logger // nil: no logging
}

// Days is a store that keeps the usage of past hours.
type Days struct {
	query.Store
	o     Options
	dir   string
	hours *fleet.Hours

	// watermark is the time, in ms, up to which samples have been used.
	watermark atomic.Int64

	// turn is held by whoever uses the fields below.
	turn   chan struct{}
	loaded map[time.Time]*kept
	used   []time.Time // days in memory, the least recently used first
	last   map[[3]int64]partial
	rows   map[string]query.Labels // by key: days share them
	full   bool                    // the last file could not be written
	done   map[time.Time]bool      // days that Run has completed

	marks marks
}

var _ fleet.Keeper = (*Days)(nil)

// Open returns the Days of a store. dir is created if necessary.
func Open(dir string, store query.Store, o Options) (*Days, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("cannot create the folder of kept days: %w", err)
	}
	d := &Days{
		Store: store, o: o, dir: dir, hours: fleet.NewHours(store), turn: make(chan struct{}, 1),
		loaded: map[time.Time]*kept{}, last: map[[3]int64]partial{}, rows: map[string]query.Labels{}, done: map[time.Time]bool{},
	}
	if err := d.marks.open(filepath.Join(dir, "late")); err != nil {
		return nil, err
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot list the kept days: %w", err)
	}
	for i := len(list) - 1; i >= 0; i-- {
		if t, err := time.Parse(time.DateOnly+".day", list[i].Name()); err == nil {
			if k := d.load(t); k != nil {
				d.raise(k)
				break
			}
		}
	}
	return d, nil
}

// raise moves the watermark to the end of the hours of a day.
func (d *Days) raise(k *kept) {
	end := k.day.Add(time.Duration(k.hours)*time.Hour + fleet.Near).UnixMilli()
	for old := d.watermark.Load(); old < end; old = d.watermark.Load() {
		if d.watermark.CompareAndSwap(old, end) {
			return
		}
	}
}

// Late is called before a sample of a device is stored, with its time. If the sample belongs to an
// hour that was computed, the day of the device is computed again before it is next used.
func (d *Days) Late(uuid string, at time.Time) error {
	if at.UnixMilli() > d.watermark.Load() {
		return nil
	}
	today := at.UTC().Truncate(day)
	err := errors.Join(d.marks.add(today, uuid), d.marks.add(today.Add(day), uuid)) // the next day may continue from it
	if before := at.UTC().Add(-time.Hour).Truncate(day); before.Before(today) {
		err = errors.Join(err, d.marks.add(before, uuid))
	}
	return err
}

// Watermark returns the time, in ms, up to which Late must be told of samples.
func (d *Days) Watermark() int64 { return d.watermark.Load() }

// Usage implements fleet.Keeper.
func (d *Days) Usage(ctx context.Context, midnight, at time.Time) (*fleet.Day, error) {
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	k, err := d.complete(ctx, midnight, at)
	if err != nil {
		return nil, err
	}
	open, err := d.open(ctx, k, at)
	if err != nil {
		return nil, err
	}
	full := min(int(at.Sub(midnight)/time.Hour), k.hours)
	from := midnight.Add(time.Duration(full) * time.Hour)
	out := k.sum(full, from)
	if out.Kept = from; from.Before(at) {
		if d.interpolates(k, from) {
			out.Kept = at
		}
		if full < k.hours {
			if open, err = d.partial(ctx, k, from, at); err != nil {
				return nil, err
			}
		}
		open.Until(at).AddTo(out)
	}
	if out.Known, err = d.known(ctx, midnight); err != nil {
		return nil, err
	}
	out.Sort()
	return out, nil
}

// open returns the usage after the last kept hour of a day, up to a moment if that is later. Its
// samples may end gaps that began in a kept hour: then devices are computed again.
func (d *Days) open(ctx context.Context, k *kept, at time.Time) (*fleet.Used, error) {
	end := k.day.Add(time.Duration(k.hours) * time.Hour)
	if k.hours == 24 {
		if next := d.load(end); next != nil && next.hours > 0 {
			return nil, nil // done when that hour was kept
		}
	}
	edges := []time.Time{end.Add(time.Hour)}
	if at.After(end) {
		edges = append(edges, at)
	}
	used, err := d.partial(ctx, k, end, edges...)
	if err != nil {
		return nil, err
	}
	var again []string
	for _, x := range used.Devices {
		if d.reaches(x, k.devices[x.Key], end) {
			again = append(again, uuidOf(x))
		}
	}
	again = append(again, d.marks.take(k.day)...)
	if len(again) == 0 || k.hours == 0 {
		return used, nil
	}
	if err := d.again(ctx, k, again); err != nil {
		d.marks.restore(k.day, again)
		d.forget(k.day)
		return nil, err
	}
	d.save(k)
	return used, nil
}

// every is how often Run looks for hours that have ended.
const every = time.Minute

// Run computes hours that have ended, the newest day first, until ctx is canceled. It also deletes
// files that are older than Keep.
func (d *Days) Run(ctx context.Context) {
	clock := time.NewTicker(every)
	defer clock.Stop()
	failed := false
	for {
		err := d.advance(ctx)
		if err != nil && ctx.Err() == nil && !failed {
			d.o.Log.Warn("The usage of past hours cannot be computed", "error", err)
		}
		failed = err != nil
		select {
		case <-ctx.Done():
			return
		case <-clock.C:
		}
	}
}

// advance computes all hours that have ended.
func (d *Days) advance(ctx context.Context) error {
	oldest, newest := d.o.Samples()
	if newest.IsZero() {
		return nil
	}
	for t := newest.Add(-settled).Truncate(day); t.Add(day).After(oldest); t = t.Add(-day) {
		if d.done[t] && !d.marks.any(t) {
			continue
		}
		if err := d.keep(ctx, t); err != nil {
			return err
		}
	}
	return d.expire(newest)
}

// keep computes the hours of a day that have ended.
func (d *Days) keep(ctx context.Context, t time.Time) error {
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	k, err := d.complete(ctx, t, t.Add(day))
	if err == nil && k.hours == 24 {
		d.done[t] = true
	}
	return err
}

// expire deletes files that are older than Keep.
func (d *Days) expire(newest time.Time) error {
	if d.o.Keep == 0 {
		return nil
	}
	list, err := os.ReadDir(d.dir)
	if err != nil {
		return err
	}
	for _, f := range list {
		if t, err := time.Parse(time.DateOnly+".day", f.Name()); err == nil && newest.Sub(t) > d.o.Keep+day {
			if err := os.Remove(filepath.Join(d.dir, f.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// partial is the usage after the start of an hour.
type partial struct {
	from, newest time.Time
	marks        int  // number of marks at the time
	marked       bool // further samples are marked
	used         *fleet.Used
}

// partial returns the usage from an hour to some moments. It stays in memory while no sample changes
// it.
func (d *Days) partial(ctx context.Context, k *kept, from time.Time, edges ...time.Time) (*fleet.Used, error) {
	slices.SortFunc(edges, time.Time.Compare)
	edges = slices.CompactFunc(edges, time.Time.Equal)
	if d.interpolates(k, from) {
		return k.interpolate(from, edges), nil
	}
	_, newest := d.o.Samples()
	key := [3]int64{from.UnixMilli(), edges[0].UnixMilli(), edges[len(edges)-1].UnixMilli()}
	marks := d.marks.total()
	if p, ok := d.last[key]; ok && p.marks == marks && (p.marked || p.newest.Equal(newest)) {
		return p.used, nil
	}
	marked := edges[len(edges)-1].Add(time.Hour).UnixMilli() < d.watermark.Load() // an hour depends on the next one
	used, err := d.compute(ctx, from, edges, nil)
	if err != nil {
		return nil, err
	}
	if len(d.last) >= 8 {
		clear(d.last)
	}
	d.last[key] = partial{from, newest, marks, marked, used}
	return used, nil
}

// interpolates reports whether the samples of an hour are gone.
func (d *Days) interpolates(k *kept, from time.Time) bool {
	oldest, _ := d.o.Samples()
	return oldest.IsZero() || from.Before(oldest) && k.gone(oldest)
}

// known reports whether there was usage in the day before.
func (d *Days) known(ctx context.Context, midnight time.Time) (bool, error) {
	if k := d.load(midnight.Add(-day)); k != nil && len(k.devices) > 0 {
		return true, nil
	}
	list, err := d.o.Devices(ctx, midnight.Add(-day), midnight)
	return len(list) > 0, err
}

// complete returns a day with all hours up to a moment that have ended and settled.
func (d *Days) complete(ctx context.Context, midnight, at time.Time) (*kept, error) {
	k := d.load(midnight)
	if k == nil {
		k = &kept{day: midnight, devices: map[string]*device{}}
	}
	oldest, newest := d.o.Samples()
	if k.gone(oldest) {
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
	err := d.again(ctx, k, marked)
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
	used, err := d.compute(ctx, k.day, []time.Time{k.day.Add(time.Duration(k.hours) * time.Hour)}, uuids)
	if err != nil {
		return err
	}
	for _, x := range used.Devices {
		d.reaches(x, nil, k.day)
		k.devices[x.Key] = d.device(x)
	}
	return nil
}

// extend computes further hours of a day.
func (d *Days) extend(ctx context.Context, k *kept, hours int) error {
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
			if k := d.load(today.Add(-day)); k != nil {
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
	for t := since.Truncate(day); t.Before(today); t = t.Add(day) {
		if err := d.marks.add(t, uuidOf(x)); err != nil {
			d.o.Log.Warn("A kept day cannot be marked for recomputation", "day", t.Format(time.DateOnly), "error", err)
		}
	}
	return from.After(today)
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
	out := &fleet.Used{}
	for list := range slices.Chunk(uuids, chunk) {
		for _, match := range fleet.AnyOf(fleet.LabelUUID, list) {
			part, err := d.hours.Between(ctx, []string{match}, from, edges)
			if err != nil {
				return nil, err
			}
			out.Edges, out.Refused = part.Edges, out.Refused+part.Refused
			out.Devices = append(out.Devices, part.Devices...)
		}
	}
	return out, nil
}

// load returns a kept day, nil if there is none.
func (d *Days) load(t time.Time) *kept {
	if k := d.loaded[t]; k != nil {
		d.touch(t)
		return k
	}
	path := filepath.Join(d.dir, name(t))
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var k *kept
	if err == nil {
		k, err = decode(b, d.intern)
	}
	if err == nil && !k.day.Equal(t) {
		err = fmt.Errorf("the file is about %s", k.day.Format(time.DateOnly))
	}
	if err != nil {
		d.o.Log.Warn("A kept day cannot be read and is made again from samples", "file", path, "error", err)
		if err := os.Rename(path, path+".damaged"); err != nil {
			d.o.Log.Warn("A damaged file cannot be set aside", "file", path, "error", err)
		}
		return nil
	}
	d.remember(k)
	return k
}

func (d *Days) touch(t time.Time) {
	if i := slices.Index(d.used, t); i >= 0 {
		d.used = append(slices.Delete(d.used, i, i+1), t)
	}
}

// remember keeps a day in memory, and drops days that were not used for long.
func (d *Days) remember(k *kept) {
	if d.loaded[k.day] == nil {
		d.used = append(d.used, k.day)
	}
	d.loaded[k.day] = k
	d.touch(k.day)
	total := 0
	for _, x := range d.loaded {
		total += x.size()
	}
	for total > maxLoaded && len(d.used) > 1 {
		total -= d.loaded[d.used[0]].size()
		delete(d.loaded, d.used[0])
		d.used = d.used[1:]
	}
	if len(d.rows) > maxLoaded {
		clear(d.rows)
	}
}

func (k *kept) size() (n int) {
	for _, x := range k.devices {
		n += len(x.rows)
	}
	return n
}

// intern returns the labels of a key. Rows of all days share them.
func (d *Days) intern(key []byte) (string, query.Labels) {
	if l, ok := d.rows[string(key)]; ok {
		return string(key), l
	}
	k := string(key)
	d.rows[k] = labelsOf(k)
	return k, d.rows[k]
}

// forget drops a day from memory.
func (d *Days) forget(t time.Time) {
	delete(d.loaded, t)
	d.used = slices.DeleteFunc(d.used, t.Equal)
}

// save writes a day. If that fails, the day is used from memory, and made again after a restart.
func (d *Days) save(k *kept) {
	d.remember(k)
	d.raise(k)
	err := write(filepath.Join(d.dir, name(k.day)), k.encode())
	if err == nil {
		err = d.marks.write()
	}
	if err != nil && !d.full {
		d.o.Log.Warn("A day cannot be kept: bills take longer", "error", err)
	}
	d.full = err != nil
}
