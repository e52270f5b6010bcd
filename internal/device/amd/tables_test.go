//go:build linux

package amd

import (
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// place is where the kernel's struct holds a value: a layout written independently of the
// code.
type place struct {
	offset, stride, width, count, rows int
}

type structure struct {
	version version
	size    int
	places  map[string]place
}

// structures parses testdata/layouts.txt, keyed by table name: v1.3, partition v1.0.
func structures(t testing.TB) map[string]structure {
	t.Helper()
	b, err := os.ReadFile("testdata/layouts.txt")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]structure{}
	var s structure
	for line := range strings.Lines(string(b)) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || words[0] == "#":
		case words[0] == "==":
			size, err := strconv.Atoi(words[len(words)-1])
			if err != nil {
				t.Fatal(line)
			}
			name := strings.Join(words[1:len(words)-1], " ")
			s = structure{size: size, places: map[string]place{}}
			if _, err := fmt.Sscanf(name[strings.LastIndex(name, "v"):], "v%d.%d", &s.version.format, &s.version.content); err != nil {
				t.Fatal(line)
			}
			all[name] = s
		default:
			name, p := placeOf(t, words)
			s.places[name] = p
		}
	}
	return all
}

// placeOf parses "offset[+stride] type name[count]".
func placeOf(t testing.TB, words []string) (string, place) {
	t.Helper()
	p := place{count: 1, rows: 1}
	number := func(s string) int {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(words)
		}
		return n
	}
	name, count, ok := strings.Cut(words[2], "[")
	if ok {
		p.count = number(strings.TrimSuffix(count, "]"))
	}
	offset, stride, ok := strings.Cut(words[0], "+")
	p.offset = number(offset)
	if ok {
		p.rows, p.stride = 8, number(stride)
	}
	p.width = number(strings.TrimPrefix(words[1], "u")) / 8
	return name, p
}

// blob returns a table without values: all bits set, which is how the driver initializes
// it.
func (s structure) blob() []byte {
	b := make([]byte, s.size)
	for i := range b {
		b[i] = 0xff
	}
	binary.LittleEndian.PutUint16(b, uint16(s.size))
	b[2], b[3] = s.version.format, s.version.content
	return b
}

// put writes one value at the kernel's offset.
func (s structure) put(t testing.TB, b []byte, name string, row, i int, v uint64) {
	t.Helper()
	p, ok := s.places[name]
	if !ok || i >= p.count || row >= p.rows {
		t.Fatalf("%s has no %s %d %d", s.version, name, row, i)
	}
	var le [8]byte
	binary.LittleEndian.PutUint64(le[:], v)
	copy(b[p.offset+row*p.stride+i*p.width:][:p.width], le[:])
}

// packed encodes a packed table from lines of "number type values ...".
func packed(t testing.TB, v version, lines string) []byte {
	t.Helper()
	b := binary.LittleEndian.AppendUint32([]byte{0, 0, v.format, v.content}, 0)
	n := 0
	for line := range strings.Lines(lines) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		id, err := strconv.ParseUint(words[0], 10, 10)
		if err != nil {
			t.Fatal(line)
		}
		k := strings.Index("u8  s8  u16 s16 u32 s32 u64 s64 ", words[1]+" ") / 4
		code := uint64(len(words)-2) | id<<10 | uint64(k)<<20
		b = binary.LittleEndian.AppendUint64(b, code)
		for _, word := range words[2:] {
			v, err := strconv.ParseInt(word, 10, 64)
			if err != nil {
				t.Fatal(line)
			}
			var le [8]byte
			binary.LittleEndian.PutUint64(le[:], uint64(v))
			b = append(b, le[:1<<(k/2)]...)
		}
		n++
	}
	binary.LittleEndian.PutUint32(b[4:], uint32(n))
	binary.LittleEndian.PutUint16(b, uint16(len(b)))
	return b
}
