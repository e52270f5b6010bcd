package hub

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/hub/disk"
)

// takeLock locks the directory for this process until dropLock.
func takeLock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return nil, fmt.Errorf("cannot write to the store directory: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	for range 3 { // gpumeter hub check holds the lock for an instant
		if !errors.Is(err, unix.EWOULDBLOCK) {
			break
		}
		time.Sleep(50 * time.Millisecond)
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("another hub uses the store in %s: %w", dir, err), f.Close())
	}
	return f, nil
}

// dropLock unlocks a directory. Closing the file alone would leave it locked for as long as a
// child that was forked meanwhile has not executed its program.
func dropLock(f *os.File) error {
	return errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_UN), f.Close())
}

// mend repairs the directory before the database opens it. If there is not enough room on the
// disk, nothing is changed.
func (s *Store) mend() error {
	plan, err := disk.Examine(s.dir)
	if err != nil {
		return fmt.Errorf("cannot examine the store in %s: %w", s.dir, err)
	}
	found, err := plan.Apply(s.opt.Now())
	for _, d := range found {
		s.logDamage(d)
	}
	if full, ok := errors.AsType[*disk.RoomError](err); ok {
		return fmt.Errorf("cannot open the store: %w; nothing was changed", full)
	}
	if err != nil {
		return fmt.Errorf("cannot repair the store in %s: %w", s.dir, err)
	}
	if s.damaged, err = disk.ListDamaged(s.dir); err != nil {
		return fmt.Errorf("cannot read what was set aside: %w", err)
	}
	return nil
}

// room returns an error if the disk is too full to accept samples.
func (s *Store) room() error {
	return disk.CheckRoom(s.dir, disk.Reserve+disk.SeriesReserve*int64(s.db.Head().NumSeries())+disk.SampleReserve*s.unwritten.Load()) //nolint:gosec // far below the limit
}

// wrote counts samples whose chunks the database has yet to write. It writes them once a minute, or
// later if it is busy; in between, a fleet that was disconnected may send as much as fits on the disk.
func (s *Store) wrote(samples int) {
	if s.unwritten.Add(int64(samples)) > max(1<<20, 8*int64(s.db.Head().NumSeries())) { //nolint:gosec // far below the limit
		s.db.ForceHeadMMap()
		s.unwritten.Store(0)
	}
}

// closeDB closes the database. If the database could not write everything, the next start has to
// know.
func (s *Store) closeDB() (err error) {
	defer func() {
		if r := recover(); r != nil { // the database panics if it cannot write a chunk
			err = fmt.Errorf("cannot write the newest chunks, which the log also has: %v", r)
		}
		if err != nil {
			_ = os.WriteFile(filepath.Join(s.dir, "tsdb", "lock"), nil, 0o640) // best effort, as the disk may be full
		}
	}()
	return s.db.Close()
}
