package days

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// A file has one day: a magic number, a zstd frame, and the CRC-32C of both. The frame has unsigned
// and signed varints and strings with their length in front:
//
//	day (seconds since 1970), hours, refused, begin (ms)
//	devices: key, seen (ms), dropped by hour (us)
//	  rows: labels, flags, per hour held, active, unmeasured (us), energy (mJ)
//	  late accounts: number of the row, time (ms), held (us)
const magic = "gpumeter day 1\n"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// maxFile bounds a decoded file: 100,000 devices with ten rows each.
const maxFile = 2 << 30

// kept is the usage of one day, up to an hour.
type kept struct {
	day     time.Time
	hours   int // complete ones
	refused int
	begin   int64              // ms: of the oldest sample in the store when its hours were computed
	devices map[string]*device // by key

	whole *fleet.Day // the sum of all 24 hours, if it was asked for; shared and never changed
	// lean is set if devices have no rows in memory, as of most days: bills need whole only. See fill.
	lean bool
	used [24]bool // in which hours there is usage, if lean
}

type device struct {
	key     string
	seen    int64 // ms: of the newest sample that was read
	dropped []fleet.Seconds
	rows    []row
	late    []late
}

type row struct {
	rowID
	hours []fleet.Sums
}

// rowID is what all days share of a row. See fleet.DayRow.
type rowID struct {
	key    fleet.RowKey
	labels query.Labels
	number int32
}

type late struct {
	row  int
	at   int64 // ms
	held fleet.Seconds
}

const hasActive, hasEnergy = 1, 2

const (
	ext = ".day"
	// asideExt follows the name of a damaged file that was set aside.
	asideExt = ".damaged"
	// tmpExt is in the name of a file that is being written.
	tmpExt = ".tmp"
)

func name(day time.Time) string { return day.UTC().Format(time.DateOnly) + ext }

// parseName returns the day that a file is about, and whether the file was set aside.
func parseName(name string) (day time.Time, aside, ok bool) {
	name, aside = strings.CutSuffix(name, asideExt)
	day, err := time.Parse(time.DateOnly+ext, name)
	return day, aside, err == nil
}

// read reads the file of a day and parses it. See decode.
func read(path string, day time.Time, lean bool, names func(key []byte) rowID) (*kept, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	k, err := decode(b, lean, names)
	if err == nil && !k.day.Equal(day) {
		err = fmt.Errorf("%w: it is about %s", errDamaged, k.day.Format(time.DateOnly))
	}
	return k, err
}

// encode returns the content of a file.
func (k *kept) encode() []byte {
	var b []byte
	text := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	number := func(v int64) { b = binary.AppendVarint(b, v) }
	number(k.day.Unix())
	number(int64(k.hours))
	number(int64(k.refused))
	number(k.begin)
	number(int64(len(k.devices)))
	keys := make([]string, 0, len(k.devices))
	for key := range k.devices {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		d := k.devices[key]
		text(key)
		number(d.seen)
		for _, v := range d.dropped {
			number(int64(v))
		}
		number(int64(len(d.rows)))
		for i := range d.rows {
			r := &d.rows[i]
			text(r.key.Value())
			for _, h := range r.hours {
				flags := int64(0)
				if h.HasActive {
					flags |= hasActive
				}
				if h.HasEnergy {
					flags |= hasEnergy
				}
				number(flags)
				number(int64(h.Held))
				number(int64(h.Active))
				number(int64(h.Unmeasured))
				number(int64(h.Energy))
			}
		}
		number(int64(len(d.late)))
		for _, l := range d.late {
			number(int64(l.row))
			number(l.at)
			number(int64(l.held))
		}
	}
	w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		panic(err) // the options are constant
	}
	out := w.EncodeAll(b, []byte(magic))
	return binary.LittleEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
}

var errDamaged = errors.New("the file is damaged")

