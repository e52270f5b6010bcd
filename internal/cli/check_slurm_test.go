//go:build linux

package cli_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
)

// The script in docs/check.md drains an unhealthy node once, with the reason, resumes it after
// a repair, and does not touch nodes drained by others.
func TestCheckSlurmScript(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/check.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```sh\n")
	script, _, ok := strings.Cut(rest, "```")
	h := nvmltest.New(t, healthy)
	_, flags := checkRoot(t, nil)
	flags = append(flags, "--nvidia-library", h.Library, "--expect", "2")
	changed := strings.Replace(script, "--manifest /etc/gpumeter/manifest.yaml", strings.Join(flags, " "), 1)
	if !ok || changed == script {
		t.Fatalf("the page has no such script: %s", script)
	}
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	// A scontrol that remembers the state of the node and what was asked of it.
	file("scontrol", `#!/bin/sh
cd "`+dir+`"
case "$*" in
*"show node"*) cat node ;;
*state=drain*) echo drain >> calls; for last; do :; done; echo "NodeName=x State=IDLE+DRAIN Reason=${last#reason=} [root@now]" > node ;;
*state=resume*) echo resume >> calls; echo "NodeName=x State=IDLE" > node ;;
esac
`)
	if err := os.Symlink(binary, filepath.Join(dir, "gpumeter")); err != nil {
		t.Fatal(err)
	}
	health := file("health.sh", changed)
	file("node", "NodeName=x State=IDLE\n")
	want := ""
	f := func(host, calls, state string) {
		t.Helper()
		h.Script(t, host)
		cmd := exec.CommandContext(t.Context(), "sh", health)
		cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("the script: %v, %s", err, out)
		}
		want += calls
		got, _ := os.ReadFile(filepath.Join(dir, "calls")) // none: nothing was asked yet
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("asked of Slurm (-want +got):\n%s", diff)
		}
		if node, _ := os.ReadFile(filepath.Join(dir, "node")); !strings.Contains(string(node), state) {
			t.Errorf("the node is %s, want %s", node, state)
		}
	}
	const sick = healthy + "gpu 1 recovery 1\n"
	f(healthy, "", "State=IDLE\n")
	f(sick, "drain\n", "Reason=gpumeter: CRITICAL: critical gpu.health: GPU 1: the driver requests a reset")
	f(sick, "", "DRAIN")
	f(healthy, "resume\n", "State=IDLE\n")
	f(healthy, "", "State=IDLE\n")
	f(healthy+"gpu 1 remapped-rows 1 0 1 0\n", "", "State=IDLE\n") // a warning
	file("node", "NodeName=x State=IDLE+DRAIN Reason=a new disk [root@now]\n")
	f(sick, "", "a new disk")
	f(healthy, "", "a new disk")
}

// An interrupted check must not report success.
func TestCheckSignal(t *testing.T) {
	t.Parallel()
	_, flags := checkRoot(t, nil)
	h := nvmltest.New(t, healthy+"gpu * hang nvmlInit*\n")
	for exit, want := range map[string]int{"nagios": 3, "npd": 2, "slurm": 0} {
		cmd := command(t.Context(), nil, append([]string{"check", "--exit", exit, "--nvidia-library", h.Library}, flags...)...)
		var stdout, stderr strings.Builder
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		childOf(t, cmd.Process.Pid) // now its signals are its own
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // whose exit code is looked at
		if code := cmd.ProcessState.ExitCode(); code != want || stdout.Len() > 0 || stderr.String() != "gpumeter: it was ended before its checks were\n" {
			t.Errorf("%s: exit code %d, want %d: %q %q", exit, code, want, stdout.String(), stderr.String())
		}
	}
}
