package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// machine is a fake procfs that a test changes.
type machine string

func newMachine(t *testing.T) machine { t.Helper(); return machine(t.TempDir()) }

func (m machine) write(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(string(m), name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (m machine) start(t *testing.T, pid int, start uint64, cgroup string) {
	t.Helper()
	m.write(t, strconv.Itoa(pid)+"/stat", fmt.Sprintf("%d (a) (b c) S 1 1 1 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 %d 0 0 0\n", pid, start))
	m.write(t, strconv.Itoa(pid)+"/cgroup", cgroup)
}

func TestReaderTellsReusedPIDs(t *testing.T) {
	m := newMachine(t)
	r := NewReader(string(m))
	f := func(want Container) {
		t.Helper()
		got, ok, err := r.Container(7)
		if diff := cmp.Diff(want, got); diff != "" || ok != (want != Container{}) || err != nil {
			t.Errorf("got %v, %v (-want +got):\n%s", ok, err, diff)
		}
	}
	m.start(t, 7, 100, "0::/docker/"+mainID)
	f(Container{ID: mainID, Runtime: "docker"})
	m.start(t, 7, 101, "0::/docker/"+nodeID)
	f(Container{ID: nodeID, Runtime: "docker"})
	m.start(t, 7, 102, "0::/")
	f(Container{})
}

// A runtime starts a process in its own group and then moves it.
func TestReaderAsksAgain(t *testing.T) {
	m := newMachine(t)
	r := NewReader(string(m))
	now := time.Unix(1000, 0)
	r.now = func() time.Time { return now }
	f := func(want bool) {
		t.Helper()
		if _, got, err := r.Container(7); got != want || err != nil {
			t.Errorf("got %v, %v, want %v", got, err, want)
		}
	}
	m.start(t, 7, 100, "0::/system.slice/docker.service")
	f(false)
	m.start(t, 7, 100, "0::/docker/"+mainID)
	f(false) // cached
	now = now.Add(rememberNone)
	f(true)
	m.start(t, 7, 100, "0::/")
	now = now.Add(remember - 1)
	f(true)
	now = now.Add(1)
	f(false)
}

func TestReaderGone(t *testing.T) {
	m := newMachine(t)
	r := NewReader(string(m))
	if _, ok, err := r.Container(7); ok || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an exited process: %v, %v", ok, err)
	}
	m.start(t, 7, 100, "0::/docker/"+mainID)
	m.write(t, "7/stat", "7 (torn) S 1 1")
	if _, ok, err := r.Container(7); ok || err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a truncated file: %v, %v", ok, err)
	}
}

func TestReaderIsBounded(t *testing.T) {
	m := newMachine(t)
	r := NewReader(string(m))
	now := time.Unix(1000, 0)
	r.now = func() time.Time { return now }
	for i := range maxCache {
		r.known[process{uint32(i), 1}] = answer[Container]{until: now.Add(time.Duration(i%2) * time.Hour)}
	}
	m.start(t, 7, 100, "0::/docker/"+mainID)
	m.start(t, 8, 100, "0::/")
	f := func(pid uint32, size int) {
		t.Helper()
		if _, _, err := r.Container(pid); err != nil {
			t.Fatal(err)
		}
		if len(r.known) != size {
			t.Errorf("%d remembered, want %d", len(r.known), size)
		}
	}
	f(7, maxCache/2+1) // the expired half makes room
	for i := range maxCache/2 - 1 {
		r.known[process{uint32(i), 2}] = answer[Container]{until: now.Add(time.Hour)}
	}
	f(8, 1)
}

func TestHostPIDNamespace(t *testing.T) {
	f := func(stat2, link string, want bool, wantErr error) {
		t.Helper()
		m := newMachine(t)
		if stat2 != "" {
			m.write(t, "2/stat", stat2)
		}
		if link != "" {
			m.write(t, "self/ns/x", "")
			if err := os.Symlink(link, filepath.Join(string(m), "self/ns/pid")); err != nil {
				t.Fatal(err)
			}
		}
		got, err := NewReader(string(m)).HostPIDNamespace()
		if got != want || !errors.Is(err, wantErr) {
			t.Errorf("got %v, %v, want %v, %v", got, err, want, wantErr)
		}
	}
	const (
		kthreadd = "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 2 0 0 20 0 1 0 24 0 0"
		named    = "2 (kthreadd) S 0 0 0 0 -1 4194304 0 0 0 0 0 2 0 0 20 0 1 0 24 0 0"
		nested   = "pid:[4026532501]"
	)
	f(kthreadd, "", true, nil)
	f(kthreadd, nested, true, nil) // the host's /proc, seen from a container
	f(named, nested, false, nil)   // any process may have that name
	f("", nested, false, nil)
	f("", initialPIDNamespace, true, nil) // hidepid
	f("", "", false, fs.ErrNotExist)
}

// The real procfs has more fields and other permissions than a fake one.
func TestReaderOnThisMachine(t *testing.T) {
	if _, err := os.Stat("/proc/self/cgroup"); err != nil {
		t.Skipf("no process files: %v", err)
	}
	r := NewReader("/proc")
	if _, _, err := r.Container(uint32(os.Getpid())); err != nil {
		t.Error(err)
	}
	if _, err := r.HostPIDNamespace(); err != nil {
		t.Error(err)
	}
	st, err := ReadStat("/proc", uint32(os.Getpid()))
	if err != nil || st.Kernel || st.Start == 0 || st.Comm == "" {
		t.Errorf("got %+v, %v", st, err)
	}
}

func BenchmarkReaderKnown(b *testing.B) {
	r := NewReader("/proc")
	pid := uint32(os.Getpid())
	for b.Loop() {
		if _, _, err := r.Container(pid); err != nil {
			b.Fatal(err)
		}
	}
}
