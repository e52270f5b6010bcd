package days

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"
	"unique"

	"golang.org/x/sync/errgroup"
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
	k, err := d.read(t, true)
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

// read reads the file of a day. See decode.
func (d *Days) read(t time.Time, lean bool) (*kept, error) {
	return read(filepath.Join(d.dir, name(t)), t, lean, d.intern)
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
	full, err := d.read(k.day, false)
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
	d.naming.Lock()
	defer d.naming.Unlock()
	if len(d.rows) > maxLoaded {
		clear(d.rows)
	}
}

// ahead reads the next days with all CPUs, if the day before t was asked for last: a bill asks for one day
// after the other, and for a day needs the next one, too. A file that cannot be read is left to load.
func (d *Days) ahead(t time.Time) {
	sequential := t.Equal(d.next)
	if d.next = t.Add(day); !sequential {
		return
	}
	if d.loaded[t] != nil {
		t = d.next
	}
	found := make([]*kept, maxAhead)
	var group errgroup.Group
	group.SetLimit(min(maxParallel, runtime.GOMAXPROCS(0)))
	for i := range found {
		t := t.Add(time.Duration(i) * day)
		if d.loaded[t] != nil {
			break
		}
		group.Go(func() error {
			if k, err := d.read(t, true); err == nil {
				found[i] = k
			}
			return nil
		})
	}
	_ = group.Wait()
	for _, k := range found {
		if k != nil {
			d.remember(k)
		}
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

// intern returns what the rows of all days with this key share. It is safe for concurrent use.
func (d *Days) intern(key []byte) rowID {
	d.naming.RLock()
	r, ok := d.rows[string(key)]
	d.naming.RUnlock()
	if ok {
		return r
	}
	r.key = unique.Make(string(key))
	text := r.key.Value() // a copy, of which the labels are parts: a year of a large fleet has millions of rows
	r.labels = labelsOf(text)
	d.naming.Lock()
	defer d.naming.Unlock()
	if other, ok := d.rows[text]; ok {
		return other
	}
	r.number = int32(len(d.rows) + 1)
	d.rows[text] = r
	return r
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
