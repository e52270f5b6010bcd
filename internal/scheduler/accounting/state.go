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

// state is what has to outlive the process.
type state struct {
	Version int `json:"version"`
	// Cursor is the time before which every row was delivered.
	Cursor int64 `json:"cursor"`
	// Delivered are rows that ended since, by their UID, with their end.
	Delivered map[string]int64 `json:"delivered"`
}

const (
	stateVersion = 1
	stateFile    = "slurm-accounting.json"
	maxState     = 64 << 20
	// maxDelivered bounds how many rows are remembered. Beyond it the cursor moves on, and
	// what comes later than that is not looked for.
	maxDelivered = 500_000
)

func (s *state) cursor() time.Time { return time.Unix(s.Cursor, 0) }

// forget moves the cursor on, never back, and forgets rows before it.
func (s *state) forget(cursor time.Time) {
	s.Cursor = max(s.Cursor, cursor.Unix())
	for uid, end := range s.Delivered {
		if end < s.Cursor {
			delete(s.Delivered, uid)
		}
	}
}

// bound drops the oldest rows beyond n, with the cursor behind them. It returns how many.
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

// Store keeps the state in a folder, or in memory only where there is none.
type Store struct {
	Dir string
}

// load returns the state, or nil where there is none yet. What cannot be understood is an
// error.
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
		return nil, fmt.Errorf("%s is no state of ours", path)
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
		return nil, fmt.Errorf("%s is of another version (%d)", path, out.Version)
	}
	if out.Delivered == nil {
		out.Delivered = map[string]int64{}
	}
	return &out, nil
}

// save replaces the file: who is killed meanwhile finds the old one or the new one.
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
			_ = os.Remove(f.Name()) // what is left behind is small, and the error above says more
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

// syncDir makes the new name last.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
