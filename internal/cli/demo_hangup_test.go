//go:build linux

package cli_test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/gpumeter/gpumeter/internal/await"
)

// Catches a demo that leaves its data behind when its terminal or SSH session closes.
func TestDemoHangup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := command(t.Context(), []string{"TMPDIR=" + dir}, "demo", "--listen", "localhost:0", "--nodes", "1", "--history", "0s")
	out := &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	await.NoError(t, func() error {
		select {
		case err := <-ended:
			t.Fatalf("the demo ended: %v\n%s", err, out.String())
		default:
		}
		if !strings.Contains(out.String(), "Ctrl-C") {
			return fmt.Errorf("the demo says nothing but\n%s", out.String())
		}
		return nil
	})
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the demo ends with %v\n%s", err, out.String())
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("the demo left %v (%v)", left, err)
	}
}
