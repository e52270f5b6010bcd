//go:build linux

package cli_test

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Catches a demo that leaves its data behind when its terminal or ssh goes away.
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
	deadline := time.Now().Add(2 * patience)
	for !strings.Contains(out.String(), "Ctrl-C") {
		select {
		case err := <-ended:
			t.Fatalf("the demo ended: %v\n%s", err, out.String())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("the demo says nothing but\n%s", out.String())
		}
	}
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the demo ends with %v\n%s", err, out.String())
		}
	case <-time.After(2 * patience):
		t.Fatal("the demo does not end")
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("the demo left %v (%v)", left, err)
	}
}
