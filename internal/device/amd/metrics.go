//go:build linux

package amd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/gpumeter/gpumeter/internal/device"
)

// kind is the type of a value in a firmware table, numbered as in the packed tables. All
// are little endian.
type kind uint8

const (
	u8 kind = iota
	s8
	u16
	s16
	u32
	s32
	u64
	s64
	kinds // number of kinds
)

// size returns the size of one value in bytes.
func (k kind) size() int { return 1 << (k / 2) }

func (k kind) signed() bool { return k%2 == 1 }

// column locates the values of one name in a table. Per-partition values repeat rows times,
// stride bytes apart.
type column struct {
	kind   kind
	offset int
	count  int
	stride int
	rows   int
}

// metrics is one firmware table, such as the file gpu_metrics. Values are decoded when they
// are requested.
type metrics struct {
	version version
	columns map[string]column
	blob    []byte
	// flat: per-die values are in one row for the whole device.
	flat bool
}

// version is the format and content revision of a table.
type version struct{ format, content uint8 }

func (v version) String() string { return fmt.Sprintf("v%d.%d", v.format, v.content) }

// since reports whether v is in the discrete GPU format and at least v1.content.
func (v version) since(content uint8) bool { return v.format == 1 && v.content >= content }

const headerSize = 4 // u16 structure_size, u8 format_revision, u8 content_revision

var (
	errTruncated = errors.New("truncated")
	errOversized = errors.New("larger than its layout")
	errUnknown   = errors.New("unknown layout")
)

// decode decodes a table using the layouts of its file. Only the header tells which layout
// it is; a driver update may change it for the same GPU.
func decode(blob []byte, known layouts, packed version) (*metrics, error) {
	if len(blob) < headerSize {
		return nil, fmt.Errorf("%w: %d bytes have no header", errTruncated, len(blob))
	}
	size := int(binary.LittleEndian.Uint16(blob))
	v := version{blob[2], blob[3]}
	variants := known[v]
	switch {
	case variants == nil && v != packed:
		return nil, fmt.Errorf("%s: %w (%d bytes)", v, errUnknown, size)
	case size > len(blob):
		return nil, fmt.Errorf("%s: %w: %d bytes of %d", v, errTruncated, len(blob), size)
	case !zero(blob[size:]): // some drivers fill the page
		return nil, fmt.Errorf("%s: %w: %d bytes after its %d", v, errOversized, len(blob)-size, size)
	}
	if variants == nil {
		return decodePacked(v, blob[:size])
	}
	wrong := errOversized
	for _, l := range variants {
		if size == l.size {
			return &metrics{version: v, columns: l.columns, blob: blob[:size]}, nil
		}
		if size < l.size {
			wrong = errTruncated
		}
	}
	return nil, fmt.Errorf("%s: %w: the header says %d bytes, the layout has %d", v, wrong, size, variants[len(variants)-1].size)
}

func zero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// raw returns one value and whether it is present. The driver sets all bits of a value that
// a GPU does not have; packed tables also use the maximum of a signed type.
func (m *metrics) raw(name string, row, i int) (uint64, bool) {
	if m == nil {
		return 0, false
	}
	c, ok := m.columns[name]
	if !ok || row >= c.rows || i >= c.count {
		return 0, false
	}
	b := m.blob[c.offset+row*c.stride+i*c.kind.size():]
	var v, none uint64
	switch c.kind.size() {
	case 1:
		v, none = uint64(b[0]), math.MaxUint8
	case 2:
		v, none = uint64(binary.LittleEndian.Uint16(b)), math.MaxUint16
	case 4:
		v, none = uint64(binary.LittleEndian.Uint32(b)), math.MaxUint32
	default:
		v, none = binary.LittleEndian.Uint64(b), math.MaxUint64
	}
	if v == none || c.kind.signed() && v == none>>1 {
		return 0, false
	}
	if c.kind.signed() && v > none>>1 {
		v |= ^none // sign-extend
	}
	return v, true
}

func (m *metrics) at(name string, row, i int) device.Value {
	v, ok := m.raw(name, row, i)
	if !ok {
		return device.Value{}
	}
	if m.columns[name].kind.signed() {
		return device.Of(float64(int64(v)))
	}
	return device.Of(float64(v))
}

// get returns the value of a name, the first one if there are several.
func (m *metrics) get(name string) device.Value { return m.at(name, 0, 0) }

// bits returns a value that is a bit set.
func (m *metrics) bits(name string) (uint64, bool) { return m.raw(name, 0, 0) }

// count returns the number of values in a row of name, present or not.
func (m *metrics) count(name string) int {
	if m == nil {
		return 0
	}
	return m.columns[name].count
}

// mean returns the mean of the present values in [from, to) of a row.
func (m *metrics) mean(name string, row, from, to int) device.Value {
	sum, n := 0.0, 0
	for i := from; i < min(to, m.count(name)); i++ {
		if v, ok := m.at(name, row, i).Get(); ok {
			sum += v
			n++
		}
	}
	if n == 0 {
		return device.Value{}
	}
	return device.Of(sum / float64(n))
}

// all returns the mean of all present values of names, over all rows.
func (m *metrics) all(names ...string) device.Value {
	sum, n := 0.0, 0
	for _, name := range names {
		for row := range m.rows(name) {
			for i := range m.count(name) {
				if v, ok := m.at(name, row, i).Get(); ok {
					sum += v
					n++
				}
			}
		}
	}
	if n == 0 {
		return device.Value{}
	}
	return device.Of(sum / float64(n))
}

func (m *metrics) rows(name string) int {
	if m == nil {
		return 0
	}
	return m.columns[name].rows
}

// partition returns the mean of name over partition k of n: its own row, or its part of a
// packed table's single row, which lists the device's units in order.
func (m *metrics) partition(name string, k, n int) device.Value {
	if m == nil {
		return device.Value{}
	}
	if !m.flat {
		return m.mean(name, k, 0, m.count(name))
	}
	present := 0 // an MI308X has half the dies of an MI300X in a table of the same length
	for i := range m.count(name) {
		if m.at(name, 0, i).OK() {
			present++
		}
	}
	if n <= 0 || present%n != 0 {
		return device.Value{}
	}
	return m.mean(name, 0, k*present/n, (k+1)*present/n)
}
