//go:build linux && amd64

package live

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/tracer"
)

// installDriver puts a library where one is installed below root, and returns the file.
func installDriver(t *testing.T, root, source string) string {
	t.Helper()
	file := filepath.Join(root, "usr/lib/x86_64-linux-gnu/libcuda.so.580.1")
	lib64 := filepath.Join(root, "usr/lib64")
	err := errors.Join(
		os.MkdirAll(filepath.Dir(file), 0o755),
		os.MkdirAll(lib64, 0o755),
		os.Symlink("libcuda.so.580.1", filepath.Join(filepath.Dir(file), driverName)),
		// It leads to the same file only for who has this root.
		os.Symlink("/usr/lib/x86_64-linux-gnu/libcuda.so.1", filepath.Join(lib64, driverName)),
	)
	if err != nil {
		t.Fatal(err)
	}
	return build(t, file, source, "-shared", "-fPIC", "-nostdlib", "-Wl,--build-id=0xaa")
}

// The driver's library has probes before anybody uses it and while nobody does, once,
// however it is found; and none when it is replaced.
func TestInstalled(t *testing.T) {
	m := newMachine(t, Options{})
	file := installDriver(t, filepath.Join(m.proc, "1/root"), fakeCUDA)
	m.scan(0)
	m.kernel.has(t, "libcuda.so.580.1")
	want := []tracer.Library{{Path: "/usr/lib/x86_64-linux-gnu/libcuda.so.580.1", BuildID: "aa", Kind: "cuda", Mode: "fake", Probes: 2, Slow: 1, Skipped: 1}}
	if d := cmp.Diff(want, m.snapshot(0).Libraries); d != "" {
		t.Error(d)
	}
	m.start(10, m.uptime+time.Second, file)
	m.scan(2 * time.Second)
	m.stop(10)
	for range 4 {
		m.scan(time.Minute)
	}
	m.kernel.has(t, "libcuda.so.580.1")
	if m.kernel.open() != 1 || len(m.tracer.find.files) != 1 {
		t.Errorf("%d files are probed, %d known, want 1", m.kernel.open(), len(m.tracer.find.files))
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		m.scan(time.Minute)
	}
	if m.kernel.open() != 0 || len(m.tracer.find.files) != 0 {
		t.Errorf("the file is gone: %d are probed, %d known", m.kernel.open(), len(m.tracer.find.files))
	}
}

// A pipe in the place of the library must not be opened: that would wait for ever.
func TestInstalledIsNoLibrary(t *testing.T) {
	m := newMachine(t, Options{})
	dir := filepath.Join(m.proc, "1/root", installFolders[0])
	if err := errors.Join(os.MkdirAll(dir, 0o755), syscall.Mkfifo(filepath.Join(dir, driverName), 0o644)); err != nil {
		t.Fatal(err)
	}
	m.scan(0)
	m.kernel.has(t)
}

// Who had the driver's library before it had probes has made calls that nobody saw; who
// began later, or did not have it later, has not.
func TestOlderThanProbes(t *testing.T) {
	lib := buildLibrary(t, "libcuda.so.1", fakeCUDA, "aa")
	m := newMachine(t, Options{})
	m.scan(time.Second)
	m.start(10, m.uptime+10*time.Millisecond, lib)
	m.start(11, m.uptime+10*time.Millisecond)
	m.scan(2 * time.Second)
	m.start(12, m.uptime+time.Second, lib)
	m.scan(2 * time.Second)
	m.scan(time.Minute)
	m.remap(11, lib)
	m.scan(2 * time.Minute)
	got := map[uint32]bool{}
	for pid := uint32(10); pid < 13; pid++ {
		_, older, ok := m.tracer.find.process(pid)
		if !ok {
			t.Errorf("process %d is not known", pid)
		}
		got[pid] = older
	}
	if d := cmp.Diff(map[uint32]bool{10: true, 11: false, 12: false}, got); d != "" {
		t.Error(d)
	}
	// One that ends before it is asked for was no less incomplete.
	m.kernel.processes[10] = tracer.Process{PID: 10, Ended: true}
	m.tracer.mu.Lock()
	m.tracer.read(m.now)
	m.tracer.mu.Unlock()
	m.stop(10)
	m.scan(2 * time.Second)
	if s := m.snapshot(0); len(s.Processes) != 1 || !s.Processes[0].Older {
		t.Errorf("processes are %+v", s.Processes)
	}
}

