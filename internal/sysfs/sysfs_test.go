//go:build linux

package sysfs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func write(t *testing.T, dir, name, data string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Plain string order would number the cards of a large machine 0, 1, 10, 11, 2.
func TestGlobOrder(t *testing.T) {
	root := t.TempDir()
	for _, n := range []string{"card10", "card2", "card0", "card2-DP-1", "card02"} {
		write(t, root, n+"/x", "")
	}
	var got []string
	for _, d := range Dir(root).Glob("card*") {
		got = append(got, d.Base())
	}
	if diff := cmp.Diff([]string{"card0", "card02", "card2", "card2-DP-1", "card10"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNumbers(t *testing.T) {
	f := func(content string, wantFloat float64, floatErr string, wantUint uint64, uintErr string) {
		t.Helper()
		root := t.TempDir()
		write(t, root, "a", content)
		v, err := Dir(root).Float("a")
		if v != wantFloat || !says(err, floatErr) {
			t.Errorf("%q: float %v, %v", content, v, err)
		}
		u, err := Dir(root).Uint("a")
		if u != wantUint || !says(err, uintErr) {
			t.Errorf("%q: uint %v, %v", content, u, err)
		}
	}
	f("0\n", 0, "", 0, "")
	f(" 42 \n", 42, "", 42, "")
	f("-5\n", -5, "", 0, "not an unsigned integer")
	f("0x1002\n", 0, "not a number", 0x1002, "")
	f("N/A\n", 0, `"N/A" is not a number`, 0, "not an unsigned integer")
	f("", 0, "not a number", 0, "not an unsigned integer")
	f(strings.Repeat("x", 5000), 0, "not a number", 0, "not an unsigned integer")
}

func says(err error, want string) bool {
	if want == "" {
		return err == nil
	}
	return err != nil && strings.Contains(err.Error(), want) && len(err.Error()) < 300
}

// A missing file, an unreadable file and an empty file are three different results.
func TestAbsent(t *testing.T) {
	root := Dir(t.TempDir())
	write(t, string(root), "file", "")
	for _, name := range []string{"missing", "file/below"} {
		if _, err := root.Text(name); !Absent(err) {
			t.Errorf("%s: %v is not absent", name, err)
		}
	}
	for _, e := range []error{unix.EIO, unix.EPERM, unix.EACCES, unix.EBUSY, unix.EAGAIN, nil} {
		if Absent(&os.PathError{Op: "read", Path: "x", Err: e}) {
			t.Errorf("%v is absent", e)
		}
	}
	if s, err := root.Text("file"); s != "" || err != nil {
		t.Errorf("an empty file: %q, %v", s, err)
	}
}

// A driver may answer EAGAIN, as an empty pipe does. Waiting for it would block the
// device's worker.
func TestNeverWaits(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "pipe")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Skip(err)
	}
	writer, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if _, err := Dir(root).Text("pipe"); err == nil || Absent(err) {
		t.Errorf("error %v", err)
	}
}

func TestLink(t *testing.T) {
	root := t.TempDir()
	if err := os.Symlink("../../../bus/pci/drivers/amdgpu", filepath.Join(root, "driver")); err != nil {
		t.Fatal(err)
	}
	if s, err := Dir(root).Link("driver"); s != "amdgpu" || err != nil {
		t.Errorf("%q, %v", s, err)
	}
}

// A link that is down, or of an unknown generation, has none. Generation 0 would look like
// a slow link.
func TestLinkGeneration(t *testing.T) {
	for speed, want := range map[string]int{
		"2.5 GT/s PCIe": 1, "5.0 GT/s PCIe": 2, "5 GT/s": 2, "8.0 GT/s PCIe": 3, "16.0 GT/s PCIe": 4, "32.0 GT/s PCIe": 5, "64.0 GT/s PCIe": 6, "128.0 GT/s PCIe": 7,
		"Unknown": 0, "": 0, "7 GT/s": 0, "NaN GT/s": 0, "-16.0 GT/s": 0,
	} {
		if got := LinkGeneration(speed); got != want {
			t.Errorf("%q is generation %d, want %d", speed, got, want)
		}
	}
}
