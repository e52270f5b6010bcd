package days

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// every is how often Run looks for hours that have ended.
const every = time.Minute

// Run computes hours that have ended, the newest day first, until ctx is canceled. It also deletes
// days that are older than Keep.
func (d *Days) Run(ctx context.Context) {
	clock := time.NewTicker(every)
	defer clock.Stop()
	failed := false
	for {
		err := d.advance(ctx)
		if err != nil && ctx.Err() == nil && !failed {
			d.o.Log.Warn("The usage of past hours cannot be kept", "error", err)
		}
		failed = err != nil
		select {
		case <-ctx.Done():
			return
		case <-clock.C:
		}
	}
}

// advance computes all hours that have ended, and deletes days that are too old.
func (d *Days) advance(ctx context.Context) error {
	oldest, newest := d.o.Samples()
	if newest.IsZero() {
		return nil
	}
	first := d.first(newest)
	for t := newest.Add(-settled).Truncate(day); t.Add(day).After(oldest) && !t.Before(first); t = t.Add(-day) {
		if d.done[t] && !d.marks.any(t) {
			continue
		}
		if err := d.keep(ctx, t); err != nil {
			return err
		}
	}
	return d.expire(ctx, first)
}

// first returns the first day to keep: that of the moment Keep before the newest sample. As with the
// retention of samples, a hub whose clock is ahead deletes nothing, and a fleet that stopped keeps all.
func (d *Days) first(newest time.Time) time.Time {
	if d.o.Keep == 0 {
		return time.Time{}
	}
	return newest.Add(-d.o.Keep).Truncate(day)
}

// keep computes the hours of a day that have ended.
func (d *Days) keep(ctx context.Context, t time.Time) error {
	if err := d.begin(ctx); err != nil {
		return err
	}
	defer d.end()
	k, err := d.complete(ctx, t, t.Add(day))
	if err == nil && k.hours == 24 {
		d.done[t] = true
	}
	return err
}

// expire deletes all days before the first one to keep, with their marks and what was set aside of them.
func (d *Days) expire(ctx context.Context, first time.Time) error {
	if err := d.begin(ctx); err != nil {
		return err
	}
	defer d.end()
	list, err := os.ReadDir(d.dir)
	if err != nil {
		return fmt.Errorf("cannot list the kept days: %w", err)
	}
	for _, f := range list {
		t, _, ok := parseName(f.Name())
		if !ok || !t.Before(first) {
			continue
		}
		if err := os.Remove(filepath.Join(d.dir, f.Name())); err != nil {
			return fmt.Errorf("cannot delete an old day: %w", err)
		}
		d.forget(t)
		delete(d.done, t)
	}
	return d.marks.drop(first)
}
