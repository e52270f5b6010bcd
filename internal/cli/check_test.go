//go:build linux

package cli_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
)

// checkRoot returns the file system of a healthy node, with more files in it or others, and
// the flags for it. The clock is not in it, and is the machine's.
func checkRoot(t *testing.T, more map[string]string) (root string, flags []string) {
	t.Helper()
	root = t.TempDir()
	all := map[string]string{
		"proc/uptime":      "864000.00 1000.00\n",
		"proc/meminfo":     "MemTotal:       2000000 kB\nMemFree:         500000 kB\nMemAvailable:   1000000 kB\n",
		"proc/1/mountinfo": "22 1 8:1 / / rw,relatime shared:1 - overlay overlay ro\n",
		"etc/fstab":        "# none\n",
		"dev/kmsg":         "6,1,863900000000,-;all is well\n",
		"sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
	}
	maps.Copy(all, more)
	for file, text := range all {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(file)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root, []string{"--root", root, "--host-name", "node", "--skip", "clock.sync"}
}

// healthy is a host of two GPUs without work.
const healthy = "gpus 2\ngpu * util 0 0\ngpu * throttle 1\ngpu * memory 150754820096 644939776 5242880\n"

func TestCheckHealthy(t *testing.T) {
	t.Parallel()
	_, flags := checkRoot(t, nil)
	h := nvmltest.New(t, healthy)
	flags = append(flags, "--nvidia-library", h.Library)
	for _, args := range [][]string{{"--profile", "prolog"}, {"--profile", "epilog"}, {}, {"-o", "nagios"}, {"-o", "npd"}, {"-o", "json"}, {"--exit", "slurm"}, {"--expect", "2"}} {
		out := output(t, append(append([]string{"check"}, args...), flags...)...)
		if !strings.Contains(strings.ToLower(out), "ok") || strings.Contains(out, "critical ") && !strings.Contains(out, "0 critical") {
			t.Errorf("%v says %s", args, out)
		}
	}
	// Of a CPU, which is the same however busy the machine is.
	cmd := command(t.Context(), nil, append([]string{"check", "--profile", "prolog"}, flags...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if took := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(); took > 2*time.Second {
		t.Errorf("a healthy node takes %s", took)
	}
}

// Each caller has its own exit code convention.
func TestCheckExit(t *testing.T) {
	t.Parallel()
	f := func(script string, want int, args ...string) {
		t.Helper()
		_, flags := checkRoot(t, nil)
		h := nvmltest.New(t, healthy+script)
		r := run(t, append(append([]string{"check", "--nvidia-library", h.Library}, flags...), args...)...)
		if r.code != want || r.stderr != "" {
			t.Errorf("%q %v: exit code %d, want %d\n%s%s", script, args, r.code, want, r.stdout, r.stderr)
		}
	}
	const pending, sick = "gpu 1 remapped-rows 1 0 1 0\n", "gpu 1 recovery 1\n"
	f(pending, 1) // a warning
	f(pending, 0, "--profile", "prolog")
	f(pending, 0, "--exit", "slurm")
	f(pending, 0, "-o", "npd")
	f(sick, 2)
	f(sick, 1, "--profile", "prolog")
	f(sick, 1, "--exit", "slurm")
	f(sick, 1, "-o", "npd")
	f(sick, 2, "-o", "nagios", "--profile", "prolog")
	f("", 2, "--expect", "3")
	// A manifest with a mistake in it is unknown, and drains no node.
	bad := write(t, "manifest.yaml", "gpu: {count: 2}\n")
	f("", 3, "--manifest", bad)
	f("", 0, "--manifest", bad, "--profile", "prolog")
	f("", 2, "--manifest", bad, "-o", "npd")
}

// The 80 bytes that NPD keeps of the output name the problem.
func TestCheckNPD(t *testing.T) {
	t.Parallel()
	_, flags := checkRoot(t, nil)
	h := nvmltest.New(t, healthy+"gpu 1 lost\n")
	r := run(t, append([]string{"check", "-o", "npd", "--nvidia-library", h.Library}, flags...)...)
	if r.code != 1 || len(strings.TrimSuffix(r.stdout, "\n")) > 80 || strings.Count(r.stdout, "\n") != 1 || !strings.Contains(r.stdout, "gpu.") {
		t.Errorf("exit code %d, %q", r.code, r.stdout)
	}
}

// A driver that hangs anywhere blocks the caller for at most the timeout, and is critical.
func TestCheckHungDriver(t *testing.T) {
	t.Parallel()
	f := func(script, want string) {
		t.Helper()
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			_, flags := checkRoot(t, nil)
			h := nvmltest.New(t, healthy+script)
			r := run(t, append([]string{"check", "--profile", "prolog", "--timeout", "6s", "--nvidia-library", h.Library}, flags...)...)
			if r.code != 1 || !strings.Contains(r.stdout, "critical "+want) || r.stderr != "" {
				t.Errorf("exit code %d: %s%s", r.code, r.stdout, r.stderr)
			}
		})
	}
	f("gpu * hang nvmlInit*\n", "gpu.driver: ")
	f("gpu 1 hang nvmlDeviceGetUtilizationRates\n", "gpu.answers: GPU 1: no answer: nvmlDeviceGetUtilizationRates has not returned")
}

// A process in uninterruptible sleep in a driver does not block the caller. A stopped process is
// the closest a test can get.
func TestCheckStuckProcess(t *testing.T) {
	t.Parallel()
	_, flags := checkRoot(t, nil)
	h := nvmltest.New(t, healthy+"gpu * hang nvmlInit*\n")
	cmd := command(t.Context(), nil, append([]string{"check", "--profile", "prolog", "--timeout", "8s", "--nvidia-library", h.Library}, flags...)...)
	var stdout strings.Builder
	cmd.Stdout = &stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	child := childOf(t, cmd.Process.Pid)
	if err := syscall.Kill(child, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // whose exit code is looked at
	if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(stdout.String(), "critical check: no result from the checks within 8s") {
		t.Errorf("exit code %d: %s", cmd.ProcessState.ExitCode(), stdout.String())
	}
	await.NoError(t, func() error { // it was killed, and is not left behind
		if err := syscall.Kill(child, 0); err == nil {
			if text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child)); !strings.Contains(string(text), ") Z ") {
				return fmt.Errorf("process %d is still there: %s", child, text)
			}
		}
		return nil
	})
}

