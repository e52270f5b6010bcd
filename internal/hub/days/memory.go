package days

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
	"unique"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// load returns a kept day, nil if there is none. A damaged file is set aside. A file that cannot be
// read for another reason, such as too many open files, is an error: its samples may be gone, and a day
// made from what is left would replace it.
func (d *Days) load(t time.Time) (*kept, error) {
	if k := d.loaded[t]; k != nil {
		d.touch(t)
		return k, nil
	}
	path := filepath.Join(d.dir, name(t))
	k, err := read(path, t, true, d.intern)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, errDamaged) || errors.Is(err, syscall.EIO):
		d.o.Log.Warn("A kept day cannot be read and is made again from samples", "file", path, "error", err)
		if err := os.Rename(path, path+asideExt); err != nil {
			return nil, fmt.Errorf("cannot set aside a damaged file: %w", err)
		}
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("cannot read a kept day: %w", err)
	}
	d.remember(k)
	return k, nil
}

// slim drops the hours of a complete day from memory. They are in its file.
func (k *kept) slim() {
	if k.hours < 24 || k.lean {
		return
	}
	k.used = k.usage()
	k.upTo(24, k.day.Add(day)) // sets whole
	for key, x := range k.devices {
		k.devices[key] = &device{key: key, seen: x.seen}
	}
	k.lean = true
}

// fill reads the hours of a day that was slimmed.
func (d *Days) fill(k *kept) error {
	if !k.lean {
		return nil
	}
	full, err := read(filepath.Join(d.dir, name(k.day)), k.day, false, d.intern)
	if err != nil {
		d.forget(k.day) // the next load sets a damaged file aside
		return fmt.Errorf("cannot read a kept day again: %w", err)
	}
	k.devices, k.lean = full.devices, false
	return nil
}

func (d *Days) touch(t time.Time) {
	if i := slices.Index(d.used, t); i >= 0 {
		d.used = append(slices.Delete(d.used, i, i+1), t)
	}
}

// remember keeps a day in memory, and drops days that were not used for long.
func (d *Days) remember(k *kept) {
	if d.loaded[k.day] == nil {
		d.used = append(d.used, k.day)
	}
	d.loaded[k.day] = k
	d.touch(k.day)
	total := 0
	for _, x := range d.loaded {
		total += x.size()
	}
	for total > maxLoaded && len(d.used) > 1 {
		total -= d.loaded[d.used[0]].size()
		delete(d.loaded, d.used[0])
		d.used = d.used[1:]
	}
	if len(d.rows) > maxLoaded {
		clear(d.rows)
	}
}

// size returns about how many rows with all hours take as much memory.
func (k *kept) size() (n int) {
	if k.lean {
		return len(k.whole.Rows) / 8
	}
	for _, x := range k.devices {
		n += len(x.rows)
	}
	return n
}

// interned is a row as all days share it.
type interned struct {
	key    fleet.RowKey
	labels query.Labels
}

// intern returns the labels of a key. Rows of all days share them.
func (d *Days) intern(key []byte) (fleet.RowKey, query.Labels) {
	r, ok := d.rows[string(key)]
	if !ok {
		text := string(key)
		r = interned{unique.Make(text), labelsOf(text)}
		d.rows[r.key.Value()] = r
	}
	return r.key, r.labels
}

// forget drops a day from memory.
func (d *Days) forget(t time.Time) {
	delete(d.loaded, t)
	d.used = slices.DeleteFunc(d.used, t.Equal)
}

// save writes a day. If that fails, the day is used from memory, and made again after a restart.
func (d *Days) save(k *kept) {
	if k.lean {
		return // its file has all that is known
	}
	d.remember(k)
	d.raise(k)
	err := write(filepath.Join(d.dir, name(k.day)), k.encode())
	if err == nil {
		err = d.marks.write()
		k.slim()
	}
	if err != nil && !d.full {
		d.o.Log.Warn("A day cannot be kept: bills take longer", "error", err)
	}
	d.full = err != nil
}
