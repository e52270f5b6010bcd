//go:build linux

package cli_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi/kubeapitest"
	"github.com/gpumeter/gpumeter/internal/workload/kubelet/kubelettest"
)

const fakeUUID = "GPU-00000000-0000-4000-8000-%012x"

// cluster is a node of Kubernetes with two GPUs, and an agent on it.
type cluster struct {
	t       *testing.T
	socket  string
	kubelet *kubelettest.Server
	api     *kubeapitest.Server
	sink    *sink
	*agent
}

func (c *cluster) startKubelet() {
	c.t.Helper()
	var err error
	if c.kubelet, err = kubelettest.Start(c.socket); err != nil {
		c.t.Fatal(err)
	}
}

// give gives GPU i to the i-th pod; an empty name is nobody.
func (c *cluster) give(pods ...string) {
	var list []*podresources.PodResources
	var offered []*podresources.ContainerDevices
	for i, name := range pods {
		devices := kubelettest.Devices("nvidia.com/gpu", fmt.Sprintf(fakeUUID, i))
		offered = append(offered, devices...)
		if name != "" {
			list = append(list, kubelettest.Pod("ns", name, kubelettest.Container("main", devices...)))
		}
	}
	c.kubelet.Set(list, offered)
}

// newCluster starts an agent that believes a silent kubelet for staleFor.
func newCluster(t *testing.T, staleFor string) *cluster {
	t.Helper()
	c := &cluster{t: t, socket: filepath.Join(t.TempDir(), "kubelet.sock"), api: kubeapitest.New(), sink: newSink(t)}
	c.startKubelet()
	t.Cleanup(func() { c.kubelet.Kill() })
	url, stop := c.api.Serve()
	t.Cleanup(stop)
	kubeconfig, err := kubeapitest.Kubeconfig(t.TempDir(), url)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		c.api.PutPod(kubeapitest.Pod("n1", "ns", name, "uid-"+name,
			kubeapitest.Object{"metadata": kubeapitest.Object{"labels": kubeapitest.Object{"team": "red"}}},
			kubeapitest.Containers("main", "id-"+name)))
	}
	host := nvmltest.New(t, "gpus 2\n")
	c.agent = startConfig(t, fmt.Sprintf(`
extensions:
  gpu:
    interval: 1s
    nvidia_library: %q
    host_name: host
    root: %q
    workloads: {kubelet_socket: %q, kubeconfig: %q, node: n1, stale_for: %s}
receivers:
  gpu:
exporters:
  page: {endpoint: "localhost:0"}
  otlp_http: {endpoint: %q, compression: none}
service:
  extensions: [gpu]
  pipelines:
    metrics: {receivers: [gpu], exporters: [page, otlp_http]}
`, host.Library, t.TempDir(), c.socket, kubeconfig, staleFor, c.sink.URL))
	return c
}

// owners returns the owners of the GPUs on the page.
func owners(p page) map[string]string {
	all := map[string]string{}
	for s := range p {
		if strings.HasPrefix(s, "gpu_memory_used_bytes{") {
			all[label(s, "gpu_index")] = strings.Trim(label(s, "k8s_pod_name")+" "+label(s, "k8s_pod_uid")+" "+label(s, "gpu_workload_team"), " ")
		}
	}
	return all
}

// reasons returns the reported states of a source.
func reasons(p page, source string) []string {
	var list []string
	for s := range p {
		if strings.HasPrefix(s, "gpumeter_attribution_status{") && label(s, "gpumeter_attribution_source") == source {
			list = append(list, label(s, "gpumeter_attribution_reason"))
		}
	}
	slices.Sort(list)
	return list
}

// wait waits until the page says this of the GPUs and of the kubelet.
func (c *cluster) wait(reason string, want map[string]string) {
	c.t.Helper()
	c.waitPage(func(p page) error {
		if diff := cmp.Diff(want, owners(p)); diff != "" {
			return fmt.Errorf("owners (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{reason}, reasons(p, "kubelet")); diff != "" {
			return fmt.Errorf("reasons (-want +got):\n%s", diff)
		}
		return nil
	})
}

// Whatever the kubelet does, sampling goes on, and the labels of its last answer stay, marked as
// stale, until it answers again.
func TestKubeletFails(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "1h")
	c.give("a", "b")
	both := map[string]string{"0": "a uid-a red", "1": "b uid-b red"}
	c.wait("ok", both)

	c.kubelet.Hang(true)
	c.wait("stale", both)
	before := len(c.sink.all())
	await.NoError(t, func() error {
		if n := len(c.sink.all()); n < before+3 {
			return fmt.Errorf("%d ticks came while the kubelet hung", n-before)
		}
		return nil
	})
	c.kubelet.Hang(false)
	c.wait("ok", both)

	c.kubelet.Fail(errors.New("nonsense"), nil)
	c.wait("stale", both)
	c.kubelet.Fail(nil, nil)
	c.wait("ok", both)

	c.kubelet.Kill()
	c.wait("stale", both)
	c.startKubelet()
	c.give("b") // GPU 1 is nobody's
	c.wait("ok", map[string]string{"0": "b uid-b red", "1": ""})

	// 4,000 devices more, which no reader knows.
	devices := kubelettest.Devices("nvidia.com/gpu", fmt.Sprintf(fakeUUID, 0))
	for i := range 4000 {
		devices = append(devices, kubelettest.Devices("example.com/fpga", fmt.Sprint("fpga-", i))...)
	}
	c.kubelet.Set([]*podresources.PodResources{kubelettest.Pod("ns", "a", kubelettest.Container("main", devices...))}, devices)
	c.wait("ok", map[string]string{"0": "a uid-a red", "1": ""})
	if got := reasons(c.waitPage(func(page) error { return nil }), "resolver"); !slices.Contains(got, "resource_unknown") {
		t.Errorf("4,000 unknown devices are said to be %v", got)
	}
	c.stop()
}

