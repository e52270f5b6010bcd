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
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Folder is the name of the folder in that of a store.
const Folder = "days"

const (
	day = 24 * time.Hour
	// depends is how long after its end samples can still change an hour: which senders a device has
	// shows in them, too.
	depends = time.Hour
	// settled is how long after its end an hour is computed: by then what it depends on has arrived.
	// Later samples make it be computed again.
	settled = depends + 10*time.Minute
	// chunk is how many devices are computed at a time: a day of one takes a megabyte.
	chunk = 50
	// maxAhead is how many days are read before they are asked for.
	maxAhead = 8
	// maxParallel bounds the CPUs that one bill takes, and with chunk its memory.
	maxParallel = 4
	// maxLoaded bounds the rows in memory, of all days together.
	maxLoaded = 1_000_000
)

// Options configures Days.
type Options struct {
	// Samples returns the times of the oldest and the newest sample, zero if there is none.
	Samples func() (oldest, newest time.Time)
	// Devices returns the UUIDs with device time counters in a period.
	Devices func(ctx context.Context, from, to time.Time) ([]string, error)
	// Keep is how long days are kept, counted from the newest sample; 0: for ever.
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
	last   map[[3]int64]*partial
	next   time.Time          // the day after the one that was asked for last
	full   bool               // the last file could not be written
	done   map[time.Time]bool // days that Run has completed

	naming sync.RWMutex
	rows   map[string]rowID // by key

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
		loaded: map[time.Time]*kept{}, last: map[[3]int64]*partial{}, rows: map[string]rowID{}, done: map[time.Time]bool{},
	}
	if err := d.marks.open(filepath.Join(dir, "late")); err != nil {
		return nil, err
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot list the kept days: %w", err)
	}
	for _, f := range list {
		if strings.Contains(f.Name(), tmpExt) { // a kill left it
			if err := os.Remove(filepath.Join(dir, f.Name())); err != nil {
				return nil, fmt.Errorf("cannot delete an incomplete file: %w", err)
			}
		}
	}
	for _, f := range slices.Backward(list) {
		if t, aside, ok := parseName(f.Name()); ok && !aside {
			k, err := d.load(t)
			if err != nil {
				return nil, err
			}
			if k != nil {
				d.raise(k)
				break
			}
		}
	}
	return d, nil
}

// raise moves the watermark to the end of what the hours of a day depend on.
func (d *Days) raise(k *kept) {
	end := k.day.Add(time.Duration(k.hours)*time.Hour + depends).UnixMilli()
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

// begin waits for the turn.
func (d *Days) begin(ctx context.Context) error {
	select {
	case d.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end passes the turn on.
func (d *Days) end() { <-d.turn }

// Usage implements fleet.Keeper.
func (d *Days) Usage(ctx context.Context, midnight, at time.Time) (*fleet.Day, error) {
	if err := d.begin(ctx); err != nil {
		return nil, err
	}
	defer d.end()
	d.ahead(midnight)
	k, err := d.complete(ctx, midnight, at)
	if err != nil {
		return nil, err
	}
	open, err := d.open(ctx, k, at)
	if err != nil {
		return nil, err
	}
	full := min(int(at.Sub(midnight)/time.Hour), k.hours)
	if full < 24 {
		if err := d.fill(k); err != nil {
			return nil, err
		}
	}
	from := midnight.Add(time.Duration(full) * time.Hour)
	out := k.upTo(full, from)
	if out.Kept = from; from.Before(at) {
		if d.interpolates(k, from) {
			out.Kept = at
		}
		if full < k.hours {
			p, err := d.partial(ctx, k, from, at)
			if err != nil {
				return nil, err
			}
			open = p.used
		}
		open.Until(at).AddTo(out)
	}
	if out.Known, err = d.known(ctx, midnight); err != nil {
		return nil, err
	}
	if full < 24 {
		out.Sort()
	}
	return out, nil
}

// open returns the usage after the last kept hour of a day, up to a moment if that is later. Its
// samples may end gaps that began in a kept hour: then devices are computed again.
func (d *Days) open(ctx context.Context, k *kept, at time.Time) (*fleet.Used, error) {
	end := k.day.Add(time.Duration(k.hours) * time.Hour)
	if k.hours == 24 {
		next, err := d.load(end)
		if err != nil {
			return nil, err
		}
		if next != nil && next.hours > 0 {
			return nil, nil // done when that hour was kept
		}
	}
	edges := []time.Time{end.Add(time.Hour)}
	if at.After(end) {
		edges = append(edges, at)
	}
	p, err := d.partial(ctx, k, end, edges...)
	if err != nil {
		return nil, err
	}
	var again []string
	for _, x := range p.used.Devices {
		if !p.spread && d.reaches(x, k.devices[x.Key], end) {
			again = append(again, uuidOf(x))
		}
	}
	again = append(again, d.marks.take(k.day)...)
	if len(again) == 0 || k.hours == 0 {
		p.spread = true
		return p.used, nil
	}
	if err := d.again(ctx, k, again); err != nil {
		d.marks.restore(k.day, again)
		d.forget(k.day)
		return nil, err
	}
	p.spread = true
	d.save(k)
	return p.used, nil
}

// partial is the usage after the start of an hour.
type partial struct {
	newest time.Time
	marks  int  // number of marks at the time
	marked bool // further samples are marked
	spread bool // gaps that it ends are part of the kept hours
	used   *fleet.Used
}

// partial returns the usage from an hour to some moments. It stays in memory while no sample changes
// it.
func (d *Days) partial(ctx context.Context, k *kept, from time.Time, edges ...time.Time) (*partial, error) {
	slices.SortFunc(edges, time.Time.Compare)
	edges = slices.CompactFunc(edges, time.Time.Equal)
	if d.interpolates(k, from) {
		return &partial{used: k.interpolate(from, edges)}, nil
	}
	_, newest := d.o.Samples()
	key := [3]int64{from.UnixMilli(), edges[0].UnixMilli(), edges[len(edges)-1].UnixMilli()}
	marks := d.marks.total()
	if p, ok := d.last[key]; ok && p.marks == marks && (p.marked || p.newest.Equal(newest)) {
		return p, nil
	}
	marked := edges[len(edges)-1].Add(time.Hour).UnixMilli() < d.watermark.Load() // an hour depends on the next one
	used, err := d.compute(ctx, from, edges, nil)
	if err != nil {
		return nil, err
	}
	if len(d.last) >= 8 {
		clear(d.last)
	}
	p := &partial{newest: newest, marks: marks, marked: marked, used: used}
	d.last[key] = p
	return p, nil
}

// interpolates reports whether the samples of an hour are gone.
func (d *Days) interpolates(k *kept, from time.Time) bool {
	oldest, _ := d.o.Samples()
	return oldest.IsZero() || from.Before(oldest) && k.gone(oldest)
}

// known reports whether there was usage in the day before.
func (d *Days) known(ctx context.Context, midnight time.Time) (bool, error) {
	k, err := d.load(midnight.Add(-day))
	if err != nil || k != nil && len(k.devices) > 0 {
		return err == nil, err
	}
	list, err := d.o.Devices(ctx, midnight.Add(-day), midnight)
	return len(list) > 0, err
}
