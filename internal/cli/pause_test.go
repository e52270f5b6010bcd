//go:build linux

package cli_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
)

// holds returns what the agent holds of the host: device files, and the library.
func (a *agent) holds(host *nvmltest.Host) []string {
	a.t.Helper()
	list := host.OpenFiles(a.t, a.cmd.Process.Pid)
	maps, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(a.cmd.Process.Pid), "maps"))
	if err != nil {
		a.t.Fatal(err)
	}
	if strings.Contains(string(maps), host.Library) {
		list = append(list, "library")
	}
	return list
}

// waitPaused waits until the page says so, and shows no device.
func (a *agent) waitPaused() {
	a.t.Helper()
	a.waitPage(func(p page) error {
		if p[`gpumeter_paused{host_name="host"}`] != 1 || len(p.names()) > 0 {
			return fmt.Errorf("paused is %v with %d metrics of devices", p[`gpumeter_paused{host_name="host"}`], len(p.names()))
		}
		return nil
	})
}

// A pause that leaves a device file open, or the old library loaded, makes the reset or
// the upgrade it is for fail. One that does not end is an outage.
func TestPause(t *testing.T) {
	t.Parallel()
	host := nvmltest.New(t, eight)
	a := start(t, "--interval", "500ms", "--host-name", "host", "--nvidia-library", host.Library)
	a.allUp()
	whole := []string{"nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidia4", "nvidia5", "nvidia6", "nvidia7", "nvidiactl", "library"}
	if diff := cmp.Diff(whole, a.holds(host)); diff != "" {
		t.Fatalf("held before the pause (-want +got):\n%s", diff)
	}

	// By command, for long, because a busy machine may look late.
	if answer := output(t, "pause", "--for", "10m", "--socket", a.socket); !strings.HasPrefix(answer, "Paused until ") {
		t.Errorf("gpumeter pause says %q", answer)
	}
	if diff := cmp.Diff([]string(nil), a.holds(host)); diff != "" {
		t.Errorf("held during the pause (-want +got):\n%s", diff)
	}
	a.waitPaused()
	a.waitLog("paused for 10m0s: all drivers are released")

	// Until it resumes by itself.
	began := time.Now()
	output(t, "pause", "--for", "2s", "--socket", a.socket)
	a.waitLog("paused for 2s: all drivers are released")
	a.allUp()
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("a pause of 2s ended after %s", took)
	}
	a.waitLog("resumed")
	if diff := cmp.Diff(whole, a.holds(host)); diff != "" {
		t.Errorf("held after the pause (-want +got):\n%s", diff)
	}

	// By signal, until somebody resumes it.
	if err := a.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	a.waitLog("paused for 2m0s: all drivers are released")
	a.waitPaused()
	if diff := cmp.Diff([]string(nil), a.holds(host)); diff != "" {
		t.Errorf("held during the pause by signal (-want +got):\n%s", diff)
	}
	if answer := output(t, "pause", "--for", "0", "--socket", a.socket); answer != "Resuming.\n" {
		t.Errorf("gpumeter pause --for 0 says %q", answer)
	}
	a.allUp()
	a.stop()
}

// A pause is for changing MIG: the agent must resume with the layout of then.
func TestPauseForMIG(t *testing.T) {
	t.Parallel()
	const small, large = "mig 1 0 MIG-small 7 0 1 1 16384 0\n", "mig 1 0 MIG-large 1 0 3 3 71424 0\n"
	host := nvmltest.New(t, "gpus 2\n"+small)
	a := start(t, "--interval", "500ms", "--nvidia-library", host.Library)
	shows := func(want ...string) {
		t.Helper()
		a.waitPage(func(p page) error {
			got := map[string]string{}
			for s := range p {
				if strings.HasPrefix(s, "gpu_up{") || strings.HasPrefix(s, "gpu_partition_up{") {
					got[label(s, "gpu_index")+" "+label(s, "gpu_partition_id")] = label(s, "gpu_partition_profile")
				}
			}
			set := map[string]string{"0 ": "", "1 ": ""}
			for i := 0; i < len(want); i += 2 {
				set["1 "+want[i]] = want[i+1]
			}
			if diff := cmp.Diff(set, got); diff != "" {
				return fmt.Errorf("GPUs and instances (-want +got):\n%s", diff)
			}
			return nil
		})
	}
	shows("MIG-small", "1g.18gb")
	for _, step := range []struct {
		script string
		want   []string
	}{{large, []string{"MIG-large", "3g.71gb"}}, {"", nil}, {small, []string{"MIG-small", "1g.18gb"}}} {
		output(t, "pause", "--for", "1m", "--socket", a.socket)
		host.Script(t, "gpus 2\n"+step.script)
		output(t, "pause", "--for", "0", "--socket", a.socket)
		shows(step.want...)
	}
}

// Whoever pauses must know at once that it did not work.
func TestPauseRefused(t *testing.T) {
	t.Parallel()
	f := func(want string, args ...string) {
		t.Helper()
		if got := oneLine(t, run(t, append([]string{"pause"}, args...)...)); !strings.Contains(got, want) {
			t.Errorf("gpumeter pause %s says %q, want %q", strings.Join(args, " "), got, want)
		}
	}
	none := filepath.Join(shortDir(t), "sock")
	f("no agent responds at "+none, "--socket", none)
	f("no agent responds at "+none, "--for", "2s", "--socket", none)
	f("no default socket for this user: set --socket", "--socket", "")

	a := start(t, "--root", t.TempDir())
	a.waitLog("serving metrics")
	f("a pause must be between 0 and 1h0m0s", "--for", "2h", "--socket", a.socket)
	f("a pause must be between 0 and 1h0m0s", "--for", "-1s", "--socket", a.socket)
	f("invalid argument", "--for", "soon", "--socket", a.socket)
}