// Labels that are too old are dropped with a reason, and return with the kubelet.
func TestKubeletExpires(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "4s")
	c.give("a", "b")
	both := map[string]string{"0": "a uid-a red", "1": "b uid-b red"}
	c.wait("ok", both)
	c.kubelet.Hang(true)
	c.wait("expired", map[string]string{"0": "", "1": ""})
	c.kubelet.Hang(false)
	c.wait("ok", both)
	c.stop()
}

// Without the API server, or rights on it, devices still have their pods, what is lost
// is said, and it is back when the server is.
func TestAPIFails(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "4s")
	c.api.Fail("/api/v1/pods", kubeapitest.Fault{Status: 403})
	c.give("a", "")
	c.wait("ok", map[string]string{"0": "a", "1": ""})
	c.waitPage(func(p page) error {
		if got := reasons(p, "kubernetes_api"); !slices.Contains(got, "permission_denied") {
			return fmt.Errorf("the API is said to be %v", got)
		}
		return nil
	})
	c.api.Heal()
	c.wait("ok", map[string]string{"0": "a uid-a red", "1": ""})
	c.stop()
}

// One interval after a GPU changes hands, neither the page nor OTLP shows the old owner, and the
// old owner's final sums have been delivered.
func TestOwnerChanges(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "4s")
	c.give("a", "")
	c.wait("ok", map[string]string{"0": "a uid-a red", "1": ""})
	c.waitPage(func(p page) error {
		if v := workloadSum(p, "gpu_workload_allocated_time_seconds_total", "a"); v < 3 {
			return fmt.Errorf("a has the GPU for %v s", v)
		}
		return nil
	})
	c.give("b", "")
	c.wait("ok", map[string]string{"0": "b uid-b red", "1": ""})
	p := c.waitPage(func(page) error { return nil })
	for s := range p {
		if label(s, "k8s_pod_name") == "a" && !strings.HasSuffix(strings.SplitN(s, "{", 2)[0], "_total") {
			t.Errorf("%s is still there", s)
		}
	}
	last := workloadSum(p, "gpu_workload_allocated_time_seconds_total", "a")
	if last < 3 {
		t.Errorf("a's last value is %v s", last)
	}
	c.waitPage(func(p page) error {
		if workloadSum(p, "gpu_workload_allocated_time_seconds_total", "b") < 2 {
			return errors.New("b has no time")
		}
		if v := workloadSum(p, "gpu_workload_allocated_time_seconds_total", "a"); v != last {
			t.Errorf("a is gone and has %v s, not %v", v, last)
		}
		return nil
	})
	c.stop()
	c.sink.mu.Lock()
	defer c.sink.mu.Unlock()
	ended := slices.Sorted(maps.Keys(c.sink.ended))
	if len(ended) < 20 || !slices.Contains(ended, "gpu.memory.used a") || !slices.Contains(ended, "gpu.workload.utilization a") || slices.Contains(ended, "gpu.energy ") {
		t.Errorf("series that ended by OTLP: %v", ended)
	}
}

// workloadSum returns a sum of the pod.
func workloadSum(p page, name, pod string) float64 {
	for s, v := range p {
		if strings.HasPrefix(s, name+"{") && label(s, "k8s_pod_name") == pod {
			return v
		}
	}
	return 0
}

// Catches seconds that are counted under two labels: after an edit of the team label, the
// seconds of both teams are those that passed on the other GPU, which nobody has.
func TestTeamChanges(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "1h")
	c.give("a", "")
	c.wait("ok", map[string]string{"0": "a uid-a red", "1": ""})
	seconds := func(p page, gpu, team string) (sum float64) {
		for s, v := range p {
			if (strings.HasPrefix(s, "gpu_workload_allocated_time_seconds_total{") || strings.HasPrefix(s, "gpu_unallocated_time_seconds_total{")) &&
				label(s, "gpu_index") == gpu && (team == "" || label(s, "gpu_workload_team") == team) {
				sum += v
			}
		}
		return sum
	}
	check := func(team string, least float64) {
		t.Helper()
		p := c.waitPage(func(p page) error {
			if v := seconds(p, "0", team); v < least {
				return fmt.Errorf("team %s has %v s", team, v)
			}
			return nil
		})
		if held, passed := seconds(p, "0", ""), seconds(p, "1", ""); math.Abs(held-passed) > 1e-6 {
			t.Errorf("team %s: %v s are counted in %v s", team, held, passed)
		}
	}
	check("red", 2)
	c.api.PutPod(kubeapitest.Pod("n1", "ns", "a", "uid-a",
		kubeapitest.Object{"metadata": kubeapitest.Object{"labels": kubeapitest.Object{"team": "blue"}}}, kubeapitest.Containers("main", "id-a")))
	c.wait("ok", map[string]string{"0": "a uid-a blue", "1": ""})
	check("blue", 2)
	check("red", 2) // stays until every scrape has seen its last value
	c.stop()
}
