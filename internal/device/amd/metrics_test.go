//go:build linux

package amd

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

// kindsOf maps a table to its file.
var kindsOf = map[string]struct {
	layouts layouts
	packed  version
}{
	"":          {gpuLayouts, gpuPacked},
	"short":     {gpuLayouts, gpuPacked},
	"partition": {partitionLayouts, partitionPacked},
	"gpuboard":  {gpuBoardLayouts, notPacked},
	"baseboard": {baseBoardLayouts, notPacked},
}

func decodeNamed(name string, b []byte) (*metrics, error) {
	file, _, ok := strings.Cut(name, " ")
	if !ok {
		file = ""
	}
	k := kindsOf[file]
	return decode(b, k.layouts, k.packed)
}

// A field that is one byte off, or of the wrong width or count, would show a different
// value: each field of each layout has its own value at the kernel's offset.
func TestEveryLayout(t *testing.T) {
	all := structures(t)
	if len(all) != len(gpuLayouts)+1+len(partitionLayouts)+len(gpuBoardLayouts)+len(baseBoardLayouts) {
		t.Errorf("%d tables in testdata/layouts.txt", len(all))
	}
	for name, s := range all {
		t.Run(name, func(t *testing.T) {
			b := s.blob()
			m, err := decodeNamed(name, b)
			if err != nil {
				t.Fatal(err)
			}
			if m.version != s.version {
				t.Errorf("version %s", m.version)
			}
			value := uint64(0)
			for field, p := range s.places {
				if m.count(field) != p.count || m.rows(field) != p.rows || m.columns[field].kind.size() != p.width {
					t.Errorf("%s is %d times %d values of %d bytes", field, m.rows(field), m.count(field), m.columns[field].kind.size())
					continue
				}
				for row := range p.rows {
					for i := range p.count {
						if v := m.at(field, row, i); v.OK() {
							t.Errorf("%s[%d][%d] is %v although the GPU does not have it", field, row, i, v)
						}
						value = (value*31 + 7) % (1<<(8*p.width-1) - 1)
						s.put(t, b, field, row, i, value)
						if v := m.at(field, row, i); v != device.Of(float64(value)) {
							t.Errorf("%s[%d][%d] is %v, want %d", field, row, i, v, value)
						}
					}
				}
				if v := m.at(field, 0, p.count); v.OK() {
					t.Errorf("%s has a value past its count", field)
				}
				if v := m.at(field, p.rows, 0); v.OK() {
					t.Errorf("%s has a row past its last", field)
				}
			}
			for field := range m.columns {
				if _, ok := s.places[field]; !ok && !strings.HasPrefix(field, "padding") {
					t.Errorf("%s is in no documented structure", field)
				}
			}
		})
	}
}

// A table from another driver version, or a truncated file, must give an error that names
// the version, never a panic and never values from the wrong offset.
func TestBadTables(t *testing.T) {
	f := func(b []byte, want error, says string) {
		t.Helper()
		m, err := decode(b, gpuLayouts, gpuPacked)
		if m != nil || !errors.Is(err, want) || !strings.Contains(err.Error(), says) {
			t.Errorf("%d bytes: %v, %v; want %v with %q", len(b), m, err, want, says)
		}
	}
	for name, s := range structures(t) {
		if strings.Contains(name, " ") {
			continue
		}
		b := s.blob()
		for n := headerSize; n < len(b); n++ {
			f(b[:n], errTruncated, name+":")
		}
		if name == "v1.6" {
			binary.LittleEndian.PutUint16(b, 320) // between the two
			clear(b[320:])
			f(b, errTruncated, name+":")
			continue
		}
		f(append(slices.Clone(b), 1), errOversized, name+":")
		small, large := slices.Clone(b), append(slices.Clone(b), make([]byte, 8)...)
		binary.LittleEndian.PutUint16(small, uint16(s.size-8))
		clear(small[s.size-8:])
		f(small, errTruncated, name+":")
		binary.LittleEndian.PutUint16(large, uint16(s.size+8))
		f(large, errOversized, name+":")
		// The rest of the page after the table: some drivers fill it.
		if _, err := decode(append(slices.Clone(b), make([]byte, 4096-s.size)...), gpuLayouts, gpuPacked); err != nil {
			t.Errorf("%s in a page: %v", name, err)
		}
	}
	for _, v := range []version{{1, 10}, {2, 5}, {3, 1}, {4, 0}, {0, 0}, {255, 255}} {
		b := slices.Concat([]byte{16, 0, v.format, v.content}, make([]byte, 12))
		f(b, errUnknown, v.String()+":")
	}
	f(nil, errTruncated, "0 bytes")
	f([]byte{4, 0, 1}, errTruncated, "3 bytes")
}

