// Package nvmltest provides a fake libnvidia-ml.so.1 that tests control with a script. It
// compiles the fake from C and needs gcc. Only tests import it. The script grammar is
// documented in ../testdata/fakenvml/README.md.
package nvmltest

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Host is a directory that holds the fake library and its files.
type Host struct {
	Dir     string
	Library string // path of libnvidia-ml.so.1
}

// New creates the fake library in a fresh directory, with script next to it. It skips the
// test if gcc is missing, unless GPUMETER_REQUIRE names gcc.
func New(t testing.TB, script string) *Host {
	t.Helper()
	return Without(t, script)
}

// Without is New with a library that does not have the given symbols, like the library of
// an older driver. A symbol may be a glob pattern, such as nvmlGpm*.
func Without(t testing.TB, script string, symbols ...string) *Host {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		if slices.Contains(strings.Split(os.Getenv("GPUMETER_REQUIRE"), ","), "gcc") {
			t.Fatal("gcc is required to build the fake NVML library: ", err)
		}
		t.Skip("the fake NVML library needs gcc: ", err)
	}
	library, err := build(symbols)
	if err != nil {
		t.Fatal(err)
	}
	// The kernel names open files by their resolved path.
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h := &Host{Dir: dir, Library: filepath.Join(dir, "libnvidia-ml.so.1")}
	if err := os.WriteFile(h.Library, library, 0o755); err != nil {
		t.Fatal(err)
	}
	h.Script(t, script)
	return h
}

// Script replaces the script atomically. It takes effect at the library's next call.
func (h *Host) Script(t testing.TB, script string) {
	t.Helper()
	next := filepath.Join(h.Dir, "fake.conf.next")
	if err := os.WriteFile(next, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(h.Dir, "fake.conf")); err != nil {
		t.Fatal(err)
	}
}

// Append adds lines to the script; the last line that sets a value wins.
func (h *Host) Append(t testing.TB, lines string) {
	t.Helper()
	script, err := os.ReadFile(filepath.Join(h.Dir, "fake.conf"))
	if err != nil {
		t.Fatal(err)
	}
	h.Script(t, string(script)+"\n"+lines)
}

var deviceFile = regexp.MustCompile(`^nvidia(ctl|[0-9]+)$`)

// OpenFiles returns the sorted names of h's device files that a process holds open, such as
// nvidia0 and nvidiactl.
func (h *Host) OpenFiles(t testing.TB, pid int) []string {
	t.Helper()
	folder := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	fds, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, fd := range fds {
		path, err := os.Readlink(filepath.Join(folder, fd.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // closed meanwhile
		}
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Dir(path) == h.Dir && deviceFile.MatchString(filepath.Base(path)) {
			names = append(names, filepath.Base(path))
		}
	}
	slices.Sort(names)
	return names
}

// sources returns the directory of the C files. It works from any package's tests.
func sources() (string, error) {
	const path = "internal/device/nvidia/testdata/fakenvml"
	// With -trimpath the name of this file is not a path: then search upwards from the
	// working directory, which is the package directory while its tests run.
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		return filepath.Join(filepath.Dir(file), "..", "testdata", "fakenvml"), nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, filepath.FromSlash(path)), nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("cannot find the sources of the fake NVML library: no go.mod above the working directory")
		}
		dir = filepath.Dir(dir)
	}
}
