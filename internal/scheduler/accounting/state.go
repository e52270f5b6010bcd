package accounting

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// state is what must survive a restart.
type state struct {
	Version int `json:"version"`
	// Cursor is the time before which every row was delivered.
	Cursor int64 `json:"cursor"`
	// Delivered has the rows that ended since the cursor: their ends by UID.
	Delivered map[string]int64 `json:"delivered"`
}

const (
	stateVersion = 1
	stateFile    = "slurm-accounting.json"
	maxState     = 64 << 20
	// maxDelivered bounds how many rows are remembered. Beyond it the cursor advances, and rows
	// that appear before it are not read any more.
	maxDelivered = 500_000
)

func (s *state) cursor() time.Time { return time.Unix(s.Cursor, 0) }

// forget advances the cursor, never back, and drops the rows before it.
func (s *state) forget(cursor time.Time) {
	s.Cursor = max(s.Cursor, cursor.Unix())
	for uid, end := range s.Delivered {
		if end < s.Cursor {
			delete(s.Delivered, uid)
		}
	}
}

// bound drops the oldest rows beyond n and advances the cursor past them. It returns how many.
func (s *state) bound(n int) int {
	over := len(s.Delivered) - n
	if over <= 0 {
		return 0
	}
	ends := make([]int64, 0, len(s.Delivered))
	for _, end := range s.Delivered {
		ends = append(ends, end)
	}
	slices.SortFunc(ends, cmp.Compare)
	s.forget(time.Unix(ends[over]+1, 0))
	return over
}

// Store keeps the state in a folder, or only in memory without one.
type Store struct {
	Dir string
}

// load returns the state, or nil if there is none yet. An unreadable state is an error.
func (s Store) load() (*state, error) {
	if s.Dir == "" {
		return nil, nil
	}
	path := filepath.Join(s.Dir, stateFile)
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxState {
		return nil, fmt.Errorf("%s is not a state file", path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var out state
	if err := json.Unmarshal(b, &out); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", path, err)
	}
	if out.Version != stateVersion || out.Cursor <= 0 {
		return nil, fmt.Errorf("%s has an unsupported version (%d)", path, out.Version)
	}
	if out.Delivered == nil {
		out.Delivered = map[string]int64{}
	}
	return &out, nil
}

// save replaces the file atomically: a killed process leaves the old or the new file.
func (s Store) save(st *state) (err error) {
	if s.Dir == "" {
		return nil
	}
	b, err := json.Marshal(st)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(s.Dir, stateFile+".*") // 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			_ = os.Remove(f.Name()) // best effort: the error above matters more
		}
	}()
	if _, err := f.Write(b); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), filepath.Join(s.Dir, stateFile)); err != nil {
		return err
	}
	return syncDir(s.Dir)
}

// syncDir makes the rename durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