// childOf waits for a child of the process with the given PID.
func childOf(t *testing.T, parent int) (child int) {
	t.Helper()
	await.NoError(t, func() error {
		list, _ := filepath.Glob("/proc/[0-9]*/stat") // the only error is a bad pattern
		for _, file := range list {
			text, _ := os.ReadFile(file) // it may have ended
			if _, rest, ok := strings.Cut(string(text), ") "); ok && strings.HasPrefix(rest[1:], fmt.Sprintf(" %d ", parent)) {
				_, err := fmt.Sscan(string(text), &child)
				return err
			}
		}
		return errors.New("the checks have no process of their own")
	})
	return child
}

// In a prolog only the GPUs of the job count.
func TestCheckJob(t *testing.T) {
	t.Parallel()
	_, flags := checkRoot(t, nil)
	h := nvmltest.New(t, healthy+"gpu 1 recovery 1\n")
	f := func(profile, gpus string, want int) {
		t.Helper()
		cmd := command(t.Context(), []string{"SLURM_JOB_GPUS=" + gpus}, append([]string{"check", "--exit", "slurm", "--profile", profile, "--nvidia-library", h.Library}, flags...)...)
		out, _ := cmd.CombinedOutput() // whose exit code is looked at
		if code := cmd.ProcessState.ExitCode(); code != want {
			t.Errorf("%s with GPUs %q: exit code %d, want %d: %s", profile, gpus, code, want, out)
		}
	}
	f("prolog", "0", 0)
	f("epilog", "0", 0)
	f("prolog", "1", 1)
	f("prolog", "0-1", 1)
	f("prolog", "", 1)
	f("prolog", "nonsense", 1)
	f("periodic", "0", 1)
}

var seconds = regexp.MustCompile(`"(seconds|time)": [^,\n]+|in \d+\.\d s`)

