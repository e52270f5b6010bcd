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
	"github.com/gpumeter/gpumeter/internal/programtest"
)

// documented returns a script of docs/check.md that calls the built binary with these flags.
func documented(t *testing.T, name string, flags ...string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/check.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```sh\n#!/bin/sh\n# "+name+"\n")
	script, _, ok := strings.Cut(rest, "```")
	changed := strings.Replace(script, "--manifest /etc/gpumeter/manifest.yaml", strings.Join(flags, " "), 1)
	absolute := strings.Replace(changed, "/usr/local/bin/gpumeter", binary, 1)
	if !ok || changed == script || absolute == changed {
		t.Fatalf("the page has no such script: %s", script)
	}
	return absolute
}

// The script in docs/check.md drains an unhealthy node once, with the reason, resumes it after
// a repair, and does not touch nodes drained by others. Neither a missing program nor a
// mistyped flag, nor a check that could not tell, changes the state of a node.
func TestCheckSlurmScript(t *testing.T) {
	t.Parallel()
	h := nvmltest.New(t, healthy)
	_, flags := checkRoot(t, nil)
	flags = append(flags, "--nvidia-library", h.Library, "--expect", "2")
	script := documented(t, "/etc/slurm/health.sh", flags...)
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		programtest.Write(t, path, text)
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
	file("logger", "#!/bin/sh\necho \"logger $*\" >> \""+dir+"/calls\"\n")
	health := file("health.sh", script)
	file("node", "NodeName=x State=IDLE\n")
	want := ""
	f := func(host, calls, state string) {
		t.Helper()
		h.Script(t, host)
		cmd := exec.CommandContext(t.Context(), "sh", health)
		cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
		if out, err := cmd.Output(); err != nil || len(out) > 0 {
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

	node := func(state string) { file("node", "NodeName=x State="+state+"\n") }
	const drained = "IDLE+DRAIN Reason=gpumeter: CRITICAL: gpu.health [root@now]"
	broken := "logger -t gpumeter the health check of " + hostname(t) + " did not run\n"
	for _, script := range []string{
		strings.Replace(script, binary, "/nonexistent/gpumeter", 1),     // 127
		strings.Replace(script, binary, dir, 1),                         // 126
		strings.Replace(script, "--exit slurm", "--exit slurmm", 1),     // 3
		strings.Replace(script, "--expect", "--expext", 1),              // 3
		strings.Replace(script, binary+" check", binary+" chekc", 1),    // an unknown command
		strings.Replace(script, binary+" check", "sh -c 'exit 1' x", 1), // 1 without a finding
	} {
		file("health.sh", script)
		for _, state := range []string{"IDLE", drained} {
			node(state)
			f(sick, broken, "State="+state)
		}
	}
	file("health.sh", strings.Replace(script, "--expect 2", "--expect 2 --manifest /nonexistent", 1))
	for _, state := range []string{"IDLE", drained} {
		node(state)
		f(healthy, "", "State="+state) // unknown
	}
}

func hostname(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "hostname", "-s").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// The prolog in docs/check.md fails, which drains the node, on a critical finding only.
func TestCheckSlurmProlog(t *testing.T) {
	t.Parallel()
	h := nvmltest.New(t, healthy)
	_, flags := checkRoot(t, nil)
	flags = append(flags, "--nvidia-library", h.Library, "--expect", "2")
	script := documented(t, "/etc/slurm/prolog.d/gpumeter.sh", flags...)
	dir := t.TempDir()
	programtest.Write(t, filepath.Join(dir, "logger"), "#!/bin/sh\necho \"logger $*\" >&2\n")
	f := func(name, host, script string, code int, want string) {
		t.Helper()
		h.Script(t, host)
		cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
		cmd.Env = []string{"PATH=" + dir + ":/usr/bin:/bin", "SLURM_JOB_ID=7"}
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != code || !strings.Contains(string(out), want) || want == "" && len(out) > 0 {
			t.Errorf("%s: %v, %s; want exit code %d and %q", name, err, out, code, want)
		}
	}
	const sick = healthy + "gpu 1 recovery 1\n"
	const broken = "logger -t gpumeter the prolog check of job 7 did not run\n"
	f("healthy", healthy, script, 0, "")
	f("a warning", healthy+"gpu 1 remapped-rows 1 0 1 0\n", script, 0, "")
	f("a finding", sick, script, 1, "gpumeter: CRITICAL: critical gpu.health: GPU 1: the driver requests a reset")
	f("no such program", sick, strings.Replace(script, binary, "/nonexistent/gpumeter", 1), 0, broken)
	f("a mistyped flag", sick, strings.Replace(script, "--profile", "--profil", 1), 0, broken)
	f("a mistyped profile", sick, strings.Replace(script, "--profile prolog", "--profile prologue", 1), 0, broken)
	f("unknown", healthy, strings.Replace(script, "--expect 2", "--expect 2 --manifest /nonexistent", 1), 0, "")
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
