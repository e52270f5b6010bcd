//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// The image of make image, in the containerd of a node: it runs without root, without a capability and without a root
// file system that it could write to.
func TestImage(t *testing.T) {
	if os.Getuid() != 0 {
		skip(t, "root", "running containers requires root")
	}
	for _, name := range []string{"containerd", "ctr", "runc"} {
		if _, err := exec.LookPath(name); err != nil {
			skip(t, "kubelet", fmt.Errorf("tools/deps.sh containerd did not install it: %w", err))
		}
	}
	if _, err := os.Stat("../internal/hub/ui/dist/index.html"); err != nil {
		skip(t, "npm", fmt.Errorf("the image has the page, which make web builds: %w", err))
	}
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		skip(t, "debian", err)
	}
	t.Setenv("TAGS", "release")
	t.Setenv("ARCH", runtime.GOARCH)
	t.Setenv("VERSION", "1.2.3-e2e")
	bin := t.TempDir()
	t.Setenv("BIN", bin)
	command(t, "..", "tools/lean.sh", "build", bin+"/release/gpumeter-linux-"+runtime.GOARCH, "-ldflags=-s -w -X main.version=1.2.3-e2e")
	digest := regexp.MustCompile(`sha256:[0-9a-f]{64}`)
	out, err := tryCommand(t, "..", "tools/image.sh")
	if err != nil && strings.Contains(out, "make image-packages") { // mirrors drop old versions
		skip(t, "debian", fmt.Errorf("%w: %s", err, out))
	} else if err != nil {
		t.Fatalf("tools/image.sh: %v: %s", err, out)
	}
	first := digest.FindString(out)
	if again := digest.FindString(command(t, "..", "tools/image.sh")); first == "" || first != again {
		t.Errorf("two images of the same commit: %q and %q", first, again)
	}

	dir := t.TempDir()
	archive, socket := filepath.Join(dir, "image.tar"), filepath.Join(dir, "containerd.sock")
	command(t, "..", "tar", "-C", bin+"/image", "-cf", archive, ".")
	config := filepath.Join(dir, "containerd.toml")
	write(t, config, fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\n  address = %q\n", dir+"/images", dir+"/run", socket))
	start(t, "containerd", "--config", config)
	ctr := func(args ...string) (string, error) {
		return tryCommand(t, ".", "ctr", append([]string{"--address", socket}, args...)...)
	}
	eventually(t, "containerd accepts the image", func() error {
		out, err := ctr("images", "import", "--snapshotter", "native", archive)
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	const image = "localhost/gpumeter:1.2.3-e2e"
	run := func(id string, flags []string, args ...string) string {
		t.Helper()
		all := append([]string{"run", "--snapshotter", "native", "--read-only"}, flags...)
		out, err := ctr(append(append(all, image, id, "/usr/bin/gpumeter"), args...)...)
		if err != nil {
			t.Fatalf("gpumeter %s: %v: %s", strings.Join(args, " "), err, out)
		}
		return out
	}
	if out := run("version", []string{"--rm"}, "version"); !strings.Contains(out, "1.2.3-e2e") {
		t.Errorf("version: %q", out)
	}
	// NVIDIA's library is opened with the loader of the image; this machine may have none.
	if out := run("once", []string{"--rm"}, "agent", "--once", "--simulate", "h100", "--no-workloads", "--no-cloud", "-o", "prometheus"); strings.Count(out, "\ngpu_power_draw_watts{") != 8 {
		t.Errorf("a reading of 8 simulated GPUs:\n%.2000s", out)
	}
	run("agent", []string{"--detach"}, "agent", "--simulate", "h100", "--no-workloads", "--no-cloud", "--no-standby", "--state-dir", "", "--socket", "", "--listen", "127.0.0.1:0")
	t.Cleanup(func() {
		// The context of the test has ended.
		if out, err := exec.Command("ctr", "--address", socket, "tasks", "delete", "--force", "agent").CombinedOutput(); err != nil {
			t.Errorf("cannot end the container: %v: %s", err, out)
		}
	})
	tasks, err := ctr("tasks", "list")
	pid := regexp.MustCompile(`(?m)^agent\s+(\d+)\s+RUNNING`).FindStringSubmatch(tasks)
	if err != nil || pid == nil {
		t.Fatalf("tasks: %v: %s", err, tasks)
	}
	status, err := os.ReadFile("/proc/" + pid[1] + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`(?m)^Uid:\s+65532\s+65532\s+65532\s+65532$`, `(?m)^CapEff:\s+0+$`} {
		if !regexp.MustCompile(want).Match(status) {
			t.Errorf("the agent's status lacks %s:\n%s", want, status)
		}
	}
}