// decode parses the content of a file. names returns the labels of a key. If lean is set, the hours of a
// complete day are added up, but not kept.
func decode(b []byte, lean bool, names func(key []byte) rowID) (*kept, error) {
	n := len(b) - 4
	if n < len(magic) || string(b[:len(magic)]) != magic {
		return nil, fmt.Errorf("%w: its header is wrong", errDamaged)
	}
	if crc32.Checksum(b[:n], castagnoli) != binary.LittleEndian.Uint32(b[n:]) {
		return nil, fmt.Errorf("%w: its checksum is wrong", errDamaged)
	}
	r, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxFile))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	body, err := r.DecodeAll(b[len(magic):n], nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	p := parser{left: body}
	k := &kept{day: time.Unix(p.number(), 0).UTC(), hours: int(p.number()), refused: int(p.number()), begin: p.number()}
	if k.hours < 0 || k.hours > 24 || !k.day.Equal(k.day.Truncate(24*time.Hour)) {
		return nil, errDamaged
	}
	devices := p.count()
	k.devices = make(map[string]*device, devices)
	if k.lean = lean && k.hours == 24; k.lean {
		k.whole = k.newDay(devices)
	}
	d := &device{}
	var slab []device
	for i := range devices {
		if !k.lean {
			d = &device{}
		}
		p.device(d, k.hours, names)
		if p.bad || k.devices[d.key] != nil {
			return nil, errDamaged
		}
		if !k.lean {
			k.devices[d.key] = d
			continue
		}
		d.addTo(k.whole, 24, k.day.Add(day))
		d.mark(&k.used)
		if len(slab) == 0 {
			slab = make([]device, min(256, devices-i))
		}
		slab[0].key, slab[0].seen = d.key, d.seen
		k.devices[d.key], slab = &slab[0], slab[1:]
	}
	if k.lean {
		k.whole.Sort()
	}
	if p.bad || len(p.left) > 0 {
		return nil, errDamaged
	}
	return k, nil
}

// parser reads the body of a file. After an error it returns zeros.
type parser struct {
	left []byte
	bad  bool
}

// device reads a device. It uses the memory of what d had before.
func (p *parser) device(d *device, hours int, names func(key []byte) rowID) {
	d.key, d.seen = string(p.text()), p.number()
	d.dropped, d.late = slices.Grow(d.dropped[:0], hours)[:hours], d.late[:0]
	for i := range d.dropped {
		d.dropped[i] = fleet.Seconds(p.number())
	}
	rows := p.count()
	d.rows = slices.Grow(d.rows[:0], rows)[:rows]
	for i := range d.rows {
		if p.bad {
			return
		}
		x := &d.rows[i]
		x.rowID = names(p.text())
		x.hours = slices.Grow(x.hours[:0], hours)[:hours]
		for h := range x.hours {
			flags := p.number()
			x.hours[h] = fleet.Sums{
				HasActive: flags&hasActive != 0, HasEnergy: flags&hasEnergy != 0,
				Held: fleet.Seconds(p.number()), Active: fleet.Seconds(p.number()), Unmeasured: fleet.Seconds(p.number()), Energy: fleet.Energy(p.number()),
			}
		}
	}
	for range p.count() {
		l := late{row: int(p.number()), at: p.number(), held: fleet.Seconds(p.number())}
		if l.row < 0 || l.row >= len(d.rows) {
			p.bad = true
			break
		}
		d.late = append(d.late, l)
	}
}

func (p *parser) number() int64 {
	v, n := binary.Varint(p.left)
	if n <= 0 {
		p.left, p.bad = nil, true
		return 0
	}
	p.left = p.left[n:]
	return v
}

// count returns a number of elements, each of which takes at least one byte.
func (p *parser) count() int {
	n := p.number()
	if n < 0 || n > int64(len(p.left)) {
		p.left, p.bad = nil, true
		return 0
	}
	return int(n)
}

func (p *parser) text() []byte {
	size, n := binary.Uvarint(p.left)
	if n <= 0 || size > uint64(len(p.left)-n) {
		p.left, p.bad = nil, true
		return nil
	}
	s := p.left[n : n+int(size)]
	p.left = p.left[n+int(size):]
	return s
}

// labelsOf is the inverse of query.Labels.Key.
func labelsOf(key string) query.Labels {
	out := make(query.Labels, strings.Count(key, "\xff")/2)
	for {
		name, rest, _ := strings.Cut(key, "\xff")
		value, rest, ok := strings.Cut(rest, "\xff")
		if !ok {
			return out
		}
		out[name], key = value, rest
	}
}

// write replaces a file. After a kill there is the old file or the new one.
func write(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+tmpExt)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("cannot write %s: %w", path, err), os.Remove(f.Name()))
	}
	return nil
}
