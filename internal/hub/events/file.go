package events

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpumeter/gpumeter/internal/hub/share"
)

// Options configures a File. All fields are required.
type Options struct {
	MaxBytes  int64         // of all files
	Retention time.Duration // of events
	Now       func() time.Time
	// Evicted is called when n events of a node were deleted before the oldest of others. alone
	// means that there are no other nodes.
	Evicted func(node share.Node, n int, alone bool)
}

const (
	// segments is the number of files. A full log deletes one file at a time.
	segments = 16
	// remembered is the number of recent events kept for deduplication, so that a retried
	// request, and a record that two processes send, are stored once.
	remembered = 20_000
	ext        = ".jsonl"
)

var _ Log = (*File)(nil)

// File is a log in a directory: JSON lines in files that are written one after
// the other and deleted oldest first. It is safe for concurrent use.
type File struct {
	dir string
	opt Options

	mu    sync.RWMutex
	files []segment // oldest first; the last one is being written
	out   *os.File
	known map[uint64]bool
	order []uint64 // keys of known, oldest first

	kept, dropped, cut uint64
	changes            uint64 // files that were rewritten
}

// segment is one file with its time range.
type segment struct {
	number      int
	size        int64
	first, last time.Time            // zero if the file is empty
	by          map[share.Kind]int64 // bytes
}

// Open opens the log in dir and creates it if necessary. A truncated record at
// the end of a file, left by a kill, is removed: it was never acknowledged.
func Open(dir string, o Options) (*File, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("cannot create the event directory: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot read the event directory: %w", err)
	}
	f := &File{dir: dir, opt: o, known: map[uint64]bool{}}
	for _, e := range entries {
		number, err := strconv.Atoi(strings.TrimSuffix(e.Name(), ext))
		if err == nil && filepath.Ext(e.Name()) == ext {
			f.files = append(f.files, segment{number: number})
		}
	}
	slices.SortFunc(f.files, func(a, b segment) int { return a.number - b.number })
	if err := f.finishMerge(); err != nil {
		return nil, err
	}
	for i := range f.files {
		if err := f.load(&f.files[i]); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func (f *File) path(s segment) string {
	return filepath.Join(f.dir, fmt.Sprintf("%08d%s", s.number, ext))
}

// load indexes a file and removes a truncated record at its end.
func (f *File) load(s *segment) error {
	text, err := os.ReadFile(f.path(*s))
	if err != nil {
		return fmt.Errorf("cannot read events: %w", err)
	}
	whole := bytes.LastIndexByte(text, '\n') + 1
	if whole < len(text) {
		if err := os.Truncate(f.path(*s), int64(whole)); err != nil {
			return fmt.Errorf("cannot remove a truncated event: %w", err)
		}
	}
	s.size = int64(whole)
	each(text[:whole], func(e *Event, line []byte) {
		s.stretch(e.Time)
		s.count(e, line)
		f.remember(identity(e, line))
	})
	return nil
}

func (s *segment) stretch(t time.Time) {
	if s.first.IsZero() || t.Before(s.first) {
		s.first = t
	}
	if t.After(s.last) {
		s.last = t
	}
}

// remember records the identity of a stored event.
func (f *File) remember(h uint64) {
	if f.known[h] {
		return
	}
	if len(f.order) == remembered {
		delete(f.known, f.order[0])
		f.order = f.order[1:]
	}
	f.known[h] = true
	f.order = append(f.order, h)
}

// Append adds events to the log. Events already stored are not added again. Once it returns
// nil, the events survive a kill of the process.
func (f *File) Append(events []Event) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var text []byte
	var hashes []uint64
	added := map[uint64]bool{}
	var times segment // of the new lines
	for i := range events {
		line, cut, err := marshal(events[i])
		if err != nil {
			return err
		}
		h := identity(&events[i], line)
		if f.known[h] || added[h] {
			continue
		}
		added[h] = true
		if cut {
			f.cut++
		}
		hashes = append(hashes, h)
		times.stretch(events[i].Time)
		times.count(&events[i], line)
		text = append(append(text, line...), '\n')
	}
	if len(text) == 0 {
		return nil
	}
	if err := f.write(text); err != nil {
		return fmt.Errorf("cannot write events: %w", err)
	}
	s := &f.files[len(f.files)-1]
	s.size += int64(len(text))
	s.stretch(times.first)
	s.stretch(times.last)
	for k, n := range times.by {
		s.add(k, n)
	}
	for _, h := range hashes {
		f.remember(h)
	}
	f.kept += uint64(len(hashes))
	return nil
}

// write appends text to the last file, or to a new one if that is full. If it fails,
// nothing is written.
func (f *File) write(text []byte) error {
	if n := len(f.files); n == 0 || f.files[n-1].size > 0 && f.files[n-1].size+int64(len(text)) > f.opt.MaxBytes/segments {
		if err := f.rotate(); err != nil {
			return err
		}
	}
	s := f.files[len(f.files)-1]
	if f.out == nil {
		out, err := os.OpenFile(f.path(s), os.O_CREATE|os.O_WRONLY|os.O_APPEND|syscall.O_NOFOLLOW, 0o640)
		if err != nil {
			return err
		}
		f.out = out
	}
	if _, err := f.out.Write(text); err != nil {
		return errors.Join(err, f.out.Truncate(s.size))
	}
	return nil
}

// rotate starts a new file and deletes old ones.
func (f *File) rotate() error {
	if f.out != nil {
		if err := f.out.Close(); err != nil {
			return err
		}
		f.out = nil
	}
	number := 1
	if n := len(f.files); n > 0 {
		number = f.files[n-1].number + 1
	}
	f.files = append(f.files, segment{number: number})
	total := int64(0)
	for _, s := range f.files {
		total += s.size
	}
	oldest := f.newest().Add(-f.opt.Retention)
	most := f.opt.MaxBytes - f.opt.MaxBytes/segments
	total -= f.evict(total - most)
	for len(f.files) > 1 && (total > most || f.files[0].last.Before(oldest)) {
		if err := os.Remove(f.path(f.files[0])); err != nil && !os.IsNotExist(err) {
			return err
		}
		total -= f.files[0].size
		f.files = f.files[1:]
		f.dropped++
	}
	return nil
}

// newest returns the time of the newest event, but not a time in the future. Either clock may be
// ahead, that of the hub or that of a sender, and age must not count from there.
func (f *File) newest() time.Time {
	var newest time.Time
	for _, s := range f.files {
		if s.last.After(newest) {
			newest = s.last
		}
	}
	if now := f.opt.Now(); now.Before(newest) {
		return now
	}
	return newest
}

// Close closes the log.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.out == nil {
		return nil
	}
	out := f.out
	f.out = nil
	return out.Close()
}
