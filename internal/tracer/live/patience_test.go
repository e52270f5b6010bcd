//go:build linux

package live

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/tracer"
)

// hang makes reading what a process has mapped wait, as it does while a process that hangs
// in a driver holds the lock of its memory. What it returns lets it answer.
func (m *machine) hang(pid string) (answer func(text string)) {
	m.t.Helper()
	maps := filepath.Join(m.proc, pid, "maps")
	if err := errors.Join(os.Remove(maps), syscall.Mkfifo(maps, 0o600)); err != nil {
		m.t.Fatal(err)
	}
	return func(text string) {
		f, err := os.OpenFile(maps, os.O_WRONLY, 0)
		if err != nil {
			m.t.Fatal(err)
		}
		if _, err := f.WriteString(text); err != nil {
			m.t.Error(err)
		}
		if err := f.Close(); err != nil {
			m.t.Error(err)
		}
	}
}

// A process that hangs in a driver would stop the search, and with it every reading, for
// ever: when GPUs hang is when somebody looks.
func TestProcessThatHangs(t *testing.T) {
	lib := buildLibrary(t, "libcuda.so.1", fakeCUDA, "aa")
	m := newMachine(t, Options{})
	m.start(10, time.Minute)
	m.start(11, time.Minute, lib)
	answer := m.hang("10")
	m.scan(0)
	m.kernel.has(t, "libcuda.so.1") // the other is found all the same
	for range 3 {                   // and one reading waits, not one more each time
		m.scan(time.Minute)
	}
	if n := len(m.tracer.find.silent); n != 1 {
		t.Errorf("%d readings wait", n)
	}
	want := []tracer.Untraced{{PID: 10, Reason: noLibrary, Detail: errSilent.Error()}}
	if d := cmp.Diff(want, m.snapshot(0, 10, 11).Untraced); d != "" {
		t.Error(d)
	}
	answer("")
	await.True(t, "the reading came back", func() bool { return len(m.tracer.find.silent) == 0 })
	want[0].Detail = "it has no libcuda mapped"
	if d := cmp.Diff(want, m.snapshot(time.Minute, 10, 11).Untraced); d != "" {
		t.Error(d)
	}
}

// One that is traced and begins to hang is still traced: without its probes its calls would
// be missing when it goes on.
func TestTracedProcessThatHangs(t *testing.T) {
	lib := buildLibrary(t, "libcuda.so.1", fakeCUDA, "aa")
	m := newMachine(t, Options{})
	m.start(10, time.Minute, lib)
	m.scan(0)
	answer := m.hang("10")
	for range 4 {
		m.scan(time.Minute)
	}
	if m.kernel.open() != 1 {
		t.Error("its probes are gone")
	}
	if got := m.snapshot(0, 10).Untraced; len(got) != 0 {
		t.Errorf("%+v", got)
	}
	answer("")
	await.True(t, "the reading came back", func() bool { return len(m.tracer.find.silent) == 0 })
}

// Two mounts of one image have files that differ only in their device, and so do snapshots
// of one file system: with the probes of the first, the second would not be traced, without
// a word. A file of an overlay is that of a layer below, whatever its device.
func TestSameFile(t *testing.T) {
	c := content{buildID: "aa", inode: 7, size: 8, kind: tracer.LibraryNCCL}
	for name, x := range map[string]struct {
		have, id identity
		same     bool
	}{
		"the same":              {identity{c, 1, false}, identity{c, 1, false}, true},
		"another mount":         {identity{c, 1, false}, identity{c, 2, false}, false},
		"through an overlay":    {identity{c, 1, false}, identity{c, 2, true}, true},
		"below an overlay":      {identity{c, 2, true}, identity{c, 1, false}, true},
		"through two overlays":  {identity{c, 2, true}, identity{c, 3, true}, true},
		"another in an overlay": {identity{c, 1, false}, identity{content{buildID: "bb", inode: 7, size: 8, kind: c.kind}, 2, true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDiscovery(Options{Proc: t.TempDir()}, newFakeKernel())
			d.libraries[x.have] = &library{}
			if got := d.same(x.id) != nil; got != x.same {
				t.Errorf("the same: %v", got)
			}
		})
	}
}

// A reading that fails has holes. A process that is missing once would be a new one at the
// next reading, and all that it ever did would count a second time.
func TestHolesInReading(t *testing.T) {
	m := newMachine(t, Options{})
	m.start(10, time.Minute)
	whole := tracer.Process{
		PID: 10, Since: m.now, Ops: []tracer.OpStat{{Op: "cuLaunchKernel", Class: tracer.Launch, Time: histogramOf(100)}},
		Comms: []tracer.Comm{{ID: "0x1", Sequence: 5}, {ID: "0x2", Sequence: 6, Ended: true}},
	}
	m.kernel.processes[10] = whole
	m.snapshot(time.Second)
	m.kernel.fail = errors.New("cannot allocate memory")
	m.kernel.processes[10] = tracer.Process{PID: 10, Since: m.now, Comms: []tracer.Comm{{ID: "0x3", Sequence: 7, Ended: true}}}
	s := m.snapshot(time.Second)
	got := s.Processes
	whole.Comms = []tracer.Comm{{ID: "0x1", Sequence: 5}, {ID: "0x3", Sequence: 7, Ended: true}} // what ended is told once
	if d := cmp.Diff([]tracer.Process{whole}, got, cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Name" }, cmp.Ignore())); d != "" {
		t.Error(d)
	}
	if m.tracer.Err() == nil || len(m.kernel.forgotten) != 0 || s.Losses.MapFull["readings"] != 1 {
		t.Errorf("%v, %v forgotten, %v", m.tracer.Err(), m.kernel.forgotten, s.Losses.MapFull)
	}
}
