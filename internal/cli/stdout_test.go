//go:build linux

package cli_test

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/await"
)

// writer starts an agent that writes OTLP to out.
func writer(t *testing.T, out *os.File) (cmd *exec.Cmd, log *lockedBuffer) {
	t.Helper()
	cmd = command(context.Background(), nil, "agent", "--simulate", "h200", "--interval", "100ms", "--listen", "localhost:0", "--no-cloud",
		"--state-dir", t.TempDir(), "--socket", filepath.Join(shortDir(t), "sock"), "--otlp-file", "-")
	log = &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = out, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	out.Close() // the agent has the only end
	return cmd, log
}

// firstMetrics reads lines up to one with device metrics.
func firstMetrics(t *testing.T, f *os.File) *bufio.Reader {
	t.Helper()
	r := bufio.NewReader(f)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		if md, err := (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics(line); err == nil && strings.Contains(string(line), `"gpu.up"`) && md.DataPointCount() > 0 {
			return r
		}
	}
}

// Catches an agent that opens /dev/stdout: the open fails on a socket, which is what systemd gives
// a service.
func TestStandardOutputIsASocket(t *testing.T) {
	t.Parallel()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	defer ours.Close()
	cmd, log := writer(t, theirs)
	r := firstMetrics(t, ours)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, r) }()
	if err := cmd.Wait(); err != nil {
		t.Errorf("the agent ended with %v:\n%s", err, log)
	}
}

// Catches an agent that outlives its reader, or dies of SIGPIPE without saving its state. A reader
// that goes while the agent starts made it hang for good.
func TestReaderClosesStandardOutput(t *testing.T) {
	t.Parallel()
	for _, early := range []bool{false, true} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if early {
			r.Close()
		}
		cmd, log := writer(t, w)
		if !early {
			firstMetrics(t, r)
			r.Close()
		}
		_ = cmd.Wait()
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		got := result{code: cmd.ProcessState.ExitCode(), stderr: lines[len(lines)-1]}
		want := result{code: 1, stderr: "gpumeter: cannot write to standard output: write /dev/stdout: broken pipe"}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(result{})); diff != "" {
			t.Errorf("early %t (-want +got):\n%s\n%s", early, diff, log)
		}
	}
}

// Catches an agent that cannot be stopped while nobody reads its standard output.
func TestReaderStalls(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd, log := writer(t, w)
	await.True(t, "the first discarded batch", func() bool { return strings.Contains(log.String(), "standard output is not being read") })
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the agent ended with %v:\n%s", err, log)
	}
}
