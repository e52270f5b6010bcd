//go:build linux && amd64

package live

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// Which functions are probed, and where: expensive and frequent ones are not.
func TestPoints(t *testing.T) {
	lib := buildLibrary(t, "libcuda.so.1", fakeCUDA, "aa")
	f := func(o Options, want []string, wantLibrary tracer.Library) {
		t.Helper()
		m := newMachine(t, o)
		m.start(10, time.Minute, lib)
		m.scan(0)
		var got []string
		for _, points := range m.kernel.points {
			for _, p := range points {
				got = append(got, p.Op.Name+" "+p.Symbol)
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
		wantLibrary.Path, wantLibrary.BuildID, wantLibrary.Kind, wantLibrary.Mode = lib, "aa", "cuda", "fake"
		if d := cmp.Diff([]tracer.Library{wantLibrary}, m.snapshot(0).Libraries); d != "" {
			t.Error(d)
		}
	}
	f(Options{}, []string{"cuLaunchKernel cuLaunchKernel", "cuMemAlloc cuMemAlloc_v2"}, tracer.Library{Probes: 2, Slow: 1, Skipped: 1})
	f(Options{Slow: true}, []string{"cuLaunchKernel cuLaunchKernel", "cuMemcpyAsync cuMemcpyAsync", "cuMemAlloc cuMemAlloc_v2"}, tracer.Library{Probes: 3, Slow: 2})
}

// fakeMapper has the processes that map a library.
type fakeMapper []uint32

func (f *fakeMapper) PIDs() (pids []uint32) { pids, *f = *f, nil; return pids }
func (f *fakeMapper) Close() error          { return nil }

// Catches a process that loads a library long after its start and is not looked at until its next turn.
func TestMapped(t *testing.T) {
	cuda, nccl := buildLibrary(t, "libcuda.so.1", fakeCUDA, "aa"), buildLibrary(t, "libnccl.so.2", fakeNCCL, "bb")
	m := newMachine(t, Options{})
	mapper := &fakeMapper{}
	m.tracer.mapper = mapper
	m.start(10, time.Minute, cuda)
	m.start(11, time.Minute)
	m.scan(0)
	m.remap(10, cuda, nccl)
	m.scan(2 * time.Second)
	m.kernel.has(t, "libcuda.so.1")
	*mapper = fakeMapper{10, 11, 10, 12}
	m.tracer.poll(m.now)
	m.kernel.has(t, "libcuda.so.1", "libnccl.so.2")
	m.remap(11, buildLibrary(t, "libcuda.so.580", fakeCUDA, "cc")) // which was not there yet
	m.scan(2 * time.Second)
	m.kernel.has(t, "libcuda.so.1", "libnccl.so.2", "libcuda.so.580")
}

// A library is probed once however many processes use it, under any path; a copy is another
// file.
func TestEachFileOnce(t *testing.T) {
	lib := buildLibrary(t, "libcuda.so.1", fakeCUDA, "aa")
	nccl := buildLibrary(t, "libnccl.so.2", fakeNCCL, "bb")
	linked := filepath.Join(filepath.Dir(nccl), "libcuda.so.580")
	if err := os.Link(lib, linked); err != nil {
		t.Skip("the folders are on two file systems: ", err)
	}
	copied := buildLibrary(t, "libcuda.so.2", fakeCUDA, "aa")
	m := newMachine(t, Options{})
	m.start(10, time.Minute, lib, nccl)
	m.start(11, time.Minute, linked)
	m.scan(0)
	m.start(12, time.Hour, lib, copied)
	m.scan(2 * time.Second)
	m.scan(2 * time.Second)
	if got := m.kernel.open(); got != 3 {
		t.Errorf("%d files are probed, want 3", got)
	}
	if n := len(m.kernel.attached); n != 3 {
		t.Errorf("probed %d times: %q", n, m.kernel.attached)
	}
}

// A file seen through two mounts has two devices and one inode. Probed twice, each call would
// be counted twice.
func TestOverlayIsOneFile(t *testing.T) {
	lib := buildLibrary(t, "libcuda.so.1", fakeCUDA, "aa")
	m := newMachine(t, Options{})
	m.start(10, time.Minute, lib)
	m.start(11, time.Minute, lib)
	b, err := os.ReadFile(filepath.Join(m.proc, "11", "maps"))
	if err != nil {
		t.Fatal(err)
	}
	m.write("11/maps", string(replaceDevice(b)))
	m.scan(0)
	m.kernel.has(t, "libcuda.so.1")
	if s := m.snapshot(0, 10, 11); len(s.Untraced) != 0 || len(s.Libraries) != 1 {
		t.Errorf("untraced %v, libraries %v", s.Untraced, s.Libraries)
	}
	m.stop(10)
	m.scan(2 * time.Second)
	m.scan(time.Minute)
	m.scan(2 * time.Second)
	if m.kernel.open() != 1 {
		t.Error("the other name still has a process, and lost its probes")
	}
	m.stop(11)
	for range 4 {
		m.scan(time.Minute)
	}
	if m.kernel.open() != 0 || len(m.tracer.find.files) != 0 || len(m.tracer.find.libraries) != 0 {
		t.Errorf("%d links, %d files left", m.kernel.open(), len(m.tracer.find.files))
	}
}

func replaceDevice(b []byte) []byte {
	out := []byte{}
	for i := 0; i < len(b); i++ {
		if i+5 <= len(b) && string(b[i:i+5]) == "08:01" {
			out = append(out, "00:2f"...)
			i += 4
			continue
		}
		out = append(out, b[i])
	}
	return out
}

// Probes stay while a process that was not examined for a minute may have started using the
// library, and are removed if it has not.
func TestDetach(t *testing.T) {
	lib := buildLibrary(t, "libcuda.so.1", fakeCUDA, "aa")
	m := newMachine(t, Options{})
	m.start(10, time.Minute, lib)
	m.start(11, time.Minute)
	m.scan(0)
	m.stop(10)
	m.scan(2 * time.Second)
	m.remap(11, lib) // an old process, looked at once a minute
	m.scan(28 * time.Second)
	m.scan(2 * time.Second)
	m.scan(2 * time.Second)
	m.scan(2 * time.Second)
	if m.kernel.open() != 1 {
		t.Fatal("a process has the library, and its probes went")
	}
	m.kernel.has(t, "libcuda.so.1")
	m.stop(11)
	m.scan(2 * time.Second)
	m.scan(31 * time.Second)
	m.scan(2 * time.Second)
	if m.kernel.open() != 0 {
		t.Error("nobody has the library, and its probes stay")
	}
	m.start(12, time.Hour, lib)
	m.scan(2 * time.Second)
	m.kernel.has(t, "libcuda.so.1", "libcuda.so.1")
	// Each idle period counts from its own start.
	m.stop(12)
	m.scan(2 * time.Second)
	m.scan(20 * time.Second)
	m.start(13, time.Hour, lib)
	m.scan(2 * time.Second)
	m.stop(13)
	m.scan(2 * time.Second)
	m.scan(20 * time.Second)
	m.scan(2 * time.Second)
	if m.kernel.open() != 1 {
		t.Error("the probes went too early")
	}
}

// A process that loads the library long after its start is found at once if the driver lists
// it, otherwise within a minute.
func TestLateLoad(t *testing.T) {
	lib := buildLibrary(t, "libcuda.so.1", fakeCUDA, "aa")
	m := newMachine(t, Options{})
	m.start(10, time.Minute)
	m.start(11, time.Hour)
	m.scan(0)
	m.remap(11, lib)
	m.scan(2 * time.Second)
	m.kernel.has(t, "libcuda.so.1")
	second := buildLibrary(t, "libcuda.so.1", fakeCUDA, "bb")
	m.remap(10, second)
	m.scan(2 * time.Second)
	m.kernel.has(t, "libcuda.so.1") // not due yet
	if s := m.snapshot(0, 10); len(s.Untraced) != 0 {
		t.Errorf("%v", s.Untraced)
	}
	m.kernel.has(t, "libcuda.so.1", "libcuda.so.1")
	third := buildLibrary(t, "libcuda.so.1", fakeCUDA, "cc")
	m.remap(10, third)
	m.scan(time.Minute)
	m.kernel.has(t, "libcuda.so.1", "libcuda.so.1", "libcuda.so.1")
}

// A reused pid must not inherit libraries.
func TestNumberUsedAgain(t *testing.T) {
	lib := buildLibrary(t, "libcuda.so.1", fakeCUDA, "aa")
	m := newMachine(t, Options{})
	m.start(10, time.Minute, lib)
	m.scan(0)
	if _, older, ok := m.tracer.find.process(10); !ok || !older {
		t.Error("it was here before us")
	}
	m.start(10, time.Hour+time.Second)
	m.scan(time.Minute)
	if _, older, ok := m.tracer.find.process(10); !ok || older {
		t.Error("another process has its place in time")
	}
	m.scan(31 * time.Second)
	m.scan(2 * time.Second)
	m.scan(2 * time.Second)
	if m.kernel.open() != 0 {
		t.Error("the probes of a process that is gone stay")
	}
}

// Processes on a device that are not traced are reported with the reason.
func TestUntraced(t *testing.T) {
	lib := buildLibrary(t, "libcuda.so.1", fakeCUDA, "aa")
	m := newMachine(t, Options{})
	m.start(10, time.Minute, lib)
	m.start(11, time.Minute)
	m.start(13, time.Minute)
	maps := filepath.Join(m.proc, "13", "maps")
	if err := errors.Join(os.Remove(maps), os.Symlink("/proc/1/mem-of-another", maps)); err != nil {
		t.Fatal(err)
	}
	m.kernel.refuse = errors.New("no room")
	m.scan(0)
	got := m.snapshot(0, 13, 12, 11, 10, 11).Untraced
	want := []tracer.Untraced{
		{PID: 10, Reason: attachFailed, Detail: "cannot probe " + lib + ": no room"},
		{PID: 11, Reason: noLibrary, Detail: "no libcuda mapped"},
		{PID: 12, Reason: noLibrary, Detail: "no such process in our pid namespace"},
		{PID: 13, Reason: noLibrary, Detail: "the process has exited"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	// A failed attach is retried, but not at every search, and then the problem is cleared.
	m.kernel.refuse = fmt.Errorf("cannot attach: %w", os.ErrPermission)
	m.scan(11 * time.Second)
	if got := m.snapshot(0, 10).Untraced; len(got) != 1 || got[0].Reason != permissionDenied {
		t.Errorf("%+v", got)
	}
	m.kernel.refuse = nil
	if got := m.snapshot(time.Second, 10).Untraced; len(got) != 1 {
		t.Errorf("tried again at once: %+v", got)
	}
	if got := m.snapshot(time.Minute, 10).Untraced; len(got) != 0 {
		t.Errorf("%+v", got)
	}
	if p := m.snapshot(0).Libraries[0].Problem; p != "" {
		t.Errorf("the problem stays: %s", p)
	}
}

// Another user's process cannot be examined without privileges.
func TestPermissionDenied(t *testing.T) {
	p := &process{problem: &os.PathError{Op: "open", Path: "maps", Err: os.ErrPermission}}
	if got := p.untraced(); got.Reason != permissionDenied {
		t.Errorf("%+v", got)
	}
}

// NCCL linked into an executable is found if the program uses CUDA; a program without NCCL is
// not a problem.
func TestLinkedIn(t *testing.T) {
	lib := buildLibrary(t, "libcuda.so.1", fakeCUDA, "aa")
	dir := filepath.Dir(lib)
	with := build(t, filepath.Join(dir, "with"), fakeNCCL+"\nint main(void) { return 0; }")
	without := build(t, filepath.Join(dir, "without"), "int main(void) { return 0; }")
	m := newMachine(t, Options{Slow: true})
	for pid, exe := range map[uint32]string{10: with, 11: without} {
		m.start(pid, time.Minute, exe, lib)
		if err := os.Symlink(exe, filepath.Join(m.proc, fmt.Sprint(pid), "exe")); err != nil {
			t.Fatal(err)
		}
	}
	m.scan(0)
	var kinds []string
	for _, l := range m.snapshot(0).Libraries {
		kinds = append(kinds, l.Kind+" "+filepath.Base(l.Path)+" "+l.Problem)
	}
	if d := cmp.Diff([]string{"cuda libcuda.so.1 ", "nccl with "}, kinds); d != "" {
		t.Error(d)
	}
}

// The number of files named by containers is bounded, and the excess is counted.
func TestDiscoveryIsBounded(t *testing.T) {
	lib := buildLibrary(t, "libcuda.so.1", fakeCUDA, "aa")
	m := newMachine(t, Options{})
	for i := range maxLibraries {
		m.tracer.find.libraries[identity{device: uint64(i)}] = &library{users: 1}
	}
	m.start(10, time.Minute, lib)
	m.scan(0)
	if got := m.snapshot(0, 10).Untraced; len(got) != 1 || got[0].Reason != attachFailed {
		t.Errorf("%+v", got)
	}
	clear(m.tracer.find.libraries)
	clear(m.tracer.find.files)
	for i := range maxFiles {
		m.tracer.find.files[fileKey{inode: uint64(i)}] = &library{users: 1}
	}
	m.scan(2 * time.Minute)
	if s := m.snapshot(0); s.Losses.MapFull["files"] == 0 || m.kernel.open() != 0 {
		t.Errorf("%v, %d probed", s.Losses.MapFull, m.kernel.open())
	}
}

// A file that is not ELF, or has none of the functions, affects only itself and is reported.
func TestHostileLibrary(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "libcuda.so.1")
	if err := os.WriteFile(bad, []byte("\x7fELF\x02\x01\x01 and so on"), 0o644); err != nil {
		t.Fatal(err)
	}
	empty := buildLibrary(t, "libcuda.so.2", "int nothing(void) { return 0; }", "aa")
	good := buildLibrary(t, "libcuda.so.3", fakeCUDA, "bb")
	m := newMachine(t, Options{})
	m.start(10, time.Minute, bad)
	m.start(11, time.Minute, empty)
	m.start(12, time.Minute, good)
	m.scan(0)
	m.kernel.has(t, "libcuda.so.3")
	for _, l := range m.snapshot(0).Libraries {
		if (l.Problem == "") != (l.Path == good) {
			t.Errorf("%s: %q", l.Path, l.Problem)
		}
	}
	if got := m.snapshot(0, 10, 11, 12).Untraced; len(got) != 2 {
		t.Errorf("%+v", got)
	}
	for pid := range uint32(3) {
		m.stop(10 + pid)
	}
	for range 4 {
		m.scan(time.Minute)
	}
	if n := len(m.tracer.find.files) + len(m.tracer.find.libraries); n != 0 {
		t.Errorf("%d are remembered of processes that are gone", n)
	}
}