// A packed table states the type of each value: signs, widths and unknown values.
func TestPacked(t *testing.T) {
	b := packed(t, gpuPacked, `
		0 s16 -40
		1 u8 250
		2 s8 -3
		3 u32 750
		4 s32 -100000
		7 u64 9000000000
		8 s64 -5
		333 u64 1 2 3
		33 u16 2100 65535 1900
		48 s16 32767 41 -1
		16 u8 255
		38 u16
	`)
	m, err := decode(b, gpuLayouts, gpuPacked)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]device.Value{}
	for name := range m.columns {
		got[name] = []device.Value{}
		for i := range m.count(name) {
			got[name] = append(got[name], m.at(name, 0, i))
		}
	}
	of, none := device.Of, device.Value{}
	want := map[string][]device.Value{
		"temperature_hotspot":  {of(-40)},
		"temperature_mem":      {of(250)},
		"temperature_vrsoc":    {of(-3)},
		"curr_socket_power":    {of(750)},
		"average_gfx_activity": {of(-100000)},
		"energy_accumulator":   {of(9e9)},
		"system_clock_counter": {of(-5)},
		"current_gfxclk":       {of(2100), none, of(1900)},
		"temperature_hbm":      {none, of(41), none},
		"pcie_link_width":      {none},
		"num_partition":        {},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Each attribute number maps to the kernel's name.
func TestPackedNumbers(t *testing.T) {
	for id, name := range map[int]string{
		0: "temperature_hotspot", 7: "energy_accumulator", 9: "accumulation_counter", 14: "hbm_thm_residency_acc",
		19: "xgmi_link_speed", 25: "pcie_replay_count_acc", 31: "xgmi_link_status", 38: "num_partition",
		40: "gfx_busy_inst", 47: "gfx_below_host_limit_total_acc", 48: "temperature_hbm", 49: "temperature_aid", 50: "temperature_xcd", 51: "",
	} {
		if got := packedName(id, false); got != name {
			t.Errorf("%d is %s, want %s", id, got, name)
		}
	}
	for id, name := range map[int]string{48: "temperature_hbm", 49: "temperature_mid", 50: "temperature_aid", 51: "temperature_xcd", 52: ""} {
		if got := packedName(id, true); got != name {
			t.Errorf("with a MID %d is %s, want %s", id, got, name)
		}
	}
	// Fixed layouts use the same names; otherwise a value would be read from one of them
	// only.
	for _, name := range packedNames[:48] {
		if _, ok := gpuLayouts[version{1, 8}][0].columns[name]; !ok {
			t.Errorf("%s is not in v1.8", name)
		}
	}
}

// Catches temperatures under the wrong names: newer kernels insert one before the last two.
func TestPackedTemperatures(t *testing.T) {
	f := func(lines string, want ...device.Temperature) {
		t.Helper()
		s, err := one(t, nil, func(tr tree) {
			tr.write("sys/class/drm/card0/device/gpu_metrics", string(packed(t, gpuPacked, lines)))
		})
		if diff := cmp.Diff(want, s.Temperatures); diff != "" || err != nil {
			t.Errorf("%q: %v (-want +got):\n%s", lines, err, diff)
		}
	}
	is := func(sensor string, v float64) device.Temperature {
		return device.Temperature{Sensor: sensor, Value: device.Of(v)}
	}
	f("0 u16 60\n49 s16 41 42\n50 s16 51 52", is("hotspot", 60), is("aid0", 41), is("aid1", 42), is("xcd0", 51), is("xcd1", 52))
	f("0 u16 60\n49 s16 31 32\n50 s16 41 42\n51 s16 51 52", is("hotspot", 60), is("mid0", 31), is("mid1", 32), is("aid0", 41), is("aid1", 42), is("xcd0", 51), is("xcd1", 52))
}

func TestBadPacked(t *testing.T) {
	good := packed(t, gpuPacked, "0 u16 1\n29 u64 1 2 3")
	f := func(b []byte, says string) {
		t.Helper()
		if m, err := decode(b, gpuLayouts, gpuPacked); m != nil || err == nil || !strings.Contains(err.Error(), "v1.9: ") || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, %v; want %q", m, err, says)
		}
	}
	sized := func(b []byte) []byte {
		b = slices.Clone(b)
		binary.LittleEndian.PutUint16(b, uint16(len(b)))
		return b
	}
	for n := 4; n < len(good); n++ {
		f(sized(good[:n]), "truncated")
	}
	more := sized(append(slices.Clone(good), make([]byte, 8)...))
	f(more, "larger")
	for _, n := range []int32{-1, math.MinInt32, math.MaxInt32} {
		b := slices.Clone(good)
		binary.LittleEndian.PutUint32(b[4:], uint32(n))
		f(b, "")
	}
	for _, k := range []byte{8, 15} {
		odd := slices.Clone(good)
		odd[10] = odd[10]&0xf | k<<4 // the first attribute's type
		f(odd, "unknown type")
	}
}

