//go:build bench

package attribution

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/bench/usage"
	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
)

var (
	binary    = flag.String("gpumeter", "", "path of the agent's binary; built if empty")
	length    = flag.Duration("length", 30*time.Second, "how long to measure each program")
	contender = flag.String("contender", "", "run as the workload processor on this file of OTLP metrics")
	library   = flag.String("library", "", "libnvidia-ml.so.1 of the contender")
	socket    = flag.String("socket", "", "kubelet socket of the contender")
	config    = flag.String("kubeconfig", "", "kubeconfig of the contender")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if *contender != "" {
		if err := contend(*contender, *length); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	m.Run()
}

// clusterPods is the number of pods in a large cluster.
const clusterPods = 10_000

// build builds a package into a program.
func build(t *testing.T, dir, pkg, name string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", program, pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot build %s: %v\n%s", pkg, err, out)
	}
	return program
}

func heading() string {
	return fmt.Sprintf("%s, %d CPUs, %s, each for %s", time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), runtime.GOARCH, *length)
}

// Measures what attribution costs the agent per tick, and its memory for the cluster.
func TestAgent(t *testing.T) {
	agent := *binary
	if agent == "" {
		agent = build(t, ".", "github.com/gpumeter/gpumeter/cmd/gpumeter", "gpumeter")
	}
	script := fmt.Sprintf("gpus %d\n", gpus)
	for i := range gpus {
		script += fmt.Sprintf("process %d 1 compute 1024 50\n", i)
	}
	h := nvmltest.New(t, script)
	const interval, listen = time.Second, "127.0.0.1:9420"
	run := func(name string, pods int, flags ...string) {
		args := append([]string{
			"agent", "--interval", interval.String(), "--nvidia-library", h.Library, "--listen", listen,
			"--socket", "", "--state-dir", t.TempDir(), "--no-cloud", "--log-level", "error",
		}, flags...)
		r, err := watch(t.Context(), *length, "http://"+listen+"/metrics", agent, args...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		if r.pods != pods {
			t.Errorf("%s: %d pods are named, want %d", name, r.pods, pods)
		}
		perTick := r.cpu / (r.time.Seconds() / interval.Seconds())
		fmt.Printf("| %s | %.2f | %.2f | %.1f | %.1f | %d | %d |\n", name, perTick*1000, 100*r.cpu/r.time.Seconds(), r.rss, r.anon, r.series, r.pods)
	}
	fmt.Println(heading())
	fmt.Print("\n| agent, 8 GPUs | CPU, ms a tick | % of a core at 1 s | RSS, MiB | of it anonymous | series | pods named |\n|---|---|---|---|---|---|---|\n")
	run("`--no-workloads`", 0, "--no-workloads")
	run("no Kubernetes on the machine", 0)
	for _, pods := range []int{nodePods, clusterPods} {
		c := newCluster(t, pods)
		run(fmt.Sprintf("%d pods on the node, %d in the cluster", nodePods, pods), nodePods,
			"--kubelet-socket", c.socket, "--kubeconfig", c.kubeconfig, "--node-name", nodeName)
	}
}

type cost struct {
	cpu, rss, anon float64 // seconds, MiB, MiB
	time           time.Duration
	series, pods   int // on its page: all series, and pods that hold a device
}

// settle is how long a program may start up and resolve owners before it is measured.
const settle = 25 * time.Second

// watch runs a program. It reads the page after the CPU time and before the memory.
func watch(ctx context.Context, length time.Duration, page, program string, args ...string) (cost, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return cost{}, err
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	time.Sleep(settle)
	before, err := usage.CPU(cmd.Process.Pid)
	if err != nil {
		return cost{}, fmt.Errorf("the program exited: %s", stderr.String())
	}
	start := time.Now()
	time.Sleep(length)
	after, err := usage.CPU(cmd.Process.Pid)
	if err != nil {
		return cost{}, fmt.Errorf("the program exited: %s", stderr.String())
	}
	c := cost{cpu: (after - before).Seconds(), time: time.Since(start)}
	for range 5 {
		if c.series, c.pods, err = scrape(ctx, page); err != nil {
			return cost{}, err
		}
	}
	c.rss, c.anon, err = usage.Memory(cmd.Process.Pid)
	return c, err
}

// scrape returns the number of series on a page, and of pods that hold a device.
func scrape(ctx context.Context, page string) (series, pods int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, page, nil)
	if err != nil {
		return 0, 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(body)) {
		if !strings.HasPrefix(line, "#") {
			series++
		}
		if strings.HasPrefix(line, "gpu_allocation_ratio{") && strings.Contains(line, "k8s_deployment_name=") && strings.Contains(line, "k8s_pod_name=") {
			pods++
		}
	}
	return series, pods, nil
}

// Measures the throughput and memory of the processors on the same metrics and pods.
func TestProcessors(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	peer := build(t, "testdata/peer", ".", "peer")
	h := nvmltest.New(t, fmt.Sprintf("gpus %d\n", gpus))
	c := newCluster(t, clusterPods)
	batch := filepath.Join(t.TempDir(), "batch")
	if err := os.WriteFile(batch, newBatch(t), 0o600); err != nil {
		t.Fatal(err)
	}
	fmt.Println(heading())
	fmt.Print("\n| processor | points/s | allocations a point | live heap, MiB | RSS, MiB | of it anonymous | attributes it adds |\n|---|---|---|---|---|---|---|\n")
	run := func(name, program string, args ...string) {
		cmd := exec.CommandContext(t.Context(), program, append(args, "-length", length.String())...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig,
			"KUBE_FEATURE_WatchListClient=false") // not supported by the fake API server
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, stderr.String())
			return
		}
		var r result
		if err := json.Unmarshal(out, &r); err != nil {
			t.Errorf("%s: %v in %s", name, err, out)
			return
		}
		fmt.Printf("| %s | %.1f M | %.1f | %.1f | %.1f | %.1f | %s |\n", name, r.Points/1e6, r.Allocs, r.Heap, r.RSS, r.Anon, strings.Join(r.Added, ", "))
	}
	ours := []string{"-contender", batch, "-library", h.Library, "-socket", c.socket, "-kubeconfig", c.kubeconfig}
	for range 2 { // the second run shows the noise
		run("workload, with its View", self, ours...)
		run("k8sattributes, this node's pods", peer, "-batch", batch, "-node", nodeName)
	}
	run("k8sattributes, all pods", peer, "-batch", batch)
}
