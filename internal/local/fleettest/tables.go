package fleettest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
)

// place is the position of a value in the kernel's structure.
type place struct{ offset, stride, width, count int }

// layout describes a table of AMD's firmware.
type layout struct {
	size            int
	format, content byte
	places          map[string]place
}

// layouts returns the tables defined in the testdata of the amd package, by name: v1.3,
// gpuboard v1.0.
var layouts = sync.OnceValues(func() (map[string]layout, error) {
	file, err := source("internal/device/amd/testdata/layouts.txt")
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	all := map[string]layout{}
	var l layout
	for line := range strings.Lines(string(b)) {
		words := strings.Fields(line)
		switch {
		case len(words) < 3 || words[0] == "#":
		case words[0] == "==":
			name := strings.Join(words[1:len(words)-1], " ")
			l = layout{places: map[string]place{}}
			_, err = fmt.Sscanf(name[strings.LastIndex(name, "v"):]+" "+words[len(words)-1], "v%d.%d %d", &l.format, &l.content, &l.size)
			all[name] = l
		default:
			err = l.add(words)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %q: %w", file, line, err)
		}
	}
	return all, nil
})

// add parses "offset[+stride] type name[count]".
func (l layout) add(words []string) error {
	name, count, list := strings.Cut(words[2], "[")
	offset, stride, rows := strings.Cut(words[0], "+")
	if !list {
		count = "1"
	}
	if !rows {
		stride = "0"
	}
	var p place
	for _, n := range []struct {
		to   *int
		text string
	}{{&p.offset, offset}, {&p.stride, stride}, {&p.width, words[1][1:]}, {&p.count, strings.TrimSuffix(count, "]")}} {
		v, err := strconv.Atoi(n.text)
		if err != nil {
			return err
		}
		*n.to = v
	}
	p.width /= 8
	l.places[name] = p
	return nil
}

// encode returns the table with the values in lines, each of which has a name and its numbers.
// A name may have the prefix of a partition: xcp1.vcn_busy. All bits of other values are set,
// as the driver initializes them.
func (l layout) encode(lines string) ([]byte, error) {
	if l.places == nil {
		return nil, errors.New("unknown table")
	}
	b := make([]byte, l.size)
	for i := range b {
		b[i] = 0xff
	}
	binary.LittleEndian.PutUint16(b, uint16(l.size))
	b[2], b[3] = l.format, l.content
	for line := range strings.Lines(lines) {
		words := strings.Fields(line)
		name, row := words[0], 0
		if k, rest, ok := strings.Cut(name, "."); ok {
			name, row = rest, int(k[len("xcp")]-'0')
		}
		p, ok := l.places[name]
		if !ok || len(words)-1 > p.count || row > 0 && p.stride == 0 {
			return nil, fmt.Errorf("the table has no field for %q", line)
		}
		for i, word := range words[1:] {
			v, err := strconv.ParseUint(word, 10, 64)
			if err != nil {
				return nil, err
			}
			var le [8]byte
			binary.LittleEndian.PutUint64(le[:], v)
			copy(b[p.offset+row*p.stride+i*p.width:][:p.width], le[:])
		}
	}
	return b, nil
}