// A packed table has all dies in one row. A partition uses its share of the dies that are
// present.
func TestPartitionOfFlatRow(t *testing.T) {
	f := func(line string, k, n int, want device.Value) {
		t.Helper()
		m, err := decode(packed(t, gpuPacked, line), gpuLayouts, gpuPacked)
		if err != nil {
			t.Fatal(err)
		}
		if got := m.partition("gfx_busy_inst", k, n); got != want {
			t.Errorf("%s: partition %d of %d is %v, want %v", line, k, n, got, want)
		}
	}
	const full = "40 u32 10 20 30 40 50 60 70 80"
	f(full, 0, 8, device.Of(10))
	f(full, 7, 8, device.Of(80))
	f(full, 1, 2, device.Of(65))
	f(full, 0, 1, device.Of(45))
	f(full, 0, 3, device.Value{})
	const half = "40 u32 10 20 30 40 -1 -1 -1 -1"
	f(half, 3, 4, device.Of(40))
	f(half, 1, 2, device.Of(35))
	f("33 u16 1", 0, 1, device.Value{})
}

func FuzzDecode(f *testing.F) {
	for _, s := range structures(f) {
		f.Add(s.blob())
	}
	f.Add(packed(f, gpuPacked, "0 u16 1\n29 u64 1 2 3\n40 u32 1 2"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, k := range kindsOf {
			m, err := decode(b, k.layouts, k.packed)
			if (m == nil) == (err == nil) {
				t.Fatalf("%v, %v", m, err)
			}
			if err != nil {
				continue
			}
			for name, c := range m.columns {
				m.all(name)
				m.partition(name, c.rows, 2)
				for row := range c.rows + 1 {
					m.mean(name, row, 0, c.count+1)
				}
			}
		}
	})
}

// A narrow counter continues across a wraparound; a counter that decreased otherwise was
// reset.
func TestCounter(t *testing.T) {
	f := func(width kind, want uint64, raws ...uint64) {
		t.Helper()
		var c counter
		var got uint64
		for _, raw := range raws {
			got = c.add(raw, width)
		}
		if got != want {
			t.Errorf("%v is %d, want %d", raws, got, want)
		}
	}
	f(u32, 5, 5)
	f(u32, 9, 5, 9)
	f(u32, 9, 5, 9, 9)
	f(u32, 1<<32+3, 1<<32-2, 3)
	f(u32, 1<<32+10, 1<<32-2, 3, 10)
	f(u32, 1<<32+3, 1<<32-2, 3, 3)
	f(u32, 3, 1<<30, 3)            // a reset: the counter was nowhere near its end
	f(u32, 1<<31, 1<<32-2, 1<<31)  // a reset: the new value is not near the start
	f(u64, 3, math.MaxUint64-2, 3) // a 64-bit counter never wraps
	f(u16, 65536+1, 65535-1, 1)
	f(u32, 1<<32+10, 1<<32-2, 3, 2, 10) // a step back after a wraparound
}
