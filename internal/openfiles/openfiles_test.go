//go:build linux

package openfiles

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// process creates an entry below proc for a process with open files.
func process(t *testing.T, proc, pid string, open map[int]string) {
	t.Helper()
	dir := filepath.Join(proc, pid, "fd")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for fd, to := range open {
		if err := os.Symlink(to, filepath.Join(dir, strconv.Itoa(fd))); err != nil {
			t.Fatal(err)
		}
	}
}

func TestBelow(t *testing.T) {
	proc := t.TempDir()
	process(t, proc, "7", map[int]string{0: "/dev/null", 3: "/dev/accel/accel0", 12: "/dev/accel/accel1"})
	process(t, proc, "8", map[int]string{3: "socket:[1]"})
	process(t, proc, "self", map[int]string{3: "/dev/accel/accel0"}) // an alias of a process
	if err := os.MkdirAll(filepath.Join(proc, "9"), 0o700); err != nil {
		t.Fatal(err) // the process has exited
	}
	got, denied, err := Below(proc, "/dev/accel/", "/dev/hl")
	if err != nil || denied != 0 {
		t.Fatalf("denied %d, %v", denied, err)
	}
	slices.SortFunc(got, func(a, b File) int { return a.FD - b.FD })
	want := []File{{7, 3, "/dev/accel/accel0"}, {7, 12, "/dev/accel/accel1"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, _, err := Below(filepath.Join(proc, "none")); err == nil {
		t.Error("no error for a missing /proc")
	}
}

// The files of a real process are found under the kernel's own names.
func TestReal(t *testing.T) {
	f, err := os.Open(filepath.Join(t.TempDir(), "."))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, _, err := Below("/proc", f.Name())
	if err != nil || len(got) != 1 || got[0].PID != uint32(os.Getpid()) || got[0].FD != int(f.Fd()) {
		t.Errorf("%v, %v", got, err)
	}
}
