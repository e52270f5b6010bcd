// Package nvmltest gives tests a libnvidia-ml.so.1 that they script. It is imported
// by tests only. The grammar of the script is in ../testdata/fakenvml/README.md.
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

// Host is a folder that holds the fake library and what belongs to it.
type Host struct {
	Dir     string
	Library string // the path of libnvidia-ml.so.1
}

// New puts the fake library into a fresh folder with script beside it. It skips the
// test where there is no gcc, unless GPUMETER_REQUIRE names gcc.
func New(t testing.TB, script string) *Host {
	t.Helper()
	return Without(t, script)
}

// Without is New with a library that lacks the symbols, as that of an older driver
// does. A symbol may be a glob pattern, such as nvmlGpm*.
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

// Script replaces the script. The library sees all of it or nothing, at its next call.
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

// OpenFiles returns the sorted names of the device files of h that a process holds
// open, such as nvidia0 and nvidiactl.
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

// sources finds the C files, from any package's test.
func sources() (string, error) {
	const path = "internal/device/nvidia/testdata/fakenvml"
	// With -trimpath the name of this file is no path: then go up from the working
	// directory, which is a package's folder while its tests run.
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