// The JSON output of a node with results of every kind.
func TestCheckGoldenJSON(t *testing.T) {
	t.Parallel()
	host, _ := goldenHost(t)
	root, flags := checkRoot(t, map[string]string{
		"dev/kmsg": "4,1,863990000000,-;NVRM: Xid (PCI:0000:10:00): 31, pid=610, name=python3, MMU Fault\n" +
			"4,2,863991000000,-;NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.\n" +
			"3,3,863992000000,-;EXT4-fs error (device sda1): bad inode\n",
		"sys/class/infiniband/mlx5_0/ports/1/state":      "4: ACTIVE\n",
		"sys/class/infiniband/mlx5_0/ports/1/phys_state": "5: LinkUp\n",
		"sys/class/infiniband/mlx5_0/ports/1/rate":       "200 Gb/sec (2X NDR)\n",
		"sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
	})
	manifest := write(t, "manifest.yaml", "gpus: {count: 9}\ninfiniband: [{device: mlx5_0, port: 1, rate_gbps: 400}]\n")
	r := run(t, append([]string{"check", "-o", "json", "--manifest", manifest, "--nvidia-library", host.Library}, flags...)...)
	if r.code != 2 || r.stderr != "" {
		t.Errorf("exit code %d: %s", r.code, r.stderr)
	}
	if !json.Valid([]byte(r.stdout)) {
		t.Errorf("no JSON: %s", r.stdout)
	}
	golden(t, "check.json", strings.ReplaceAll(seconds.ReplaceAllString(r.stdout, `"$1": 0`), root, "ROOT"))
}

func TestCheckList(t *testing.T) {
	t.Parallel()
	golden(t, "check-list.txt", output(t, "check", "--list"))
}

// A manifest written on this machine passes on this machine.
func TestCheckManifest(t *testing.T) {
	t.Parallel()
	_, flags := checkRoot(t, nil)
	h := nvmltest.New(t, healthy)
	flags = append(flags, "--nvidia-library", h.Library)
	file := filepath.Join(t.TempDir(), "manifest.yaml")
	output(t, append([]string{"check", "--write-manifest", file}, flags...)...)
	output(t, append([]string{"check", "--manifest", file}, flags...)...)
	h.Script(t, "gpus 1\n"+strings.Join(strings.Split(healthy, "\n")[1:], "\n"))
	r := run(t, append([]string{"check", "--manifest", file}, flags...)...)
	if r.code != 2 || !strings.Contains(r.stdout, "1 devices found, 2 expected") {
		t.Errorf("exit code %d: %s", r.code, r.stdout)
	}
}

// Wrong arguments exit with UNKNOWN of Nagios and a one-line error.
func TestCheckUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--bogus"},
		{"--only", "gpu.typo"},
		{"--skip", "x"},
		{"--profile", "sometimes"},
		{"-o", "xml"},
		{"--exit", "sge"},
		{"--timeout", "1ms"},
		{"--timeout", "x"},
		{"--window", "0s"},
		{"--expect", "-1"},
		{"--simulate", "abacus"},
		{"--pod-label", "x"},
		{"word"},
	} {
		r := run(t, append([]string{"check"}, args...)...)
		if line, more, _ := strings.Cut(r.stderr, "\n"); r.code != 3 || !strings.HasPrefix(line, "gpumeter: ") || more != "" || r.stdout != "" {
			t.Errorf("%v: exit code %d, %q, %q", args, r.code, r.stdout, r.stderr)
		}
	}
}

// Any content of the kernel's files yields a result.
func TestCheckGarbage(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "\x00\xff garbage ;,- \n", strings.Repeat("9", 70_000), "NaN\n-1\n"} {
		more := map[string]string{}
		for _, file := range []string{
			"proc/uptime", "proc/meminfo", "proc/1/mountinfo", "proc/77/stat", "proc/77/status", "etc/fstab", "dev/kmsg", "sys/class/net/eth0/operstate",
			"sys/devices/system/clocksource/clocksource0/current_clocksource", "sys/class/infiniband/mlx5_0/ports/1/state", "sys/class/infiniband/mlx5_0/ports/1/rate",
			"sys/class/nvme/nvme0/state", "sys/devices/system/edac/mc/mc0/ue_count", "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
		} {
			more[file] = text
		}
		_, flags := checkRoot(t, more)
		h := nvmltest.New(t, healthy)
		r := run(t, append([]string{"check", "-o", "json", "--nvidia-library", h.Library}, flags...)...)
		var report struct {
			Checks []struct{ ID, Status, Reason string }
		}
		if err := json.Unmarshal([]byte(r.stdout), &report); err != nil || len(report.Checks) < 20 || r.stderr != "" {
			t.Errorf("%.20q: exit code %d, %v, %d checks\n%.2000s%s", text, r.code, err, len(report.Checks), r.stdout, r.stderr)
		}
		for _, c := range report.Checks {
			if c.Status == "critical" || len(c.Reason) > 1000 {
				t.Errorf("%.20q: %s", text, fmt.Sprintf("%.300v", c))
			}
		}
	}
}
