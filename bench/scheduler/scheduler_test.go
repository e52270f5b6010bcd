//go:build bench

package scheduler

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/bench/usage"
	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi/kubeapitest"
)

var (
	pods     = flag.Int("pods", 10_000, "number of pods")
	nodes    = flag.Int("nodes", 1000, "number of nodes, with 8 GPUs each")
	changes  = flag.Int("changes", 20, "changes of pods per second: they are created, placed, start and end")
	duration = flag.Duration("duration", time.Minute, "how long to measure each program")
)

type object = kubeapitest.Object

// cluster is an API server whose pods change.
type cluster struct {
	*kubeapitest.Server
	kubeconfig string
	next       int // number of the next change
}

func serve(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{Server: kubeapitest.New()}
	for i := range *nodes {
		c.PutNode(kubeapitest.Node(fmt.Sprint("gn", i), object{
			"metadata": object{"labels": object{"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, "annotations": filler(8)},
			"status":   object{"allocatable": offer(), "capacity": offer(), "images": images()},
		}))
	}
	for i := range *pods {
		c.PutPod(pod(i, state(i)))
	}
	url, stop := c.Serve()
	t.Cleanup(stop)
	var err error
	if c.kubeconfig, err = kubeapitest.Kubeconfig(t.TempDir(), url); err != nil {
		t.Fatal(err)
	}
	return c
}

func offer() object {
	return object{"cpu": "128", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}
}

// images is what a kubelet says of the images on its node, which nobody here reads.
func images() []object {
	var list []object
	for i := range 30 {
		list = append(list, object{"names": []string{fmt.Sprintf("registry.example.com/ml/image-%d@sha256:%064d", i, i)}, "sizeBytes": 1 << 30})
	}
	return list
}

func filler(n int) object {
	out := object{}
	for i := range n {
		out[fmt.Sprintf("example.com/annotation-%d", i)] = fmt.Sprintf("%0128d", i)
	}
	return out
}

// state returns in which state a pod is at the start: three of ten ask for no GPU, two of ten wait, the others run.
func state(i int) string {
	switch i % 10 {
	case 0, 1, 2:
		return "plain"
	case 3, 4:
		return "waits"
	}
	return "runs"
}

// pod is as large as pods of real clusters: most of it is irrelevant here.
func pod(i int, state string) object {
	var env []object
	for n := range 25 {
		env = append(env, object{"name": fmt.Sprintf("SETTING_%d", n), "value": "some-value-of-a-setting"})
	}
	requests := object{"cpu": fmt.Sprint(1 + i%16), "memory": "16Gi"}
	if state != "plain" {
		requests["nvidia.com/gpu"] = "1"
	}
	created := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	scheduled := object{"type": "PodScheduled", "status": "True", "lastTransitionTime": created}
	node, phase := fmt.Sprint("gn", i%*nodes), "Running"
	switch state {
	case "waits":
		requests["nvidia.com/gpu"] = "8"
		node, phase = "", "Pending"
		scheduled = object{
			"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": created,
			"message": "0/1000 nodes are available: 1000 Insufficient nvidia.com/gpu. preemption: 0/1000 nodes are available: 1000 No preemption victims found for incoming pod.",
		}
	case "ended":
		phase = "Succeeded"
	}
	p := kubeapitest.Pod(node, fmt.Sprint("team-", i%20), fmt.Sprintf("trainer-%d-5d4f8c7b9d-%05x", i/16, i), fmt.Sprintf("%08x-0000-4000-8000-%012x", i, i),
		object{"metadata": kubeapitest.Owned("apps/v1", "ReplicaSet", fmt.Sprintf("trainer-%d-5d4f8c7b9d", i/16), fmt.Sprint("rs-", i/16))},
		object{"metadata": object{"labels": object{"app": fmt.Sprint("trainer-", i/16)}, "annotations": filler(8), "creationTimestamp": created}},
		object{"status": object{"phase": phase, "conditions": []object{scheduled}}})
	p["spec"].(object)["containers"] = []object{{"name": "main", "image": "registry.example.com/ml/trainer:1.2.3", "env": env, "resources": object{"requests": requests, "limits": requests}}}
	return p
}

// change lets a pod end and its successor wait, or places one that waits.
func (c *cluster) change() {
	i := c.next / 3 % *pods
	switch c.next % 3 {
	case 0:
		c.PutPod(pod(i, "ended"))
	case 1:
		c.PutPod(pod(i, "waits"))
	case 2:
		c.PutPod(pod(i, "runs"))
	}
	c.next++
}

// cost is what a program takes.
type cost struct {
	start    time.Duration // CPU until it watches, or until it has run for ten seconds
	cpu      float64       // then, of a core
	rss      float64       // MiB, the most that was seen
	anon     float64       // the same of memory of its own
	requests map[string]int
}

// measure runs an agent and returns what it takes.
func (c *cluster) measure(t *testing.T, binary string, watches bool) cost {
	t.Helper()
	args := []string{"agent", "--interval", "10s", "--listen", "127.0.0.1:0", "--socket", "", "--state-dir", t.TempDir(), "--no-standby", "--no-cloud", "--no-workloads", "--no-inference", "--log-level", "error"}
	if watches {
		args = append(args, "--scheduler", "kubernetes", "--kubeconfig", c.kubeconfig)
	}
	var out bytes.Buffer
	cmd := exec.Command(binary, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // it ends if the benchmark is killed
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	asked := len(c.Requests())
	cpu := func() time.Duration {
		d, err := usage.CPU(cmd.Process.Pid)
		if err != nil {
			t.Fatalf("%v\n%s", err, &out)
		}
		return d
	}
	if watches {
		await.True(t, "pods and nodes are watched", func() bool {
			return count(c.Requests()[asked:])["watch pods"] > 0 && count(c.Requests()[asked:])["watch nodes"] > 0
		})
	}
	time.Sleep(10 * time.Second)
	r := cost{start: cpu()}
	first := count(c.Requests()[asked:])
	clock := time.NewTicker(time.Second / time.Duration(*changes))
	defer clock.Stop()
	for began := time.Now(); time.Since(began) < *duration; {
		<-clock.C
		c.change()
		rss, anon, err := usage.Memory(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		r.rss, r.anon = max(r.rss, rss), max(r.anon, anon)
	}
	r.cpu = (cpu() - r.start).Seconds() / duration.Seconds()
	r.requests = count(c.Requests()[asked:])
	for what, n := range first {
		r.requests["until it watched: "+what] = n
		if r.requests[what] -= n; r.requests[what] == 0 {
			delete(r.requests, what)
		}
	}
	return r
}

var leases = regexp.MustCompile(`/leases(/|\?|$)`)

// count counts requests by what they ask for.
func count(requests []string) map[string]int {
	out := map[string]int{}
	for _, r := range requests {
		method, path, _ := strings.Cut(r, " ")
		if path == "" {
			method, path = http.MethodGet, method
		}
		what := path
		switch plain, query, _ := strings.Cut(path, "?"); {
		case leases.MatchString(path):
			what = strings.ToLower(method) + " lease"
		case strings.Contains(query, "watch="):
			what = "watch " + plain[strings.LastIndexByte(plain, '/')+1:]
		default:
			what = "list " + plain[strings.LastIndexByte(plain, '/')+1:]
		}
		out[what]++
	}
	return out
}

// The elected agent of a large cluster, in turns with one that watches nothing.
func TestElected(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "gpumeter")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", binary, "github.com/gpumeter/gpumeter/cmd/gpumeter")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build gpumeter: %v\n%s", err, out)
	}
	c := serve(t)
	fmt.Printf("%s, %d CPUs, %s: %d pods, %d nodes, %d changes a second, each watched for %s\n\n", time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), runtime.GOARCH, *pods, *nodes, *changes, *duration)
	fmt.Println("| agent | CPU until it watches, s | CPU then, % of a core | RSS, MiB | of it anonymous |")
	fmt.Println("|---|---|---|---|---|")
	var last cost
	for _, watches := range []bool{false, true, false, true} {
		name := "without --scheduler"
		if watches {
			name = "with --scheduler kubernetes, elected"
		}
		r := c.measure(t, binary, watches)
		fmt.Printf("| %s | %.2f | %.2f | %.1f | %.1f |\n", name, r.start.Seconds(), 100*r.cpu, r.rss, r.anon)
		last = r
	}
	fmt.Println()
	for _, what := range slices.Sorted(maps.Keys(last.requests)) {
		fmt.Printf("%d x %s\n", last.requests[what], what)
	}
}
