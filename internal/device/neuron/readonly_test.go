//go:build linux

package neuron

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/device"
)

// Writing to a counter clears it, and writing to reset resets the device under a running
// workload. inotify shows what was opened: nothing for writing, and reset not at all.
func TestNothingIsWritten(t *testing.T) {
	m := tree{}.device(0, 2).process(42, "python3", 0)
	root := m.write(t, t.TempDir())
	for _, name := range m.sortedKeys() {
		if path := filepath.Join(root, name); strings.HasPrefix(name, virtual) {
			if err := os.Chmod(path, 0o444); err != nil {
				t.Fatal(err)
			}
		}
	}
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Skipf("no inotify: %v", err)
	}
	defer unix.Close(watch)
	err = filepath.WalkDir(filepath.Join(root, "sys"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		_, err = unix.InotifyAddWatch(watch, path, unix.IN_OPEN|unix.IN_MODIFY|unix.IN_ATTRIB|unix.IN_CLOSE_WRITE|unix.IN_CREATE|unix.IN_DELETE|unix.IN_MOVE)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	r := open(t, Options{Root: root})
	for range 3 {
		for _, d := range devices(t, r) {
			for _, tier := range []device.Tier{device.Static, device.Slow, device.Fast} {
				if _, err := d.Read(t.Context(), tier); err != nil {
					t.Error(err)
				}
			}
		}
		Diagnose(t.Context(), Options{Root: root})
	}
	opened := 0
	for buf := make([]byte, 1<<16); ; {
		n, err := unix.Read(watch, buf)
		if n <= 0 || err != nil {
			break
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			e := (*unix.InotifyEvent)(unsafe.Pointer(&b[0]))
			name := strings.TrimRight(string(b[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+e.Len]), "\x00")
			if e.Mask&^(unix.IN_OPEN|unix.IN_ISDIR|unix.IN_Q_OVERFLOW) != 0 {
				t.Errorf("event %#x on %s", e.Mask, name)
			}
			if name == "reset" {
				t.Error("reset was opened")
			}
			opened++
			b = b[unix.SizeofInotifyEvent+e.Len:]
		}
	}
	if opened == 0 {
		t.Error("inotify reported no open at all: the test does not work")
	}
	for name, want := range m {
		if !strings.HasPrefix(name, virtual) {
			continue
		}
		if got, err := os.ReadFile(filepath.Join(root, name)); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v", name, got, err)
		}
	}
}

// The package's source names no function that could write.
func TestNoWriteInSource(t *testing.T) {
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	looked := 0
	for _, name := range sources {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		looked++
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			for _, bad := range []string{"Write", "Create", "OpenFile", "O_RDWR", "O_WRONLY", "O_TRUNC", "Truncate", "Remove", "Rename", "Sendfile", "Splice", "Mmap", "Ioctl", "Syscall"} {
				if strings.HasPrefix(sel.Sel.Name, bad) || strings.HasPrefix(sel.Sel.Name, "P"+strings.ToLower(bad)) {
					t.Errorf("%s names %s", name, sel.Sel.Name)
				}
			}
			return true
		})
	}
	if looked < 5 {
		t.Errorf("only %d files were examined", looked)
	}
}
