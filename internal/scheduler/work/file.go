package work

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gpumeter/gpumeter/internal/folder"
)

const (
	version  = 1
	fileName = "work.json"
	// saveEvery is how often the file says whom was seen last, although nothing has been counted. It must be well below maxGap.
	saveEvery = time.Minute
	// maxFile bounds the file that is read: 5,000 jobs take less than a MiB.
	maxFile = 8 << 20
)

// file is the file of a Watch. One process has it.
type file struct {
	path string
	lock *os.File
}

func open(dir string) (*file, error) {
	if err := folder.Make(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "work.lock"), os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("%s is in use by another agent: %w", dir, err)
	}
	return &file{filepath.Join(dir, fileName), lock}, nil
}

// load returns the state, nil if there is none. A file that cannot be used is moved aside.
func (f *file) load() (*state, error) {
	info, err := os.Stat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var b []byte
	if err == nil && info.Size() > maxFile {
		err = fmt.Errorf("it has %d bytes", info.Size())
	}
	if err == nil {
		b, err = os.ReadFile(f.path)
	}
	var s *state
	if err == nil {
		s, err = parse(b)
	}
	if err != nil {
		bad := f.path + ".bad"
		return nil, errors.Join(fmt.Errorf("%w; moved to %s", err, bad), os.Rename(f.path, bad))
	}
	return s, nil
}

func parse(b []byte) (*state, error) {
	var s state
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("not a file of first work: %w", err)
	}
	if s.Version != version {
		return nil, fmt.Errorf("a file of version %d, want %d", s.Version, version)
	}
	if s.Since.Unix() <= 0 || s.Jobs == nil || len(s.Jobs) > maxJobs || len(s.Sums) > maxClusters+1 {
		return nil, errors.New("an incomplete file of first work")
	}
	for _, j := range s.Jobs {
		if j == nil {
			return nil, errors.New("a job without a state in the file of first work")
		}
	}
	for _, sums := range s.Sums {
		if sums == nil || sums.Worked == nil || sums.Phases == nil {
			return nil, errors.New("sums without durations in the file of first work")
		}
	}
	return &s, nil
}

// save writes the file if something was counted, and else now and then.
func (w *Watch) save(now time.Time) error {
	if w.file == nil {
		w.written = w.totals()
		return nil
	}
	if !w.dirty && now.Sub(w.saved) < saveEvery && !now.Before(w.saved) {
		return nil
	}
	return w.write(now)
}

func (w *Watch) write(now time.Time) error {
	b, err := json.Marshal(&w.state)
	if err == nil {
		err = w.file.write(b)
	}
	if err != nil {
		return fmt.Errorf("cannot keep the first work of jobs: %w", err)
	}
	w.dirty, w.saved, w.written = false, now, w.totals()
	return nil
}

// write replaces the file, even across a power failure.
func (f *file) write(b []byte) error {
	dir := filepath.Dir(f.path)
	tmp := f.path + ".tmp"
	out, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = out.Write(b)
	if err = errors.Join(err, out.Sync(), out.Close()); err == nil {
		err = os.Rename(tmp, f.path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Close writes the file for the last time and gives it up.
func (w *Watch) Close() error {
	if w.file == nil {
		return nil
	}
	var err error
	if !w.state.Since.IsZero() {
		err = w.write(time.Now())
	}
	// Closing alone would leave it locked for as long as a child that was forked meanwhile has not executed its program.
	err = errors.Join(err, syscall.Flock(int(w.file.lock.Fd()), syscall.LOCK_UN), w.file.lock.Close())
	w.file = nil
	return err
}
