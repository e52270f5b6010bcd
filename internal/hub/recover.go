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

// takeLock makes sure that one process at a time has the folder, until the file is closed.
func takeLock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o640)
	if err != nil {
		return nil, fmt.Errorf("cannot write to the folder of the store: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another hub has the store in %s: %w", dir, err), f.Close())
	}
	return f, nil
}

// mend prepares the database in dir for being opened after it was killed. Nobody else may
// have it open.
//
// Samples out of order are in a log until they are in a chunk on disk, and then a mark in
// that log says so. Chunks are written late: of a process that was killed, marks name
// chunks that do not exist. The database sees that by their numbers, once. After a second
// kill there are other chunks of these numbers, and what the marks are about is left out.
// So marks do not outlive their process: without them all of the log is read again, and
// what is in a chunk as well is there twice, which queries do not show.
func mend(dir string, log *slog.Logger) error {
	wbl := filepath.Join(dir, wlog.WblDirName)
	old, made := wbl+".old", wbl+".tmp"
	if _, err := os.Stat(wbl); errors.Is(err, fs.ErrNotExist) {
		if err := os.Rename(old, wbl); err != nil { // a kill in here
			return ignoreMissing(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "lock")); err != nil {
		return ignoreMissing(err) // it was closed
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

// withoutMarks copies a log. The half of a record that a kill leaves is not copied.
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
		log.Info("the log of samples out of order ends in half a record, which nobody was told is kept", "reason", r.Err())
	}
	return nil
}
