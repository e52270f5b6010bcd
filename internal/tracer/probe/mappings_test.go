package probe

import (
	"encoding/binary"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/await"
)

// A process that maps a library is reported, once, before it has done much with it; many short processes do not make the buffers
// unreadable. The test is not parallel, because the buffers have the mappings of all processes.
func TestMappings(t *testing.T) {
	m := newMachine(t, Options{}, 580)
	lib := filepath.Join(m.dir, "libcuda.so.1")
	maps, err := OpenMappings(func(path string) bool { return path == lib })
	check(t, err)
	t.Cleanup(func() { check(t, maps.Close()) })
	found := func() {
		t.Helper()
		await.True(t, "a process that maps a library", func() bool { // others on this machine may fill a buffer
			r := m.start("gated", "1")
			r.reaches("ready")
			pids := slices.Compact(maps.PIDs())
			if len(pids) == 0 {
				return false
			}
			if diff := cmp.Diff([]uint32{r.pid}, pids); diff != "" {
				t.Errorf("processes (-want +got):\n%s", diff)
			}
			if again := maps.PIDs(); len(again) > 0 {
				t.Errorf("reported twice: %v", again)
			}
			return true
		})
	}
	found()
	onOneCPU(t, func() {
		await.True(t, "a full buffer", func() bool {
			for range 50 {
				_ = exec.Command(filepath.Join(m.dir, "work")).Run() // it has nothing to do
			}
			maps.PIDs() // the kernel reports what is lost with the next record that fits
			return maps.Lost() > 0
		})
	})
	maps.PIDs()
	found()
}

// onOneCPU calls f such that its children run on one CPU, and use one buffer.
func onOneCPU(t *testing.T, f func()) {
	t.Helper()
	done := make(chan bool)
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		var all, one unix.CPUSet
		if err := unix.SchedGetaffinity(0, &all); err != nil {
			t.Error(err)
			return
		}
		for cpu := range 1024 {
			if all.IsSet(cpu) {
				one.Set(cpu)
				break
			}
		}
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			t.Error(err)
			return
		}
		f()
	}()
	<-done
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
