package days

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// marks are devices whose usage of a day must be computed again. They are on disk before the sample
// that causes them is stored, so a kill loses none.
type marks struct {
	mu   sync.Mutex
	path string
	days map[string]map[string]bool // UUIDs by date
	sum  int                        // marks so far
}

func (m *marks) open(path string) error {
	m.path, m.days = path, map[string]map[string]bool{}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read the marks of kept days: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if date, uuid, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " "); ok && strings.HasSuffix(line, "\n") {
			m.set(date, uuid)
		}
	}
	return nil
}

// set adds a mark, and reports whether it is new.
func (m *marks) set(date, uuid string) bool {
	if m.days[date][uuid] {
		return false
	}
	if m.days[date] == nil {
		m.days[date] = map[string]bool{}
	}
	m.days[date][uuid] = true
	m.sum++
	return true
}

func (m *marks) add(day time.Time, uuid string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	date := day.Format(time.DateOnly)
	if strings.Contains(uuid, "\n") || !m.set(date, uuid) {
		return nil
	}
	f, err := os.OpenFile(m.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err == nil {
		_, err = f.WriteString(date + " " + uuid + "\n")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		delete(m.days[date], uuid)
		return fmt.Errorf("cannot mark a kept day: %w", err)
	}
	return nil
}

// any reports whether a day has marks.
func (m *marks) any(day time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.days[day.Format(time.DateOnly)]) > 0
}

// take removes and returns the marks of a day. They stay on disk until write.
func (m *marks) take(day time.Time) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	date := day.Format(time.DateOnly)
	out := slices.Sorted(maps.Keys(m.days[date]))
	delete(m.days, date)
	return out
}

// restore puts back what take returned.
func (m *marks) restore(day time.Time, uuids []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, uuid := range uuids {
		m.set(day.Format(time.DateOnly), uuid)
	}
}

// drop removes the marks of all days before the first one to keep.
func (m *marks) drop(first time.Time) error {
	m.mu.Lock()
	before := len(m.days)
	maps.DeleteFunc(m.days, func(date string, _ map[string]bool) bool { return date < first.Format(time.DateOnly) })
	dropped := len(m.days) < before
	m.mu.Unlock()
	if !dropped {
		return nil
	}
	return m.write()
}

// total returns how many marks there have been.
func (m *marks) total() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sum
}

// write replaces the file by the marks that are left.
func (m *marks) write() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := os.Stat(m.path); errors.Is(err, fs.ErrNotExist) && len(m.days) == 0 {
		return nil
	}
	var b strings.Builder
	for _, date := range slices.Sorted(maps.Keys(m.days)) {
		for _, uuid := range slices.Sorted(maps.Keys(m.days[date])) {
			b.WriteString(date + " " + uuid + "\n")
		}
	}
	return write(m.path, []byte(b.String()))
}
