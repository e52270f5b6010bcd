//go:build linux

package sampler

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/await"
)

// Catches a profile that never ends because one process hangs in a driver with the lock of its memory map.
func TestMapsOfHungProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "7", "maps")
	if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(file, 0o600); err != nil { // to open it waits for a writer
		t.Fatal(err)
	}
	s := &sampler{o: Options{Proc: dir}, silent: map[uint32]chan mapped{}}
	for range 2 { // the second look starts no further read
		if _, err := s.maps(7); err != errSilent { //nolint:errorlint // itself
			t.Fatalf("maps of a process that hangs: %v", err)
		}
	}
	w, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	const line = "7f0000000000-7f0000001000 r-xp 00000000 08:01 42 /usr/lib/libcuda.so.1\n"
	if _, err := w.WriteString(line); err != nil {
		t.Fatal(err)
	}
	w.Close()
	await.True(t, "the late answer is used", func() bool {
		maps, err := s.maps(7)
		return err == nil && len(maps) == 1 && maps[0].Path == "/usr/lib/libcuda.so.1"
	})
}
