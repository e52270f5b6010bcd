package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer/training"
)

// Catches a process that is gone, or that may not be looked at, as one that writes nothing, and one PID's writes as
// those of another.
func TestWriters(t *testing.T) {
	proc := t.TempDir()
	write := func(pid int, bytes int64) {
		t.Helper()
		dir := filepath.Join(proc, fmt.Sprint(pid))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 5\nwrite_bytes: %d\ncancelled_write_bytes: 0\n", bytes)
		if err := os.WriteFile(filepath.Join(dir, "io"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w := NewWriters(proc)
	w.Follow([]uint32{7, 8})
	noon := time.Date(2026, 11, 19, 12, 0, 0, 0, time.UTC)
	written := int64(5 << 30) // long ago
	for second := range 10 {
		if second >= 3 && second < 6 {
			written += 1 << 30
		}
		write(7, written)
		w.Sample(noon.Add(time.Duration(second) * time.Second))
	}
	want := training.Writes{Checkpoints: 1, Bytes: 3 << 30, Time: 3 * time.Second, Last: noon.Add(5 * time.Second)}
	if got := w.Of(7, false); got == nil || *got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if w.Of(8, false) != nil || w.Of(9, false) != nil {
		t.Error("what a process writes that cannot be read is known")
	}
	w.Follow([]uint32{7})
	if got := w.Of(7, true); got == nil || *got != want {
		t.Errorf("at the end: %+v, want %+v", got, want)
	}
	w.Follow(nil)
	if w.Of(7, false) != nil {
		t.Error("a process that is not followed is remembered")
	}
}
