package events

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// Events implements Log. It reads files newest first, and no more than necessary.
func (f *File) Events(ctx context.Context, q Query) ([]Event, error) {
	if q.Limit <= 0 {
		q.Limit = DefaultLimit
	}
	if oldest := f.opt.Now().Add(-f.opt.Retention); q.From.Before(oldest) {
		q.From = oldest
	}
	for {
		f.mu.RLock()
		files, before := slices.Clone(f.files), f.changes
		f.mu.RUnlock()
		out, err := f.read(ctx, files, q)
		f.mu.RLock()
		changed := f.changes != before
		f.mu.RUnlock()
		if err != nil || !changed { // otherwise events may have moved to a file that was already read
			return out, err
		}
	}
}

// read returns the events of files that q selects.
func (f *File) read(ctx context.Context, files []segment, q Query) ([]Event, error) {
	var out []Event
	for _, s := range slices.Backward(files) {
		if s.size == 0 || !s.last.After(q.From) || !q.To.IsZero() && s.first.After(q.To) {
			continue
		}
		if len(out) >= q.Limit && !s.last.After(out[q.Limit-1].Time) {
			continue // every event in the file is older than those found
		}
		text, err := readFirst(f.path(s), s.size)
		if os.IsNotExist(err) {
			continue // the oldest file was deleted meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read events: %w", err)
		}
		each(text, func(e *Event, _ []byte) {
			if q.matches(e) {
				out = append(out, *e)
			}
		})
		slices.SortStableFunc(out, func(a, b Event) int { return b.Time.Compare(a.Time) })
		out = out[:min(len(out), q.Limit)]
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// readFirst returns the first n bytes of a file; the rest is being written.
func readFirst(path string, n int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text := make([]byte, n)
	got, err := f.ReadAt(text, 0)
	if int64(got) == n || errors.Is(err, io.EOF) { // the file was replaced by a shorter one
		err = nil
	}
	return text[:got], err
}
