//go:build linux

package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
)

// A driver that cannot be read is not the same as no hardware.
func TestDevicesOfBrokenDriver(t *testing.T) {
	t.Parallel()
	h := nvmltest.New(t, "init 18")
	for _, args := range [][]string{{"devices"}, {"devices", "--json"}, {"agent", "--once", "--output", "prometheus"}} {
		line := oneLine(t, run(t, append(args, "--nvidia-library", h.Library)...))
		if !strings.Contains(line, "driver and library versions differ") {
			t.Errorf("%v says %q", args, line)
		}
	}
}

// doctor is run when something hangs, so doctor itself must not hang.
func TestDoctorOfHungDriver(t *testing.T) {
	t.Parallel()
	f := func(script, want string) {
		t.Helper()
		h := nvmltest.New(t, script)
		r := run(t, "doctor", "--nvidia-library", h.Library)
		if r.code != 1 || !strings.Contains(r.stdout, want) {
			t.Errorf("%q: exit code %d, want %q in\n%s", script, r.code, want, r.stdout)
		}
	}
	f("gpus 2\ngpu 1 hang nvmlDeviceGetTemperature", "nvmlDeviceGetTemperature has not returned: the driver hangs")
	f("gpus 2\ngpu 1 hang nvmlDeviceGetUUID", "GPU 1: nvmlDeviceGetUUID has not returned")
}

// A mistyped --socket must not delete a file.
func TestSocketIsNoSocket(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(file, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := start(t, "--simulate", "h200", "--socket", file)
	if e := a.waitLog("No control socket: gpumeter pause and trace --stop cannot reach this agent"); !strings.Contains(e["reason"].(string), "is not a socket") {
		t.Errorf("logged: %v", e)
	}
	a.stop()
	if data, err := os.ReadFile(file); err != nil || string(data) != "data" {
		t.Errorf("the file holds %q, %v", data, err)
	}
}
