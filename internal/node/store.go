package node

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gpumeter/gpumeter/internal/folder"
)

// store is the state directory. It is locked by one process.
type store struct {
	dir     string
	lock    *os.File
	writing chan error // nil: no write is in progress
	failed  bool       // outcome of the last write
}

const stateName = "state.json"

// openStore locks the state directory, creating it if needed.
func openStore(dir string) (*store, error) {
	if err := folder.Make(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "state.lock"), os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("%s is in use by another agent: %w", dir, err)
	}
	return &store{dir: dir, lock: lock}, nil
}

// load returns the state of this boot, or nil if there is none. An unusable file is moved
// aside, and the error says why.
func (s *store) load(boot string, now time.Time) (*state, error) {
	path := filepath.Join(s.dir, stateName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the first start
	}
	var st *state
	if err == nil {
		st, err = decodeState(data, now)
	}
	if err != nil {
		bad := path + ".bad"
		return nil, errors.Join(fmt.Errorf("%w; moved to %s", err, bad), os.Rename(path, bad))
	}
	if st.Boot != boot || boot == "" {
		return nil, nil // counts start over with each boot
	}
	return st, nil
}

// write replaces the state file atomically, even across a power failure.
func (s *store) write(data []byte) error {
	tmp, err := os.CreateTemp(s.dir, stateName+".*.tmp")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), filepath.Join(s.dir, stateName))
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	d, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// close unlocks the directory. Closing the file alone would leave it locked for as long as a
// child that was forked meanwhile has not executed its program.
func (s *store) close() error {
	return errors.Join(syscall.Flock(int(s.lock.Fd()), syscall.LOCK_UN), s.lock.Close())
}

// keep opens the state directory at the first tick, and continues from its state.
func (v *View) keep(now time.Time) {
	if v.state != nil {
		return
	}
	v.state = newState(v.cfg.BootID, now)
	if v.cfg.StateDir == "" {
		return
	}
	store, err := openStore(v.cfg.StateDir)
	if err == nil {
		v.sweep(store.dir)
		st, bad := store.load(v.cfg.BootID, now)
		if bad != nil {
			v.cfg.Notify(Notice{Kind: StateReset, Err: bad})
		}
		if st != nil {
			v.state = st
			v.state.taken(now)
			if st.Health != nil {
				v.health.Restore(*st.Health, now)
			}
			maps.Copy(v.inbox.heard, st.Cursors) // no reader is running yet
		}
		var data []byte
		if data, err = v.state.encode(); err == nil {
			err = store.write(data)
		}
		if err != nil {
			err = errors.Join(err, store.close())
			v.state, v.inbox = newState(v.cfg.BootID, now), newInbox()
		}
	}
	if err != nil {
		v.cfg.Notify(Notice{Kind: StateNone, Err: err})
		return
	}
	v.store = store
}

// sweep removes temporary files of interrupted writes.
func (v *View) sweep(dir string) {
	left, _ := filepath.Glob(filepath.Join(dir, stateName+".*.tmp")) // the only error is a bad pattern
	for _, file := range left {
		_ = os.Remove(file) // on failure the next write fails, too, and reports it
	}
}

// save writes the state concurrently with the ticks, because a slow disk must not delay
// them. Only one write runs at a time.
func (v *View) save(now time.Time) (begun bool) {
	v.state.prune(now)
	if v.store == nil {
		return true
	}
	if !v.saved(false) {
		return false
	}
	data, err := v.freeze(now)
	v.store.writing = make(chan error, 1)
	go func(s *store) {
		if err == nil {
			err = s.write(data)
		}
		s.writing <- err
	}(v.store)
	return true
}

// freeze returns the encoded current state.
func (v *View) freeze(now time.Time) ([]byte, error) {
	for _, u := range v.units {
		v.state.remember(u, now)
	}
	kept := v.health.State()
	v.state.Health = &kept
	return v.state.encode()
}

// saved reports whether no write is in progress, and notifies if the outcome of the last
// one changed. If wait is set, it waits for a write in progress.
func (v *View) saved(wait bool) bool {
	s := v.store
	if s.writing == nil {
		return true
	}
	var err error
	if wait {
		err = <-s.writing
	} else {
		select {
		case err = <-s.writing:
		default:
			return false
		}
	}
	s.writing = nil
	v.wrote(err)
	return true
}

func (v *View) wrote(err error) {
	if (err != nil) != v.store.failed {
		v.store.failed = err != nil
		v.cfg.Notify(Notice{Kind: StateWrite, Err: err})
	}
}

// finish writes the state for the last time and unlocks the directory.
func (v *View) finish(now time.Time) error {
	if v.store == nil {
		return nil
	}
	v.saved(true)
	v.state.Clean = true
	data, err := v.freeze(now)
	if err == nil {
		err = v.store.write(data)
	}
	v.wrote(err)
	err = v.store.close()
	v.store = nil
	return err
}