// The first process that uses an installed library is counted from its first call, though it
// has ended before any search could find it.
func TestFirstProcess(t *testing.T) {
	root := t.TempDir()
	lib := installDriver(t, root, driver)
	program := build(t, filepath.Join(root, "worker"), worker, "-ldl")
	tr := running(t, Options{Roots: []string{root}})
	await.True(t, "probes", func() bool { // others of this machine may have theirs
		return slices.ContainsFunc(tr.Snapshot(time.Now(), nil).Libraries, func(l tracer.Library) bool { return l.Path == "/usr/lib/x86_64-linux-gnu/libcuda.so.580.1" })
	})
	cmd := exec.Command(program, lib, "1000")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	pid := uint32(cmd.Process.Pid)
	var got string
	await.True(t, "the process", func() bool {
		for _, p := range tr.Snapshot(time.Now(), nil).Processes {
			if p.PID == pid && p.Ended {
				got = fmt.Sprint(launches(tracer.Snapshot{Processes: []tracer.Process{p}}, pid), p.Older)
			}
		}
		return got != ""
	})
	if got != "1000 false" {
		t.Errorf("launches, and whether it is older: %s", got)
	}
}

// An exec is an end and a beginning: two of one number in one snapshot, each with its own.
func TestExecIsAnotherProcess(t *testing.T) {
	m := newMachine(t, Options{})
	m.start(10, time.Minute)
	first, second := time.Unix(100, 0), time.Unix(200, 0)
	m.kernel.processes[10] = tracer.Process{PID: 10, Since: first}
	m.snapshot(time.Second)
	m.tracer.finals = []tracer.Process{{PID: 10, Since: first, Ended: true}}
	m.kernel.processes[10] = tracer.Process{PID: 10, Since: second}
	for range 2 {
		var got []tracer.Process
		for _, p := range m.snapshot(time.Second).Processes {
			got = append(got, tracer.Process{Since: p.Since, Ended: p.Ended})
		}
		if last := len(got) - 1; last < 0 || !got[last].Since.Equal(second) || got[last].Ended || last > 0 && !got[0].Since.Equal(first) {
			t.Errorf("processes are %+v", got)
		}
	}
}

// The same with the kernel: who adds up what snapshots tell, by number and Since, has each
// call of both programs once, and none falls.
func TestExecInSnapshots(t *testing.T) {
	_, lib, exe := fixtures(t)
	j := startJob(t, exe, lib)
	tr := running(t, Options{})
	if !has(tr.Features(), "exec") {
		t.Skip("the kernel does not tell of exec")
	}
	traced(t, tr, j)
	counts, ended := map[time.Time]uint64{}, 0
	look := func() {
		for _, p := range tr.Snapshot(time.Now(), nil).Processes {
			if p.PID != j.pid() {
				continue
			}
			n := launches(tracer.Snapshot{Processes: []tracer.Process{p}}, p.PID)
			if n < counts[p.Since] {
				t.Errorf("%d launches since %v, and then %d", counts[p.Since], p.Since, n)
			}
			counts[p.Since] = n
			if p.Ended {
				ended++
			}
		}
	}
	j.launch(10)
	look()
	j.launch(3)
	if _, err := io.WriteString(j.in, "x\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := j.out.ReadString('\n'); line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	j.launch(20)
	look()
	j.launch(4)
	look()
	if got := slices.Sorted(maps.Values(counts)); !slices.Equal(got, []uint64{13, 24}) || ended != 1 {
		t.Errorf("launches are %v, %d programs have ended; want 13 and 24, and 1", got, ended)
	}
}
