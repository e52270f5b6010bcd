package probe

import (
	"encoding/binary"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/await"
)

// A process that maps a library is reported before it has done much with it.
func TestMappings(t *testing.T) {
	t.Parallel()
	m := newMachine(t, Options{}, 580)
	lib := filepath.Join(m.dir, "libcuda.so.1")
	maps, err := OpenMappings(func(path string) bool { return path == lib })
	check(t, err)
	t.Cleanup(func() { check(t, maps.Close()) })
	r := m.start("gated", "1")
	r.reaches("ready")
	found := maps.PIDs()
	if len(found) == 0 || slices.ContainsFunc(found, func(pid uint32) bool { return pid != r.pid }) {
		t.Errorf("processes %v, want %d", found, r.pid)
	}
	if again := maps.PIDs(); len(again) > 0 {
		t.Errorf("reported twice: %v", again)
	}
	if maps.Lost() > 0 {
		t.Logf("%d lost", maps.Lost())
	}
}

// Many short processes do not make the buffers unreadable: what does not fit is counted, and later ones are found.
func TestMappingsOverflow(t *testing.T) {
	t.Parallel()
	m := newMachine(t, Options{}, 580)
	lib := filepath.Join(m.dir, "libcuda.so.1")
	maps, err := OpenMappings(func(path string) bool { return path == lib })
	check(t, err)
	t.Cleanup(func() { check(t, maps.Close()) })
	await.True(t, "a full buffer", func() bool {
		for range 50 {
			m.run("loop", "0")
		}
		for _, r := range maps.rings { // the kernel counts what is lost with the next record that fits
			_, lost := r.read(func(string) bool { return false })
			maps.lost += lost
		}
		return maps.Lost() > 0
	})
	maps.PIDs()
	r := m.start("gated", "1")
	r.reaches("ready")
	if pids := maps.PIDs(); !slices.Contains(pids, r.pid) {
		t.Errorf("%d is not among %v", r.pid, pids)
	}
}

func record(kind uint32, body []byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, kind)
	b = binary.NativeEndian.AppendUint16(b, 0)
	b = binary.NativeEndian.AppendUint16(b, uint16(8+len(body)))
	return append(b, body...)
}

func mapRecord(pid uint32, path string) []byte {
	body := binary.NativeEndian.AppendUint32(nil, pid)
	body = append(body, make([]byte, 28)...)
	body = append(body, path...)
	return record(recordMmap, append(body, make([]byte, 8-len(path)%8)...))
}

// Records wrap around, and others are skipped.
func TestParseRecords(t *testing.T) {
	lost := binary.NativeEndian.AppendUint64(make([]byte, 8), 7)
	text := slices.Concat(mapRecord(1, "/lib/a"), record(recordLost, lost), mapRecord(2, "/lib/b"), record(99, make([]byte, 24)), mapRecord(3, "/lib/a.so"))
	isA := func(path string) bool { return strings.HasPrefix(path, "/lib/a") }
	for shift := range 512 {
		ring := make([]byte, 512)
		for i, b := range text {
			ring[(shift+i)%len(ring)] = b
		}
		pids, lost, tail := parseRecords(ring, uint64(shift), uint64(shift+len(text)), isA)
		if diff := cmp.Diff([]uint32{1, 3}, pids); diff != "" || lost != 7 || tail != uint64(shift+len(text)) {
			t.Fatalf("shifted by %d: %d lost, tail %d: %s", shift, lost, tail, diff)
		}
	}
}

func FuzzParseRecords(f *testing.F) {
	f.Add(mapRecord(1, "/lib/a"), uint64(0), uint64(48))
	f.Add(record(recordLost, nil), uint64(1<<63), uint64(3))
	f.Fuzz(func(t *testing.T, ring []byte, tail, head uint64) {
		if len(ring) == 0 {
			return
		}
		_, _, end := parseRecords(ring, tail, head, func(string) bool { return true })
		if head-end > head-tail {
			t.Errorf("from %d to %d it ends at %d", tail, head, end)
		}
	})
}

func TestParseCPUs(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]int{"0\n": {0}, "0-3,8\n": {0, 1, 2, 3, 8}, "1,3-4": {1, 3, 4}, "": nil, "3-1": nil, "x": nil, "0-99999999": nil, "-1": nil} {
		got, err := parseCPUs(text)
		if diff := cmp.Diff(want, got); diff != "" || (err != nil) != (want == nil) {
			t.Errorf("%q: %v %s", text, err, diff)
		}
	}
}
