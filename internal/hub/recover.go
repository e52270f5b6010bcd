package hub

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/prometheus/prometheus/tsdb/record"
	"github.com/prometheus/prometheus/tsdb/wlog"
	"github.com/prometheus/prometheus/util/compression"
	"golang.org/x/sys/unix"
)

// takeLock locks the directory for this process until dropLock.
func takeLock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return nil, fmt.Errorf("cannot write to the store directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another hub uses the store in %s: %w", dir, err), f.Close())
	}
	return f, nil
}

// dropLock unlocks a directory. Closing the file alone would leave it locked for as long as a
// child that was forked meanwhile has not executed its program.
func dropLock(f *os.File) error {
	return errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_UN), f.Close())
}

// mend repairs the database in dir after a kill, before it is opened. No other process may
// have it open.
//
// Out-of-order samples are in a log until they are in a chunk on disk; then a marker in the
// log says so. Chunks are written late, so after a kill some markers refer to chunks that do
// not exist. The database detects that by chunk number, but only once: after a second kill
// other chunks have these numbers, and the samples would be skipped. Therefore the markers
// are removed: the whole log is replayed, and samples that are also in a chunk exist twice,
// which queries do not show.
func mend(dir string, log *slog.Logger) error {
	wbl := filepath.Join(dir, wlog.WblDirName)
	old, made := wbl+".old", wbl+".tmp"
	if _, err := os.Stat(wbl); errors.Is(err, fs.ErrNotExist) {
		if err := os.Rename(old, wbl); err != nil { // killed during an earlier repair
			return ignoreMissing(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "lock")); err != nil {
		return ignoreMissing(err) // cleanly closed
	}
	if err := errors.Join(os.RemoveAll(old), os.RemoveAll(made)); err != nil {
		return err
	}
	if err := withoutMarks(wbl, made, log); err != nil {
		return err
	}
	if err := errors.Join(os.Rename(wbl, old), os.Rename(made, wbl)); err != nil {
		return err
	}
	return os.RemoveAll(old)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// withoutMarks copies a log without markers and without a truncated record at its end.
func withoutMarks(from, to string, log *slog.Logger) (err error) {
	segments, err := wlog.NewSegmentsReader(from)
	if err != nil {
		return err
	}
	defer segments.Close()
	w, err := wlog.New(log, nil, to, compression.Snappy)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	r := wlog.NewReader(segments)
	d := record.NewDecoder(nil, log)
	for r.Next() {
		if rec := r.Record(); d.Type(rec) != record.MmapMarkers {
			if err := w.Log(rec); err != nil {
				return err
			}
		}
	}
	if r.Err() != nil {
		log.Info("the out-of-order log ends in a truncated record, which was never acknowledged", "reason", r.Err())
	}
	return nil
}
