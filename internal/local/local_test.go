//go:build linux

package local

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
)

func TestProcessName(t *testing.T) {
	proc := t.TempDir()
	if err := os.MkdirAll(filepath.Join(proc, "42"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(proc, "42", "comm"), []byte("my app\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	name := processName(proc)
	if got := name(42); got != "my app" {
		t.Errorf("name = %q", got)
	}
	if got := name(43); got != "" {
		t.Errorf("a process that is gone is called %q", got)
	}
}

// The demo simulates only where there is nothing to read.
func TestHasDevices(t *testing.T) {
	if HasDevices(t.Context(), Config{Root: t.TempDir()}) {
		t.Error("an empty machine has devices")
	}
	h := nvmltest.New(t, "gpus 2")
	if !HasDevices(t.Context(), Config{Root: t.TempDir(), LibraryDirs: []string{h.Dir}}) {
		t.Error("a machine with GPUs has none")
	}
	if open := h.OpenFiles(t, os.Getpid()); len(open) > 0 {
		t.Errorf("looking left %v open", open)
	}
}
