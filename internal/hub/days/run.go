package days

import (
	"context"
	"os"
	"path/filepath"
	"time"
)

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
		if t, aside, ok := parseName(f.Name()); ok && !aside && newest.Sub(t) > d.o.Keep+day {
			if err := os.Remove(filepath.Join(d.dir, f.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
