//go:build linux

package cli_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi/kubeapitest"
	"github.com/gpumeter/gpumeter/internal/workload/kubelet/kubelettest"
)

// lab is a Kubernetes node with scripted GPUs, a scripted kubelet and a scripted API server. The
// shipped agent runs on it and sends to a hub and to the lab. A scenario changes the world, lets
// ticks pass, and compares the books with what the driver counted:
//
//	l := newLab(t, 1)
//	l.pod("a", 0)
//	l.run(101, "a", 0, 90)
//	l.start()
//	l.use(0, 400)
//	l.settle()
//	l.wantJoules(0, map[string]float64{"a": 400})
//
// A scenario waits for ticks, never for a time: it does not matter how fast the machine is.
type lab struct {
	t                 *testing.T
	driver            *nvmltest.Host
	kubelet           *kubelettest.Server
	api               *kubeapitest.Server
	hub               *hubProcess
	agent             *agent
	socket, root      string
	state, kubeconfig string
	took              *httptest.Server
	interval, slow    time.Duration
	receiver          string // more keys of the gpu receiver
	otlp              string // address at which the agent takes traces; empty: it takes none

	gpus      []labGPU
	processes map[int]labProcess
	grants    map[string][]string // devices as the kubelet names them, by pod
	extra     string              // more lines of the driver's script
	replicas  int                 // of each GPU, as HAMi's plugin offers them; 0: the GPU itself

	lag     atomic.Int64 // ns that the backend takes for each request
	mu      sync.Mutex
	agents  int // that were started
	batches []labTick
	records []map[string]any          // attributes of log records, with their name as "event"
	spans   map[string]map[string]any // attributes of spans, by name
}

// labGPU is what the driver says about a GPU.
type labGPU struct {
	start, energy float64 // J; the counter at the start of the lab, and now
	util          int     // %
}

// labProcess is a process on a GPU.
type labProcess struct {
	pod     string // empty: in no container
	gpu, sm int    // sm: %
}

// labTick is one batch of points of the gpu receiver.
type labTick struct {
	time   time.Time
	agent  int // how many agents were started before
	points []labPoint
}

type labPoint struct {
	metric string
	attrs  map[string]any
	start  time.Time // zero: unknown
	value  float64
}

// newLab returns a lab with idle GPUs, whose agent does not run yet.
func newLab(t *testing.T, gpus int) *lab {
	t.Helper()
	l := &lab{
		t: t, root: t.TempDir(), state: t.TempDir(), socket: filepath.Join(shortDir(t), "kubelet.sock"), api: kubeapitest.New(),
		interval: 200 * time.Millisecond, slow: 600 * time.Millisecond,
		processes: map[int]labProcess{}, grants: map[string][]string{},
	}
	for i := range gpus {
		l.gpus = append(l.gpus, labGPU{start: 5e6 + float64(i), energy: 5e6 + float64(i)})
	}
	l.driver = nvmltest.New(t, l.script())
	var err error
	if l.kubelet, err = kubelettest.Start(l.socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.kubelet.Kill() })
	url, stop := l.api.Serve()
	t.Cleanup(stop)
	if l.kubeconfig, err = kubeapitest.Kubeconfig(t.TempDir(), url); err != nil {
		t.Fatal(err)
	}
	l.took = httptest.NewServer(http.HandlerFunc(l.take))
	t.Cleanup(l.took.Close)
	l.hub = startHub(t, t.TempDir())
	return l
}

// start starts the agent, or starts it again after l.agent.stop.
func (l *lab) start() {
	l.t.Helper()
	l.apply()
	l.mu.Lock()
	l.agents++
	l.mu.Unlock()
	l.agent = l.launch()
	l.ready()
}

// launch starts an agent.
func (l *lab) launch() *agent {
	l.t.Helper()
	return launch(l.t, nil, "--config", write(l.t, "config.yaml", l.config()))
}

// config returns the configuration of an agent.
func (l *lab) config() string {
	otlp, traces := "", ""
	if l.otlp != "" {
		otlp = fmt.Sprintf("  otlp: {protocols: {http: {endpoint: %q, middlewares: [{id: local_only}]}}}\nprocessors:\n  gpuspan: {root: %q}\n", l.otlp, l.root)
		traces = "    traces: {receivers: [otlp], processors: [gpuspan], exporters: [otlp_http/lab]}\n"
	}
	return fmt.Sprintf(`
extensions:
  local_only:
  gpu:
    interval: %s
    slow_interval: %s
    nvidia_library: %q
    host_name: host
    root: %q
    state_dir: %q
    workloads: {kubelet_socket: %q, kubeconfig: %q, node: n1}
receivers:
  gpu: {%s}
  scheduler/node: {scheduler: node, node: {cluster: lab, state_dir: %q}}
%sexporters:
  page: {endpoint: "localhost:0"}
  otlp_http/lab: {endpoint: %q, compression: none}
  otlp_http/hub: {endpoint: %q}
service:
  extensions: [gpu, local_only]
  pipelines:
    metrics: {receivers: [gpu], exporters: [page, otlp_http/lab, otlp_http/hub]}
    metrics/work: {receivers: [scheduler/node], exporters: [page, otlp_http/hub]}
    logs: {receivers: [gpu], exporters: [otlp_http/lab, otlp_http/hub]}
%s`, l.interval, l.slow, l.driver.Library, l.root, l.state, l.socket, l.kubeconfig, l.receiver, filepath.Join(l.state, "work"), otlp, l.took.URL, l.hub.url, traces)
}

// ready waits until an agent charges every pod.
func (l *lab) ready() {
	l.t.Helper()
	since := time.Now()
	await.NoError(l.t, func() error { // before that nobody is charged
		if all := l.ticks(); len(all) == 0 || all[len(all)-1].time.Before(since) {
			return errors.New("no tick yet")
		}
		for pod := range l.grants {
			if math.IsNaN(l.last("gpu.allocation", "k8s.pod.name", pod)) && math.IsNaN(l.last("gpu.allocation", "gpu.workload.kind", "other")) {
				return fmt.Errorf("pod %s holds nothing yet", pod)
			}
		}
		return nil
	})
	l.tick(1)
}

// pod creates a pod with one container, main, that holds the devices; each is the index of a GPU or the
// kubelet's name of a device.
func (l *lab) pod(name string, devices ...any) {
	for _, d := range devices {
		if i, ok := d.(int); ok {
			d = fmt.Sprintf(fakeUUID, i)
		}
		l.grants[name] = append(l.grants[name], d.(string))
	}
	l.label(name, "red")
}

// label gives a pod a team; empty: none.
func (l *lab) label(name, team string) {
	labels := kubeapitest.Object{}
	if team != "" {
		labels["team"] = team
	}
	l.api.PutPod(kubeapitest.Pod("n1", "ns", name, podUID(name),
		kubeapitest.Object{"metadata": kubeapitest.Object{"labels": labels}},
		kubeapitest.Containers("main", containerID(name))))
}

// leave removes a pod and its processes.
func (l *lab) leave(name string) {
	delete(l.grants, name)
	for pid, p := range l.processes {
		if p.pod == name {
			l.exit(pid)
		}
	}
	l.api.DeletePod("ns", name)
}

// run starts a process that uses sm percent of a GPU, in a pod or, with an empty name, outside. The
// process is in the pod's container main unless the name is like pod/container.
func (l *lab) run(pid int, name string, gpu, sm int) {
	l.t.Helper()
	pod, _, _ := strings.Cut(name, "/")
	l.processes[pid] = labProcess{pod, gpu, sm}
	dir := filepath.Join(l.root, "proc", strconv.Itoa(pid))
	group := "0::/user.slice\n"
	if pod != "" {
		group = fmt.Sprintf("0::/kubepods.slice/kubepods-pod%s.slice/cri-containerd-%s.scope\n", strings.ReplaceAll(podUID(pod), "-", "_"), containerID(name))
	}
	for name, text := range map[string]string{
		"cgroup": group, "status": "Name:\tpython\nUid:\t1000\t1000\t1000\t1000\n",
		"stat": fmt.Sprintf("%d (python) S 1 1 1 0 -1 4194304 1 1 1 1 1 1 1 1 20 0 1 0 %d 1 1\n", pid, pid),
	} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			l.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			l.t.Fatal(err)
		}
	}
}

// exit ends a process.
func (l *lab) exit(pid int) {
	l.t.Helper()
	delete(l.processes, pid)
	if err := os.RemoveAll(filepath.Join(l.root, "proc", strconv.Itoa(pid))); err != nil {
		l.t.Fatal(err)
	}
}

// use adds joules to the counter of a GPU.
func (l *lab) use(gpu int, joules float64) { l.gpus[gpu].energy += joules }

// busy sets the utilization of a GPU in percent.
func (l *lab) busy(gpu, percent int) { l.gpus[gpu].util = percent }

// used returns what the counter of a GPU rose by since the lab began.
func (l *lab) used(gpu int) float64 { return l.gpus[gpu].energy - l.gpus[gpu].start }

func (l *lab) script() string {
	var b strings.Builder
	fmt.Fprintf(&b, "gpus %d\n", len(l.gpus))
	for i, g := range l.gpus {
		fmt.Fprintf(&b, "gpu %d energy %d\ngpu %d util %d 0\n", i, int64(g.energy*1000+0.5), i, g.util)
	}
	for pid, p := range l.processes {
		fmt.Fprintf(&b, "process %d %d compute 1073741824 %d\n", p.gpu, pid, p.sm)
	}
	return b.String() + l.extra
}

// apply makes the driver and the kubelet say what the lab says.
func (l *lab) apply() {
	l.t.Helper()
	l.driver.Script(l.t, l.script())
	var offered []*podresources.ContainerDevices
	for i := range l.gpus {
		if l.replicas == 0 {
			offered = append(offered, kubelettest.Devices("nvidia.com/gpu", fmt.Sprintf(fakeUUID, i))...)
		}
		for r := range l.replicas {
			offered = append(offered, kubelettest.Devices("nvidia.com/gpu", fmt.Sprintf(fakeUUID+"-%d", i, r))...)
		}
	}
	var pods []*podresources.PodResources
	for _, name := range slices.Sorted(maps.Keys(l.grants)) {
		pods = append(pods, kubelettest.Pod("ns", name, kubelettest.Container("main", kubelettest.Devices("nvidia.com/gpu", l.grants[name]...)...)))
	}
	l.kubelet.Set(pods, offered)
}

// heard waits until the agent has asked the kubelet after the last change and knows the answer.
func (l *lab) heard() {
	l.t.Helper()
	l.apply()
	asked := l.kubelet.Calls()
	await.NoError(l.t, func() error {
		if n := l.kubelet.Calls(); n < asked+2 { // the first may have been answered before the change
			return fmt.Errorf("the kubelet was asked %d times since the change", n-asked)
		}
		return nil
	})
	l.tick(1)
}

// tick applies changes and waits for n ticks that began after them.
func (l *lab) tick(n int) {
	l.t.Helper()
	l.apply()
	since := time.Now()
	await.NoError(l.t, func() error {
		found := 0
		for _, b := range l.ticks() {
			if b.time.After(since) {
				found++
			}
		}
		if found < n {
			return fmt.Errorf("%d ticks of %d", found, n)
		}
		return nil
	})
}

// settle applies changes and waits until the agent has read the energy of all GPUs since.
func (l *lab) settle() {
	l.t.Helper()
	l.tick(1)
	await.NoError(l.t, func() error {
		for i, g := range l.gpus {
			if v := l.last("gpu.energy", "gpu.index", int64(i)); v != g.energy {
				return fmt.Errorf("GPU %d: the agent knows %v J, the driver %v", i, v, g.energy)
			}
		}
		return nil
	})
}

// take is the lab's OTLP backend.
func (l *lab) take(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	time.Sleep(time.Duration(l.lag.Load()))
	switch {
	case err != nil:
	case r.URL.Path == "/v1/logs":
		err = l.takeLogs(body)
	case r.URL.Path == "/v1/traces":
		err = l.takeTraces(body)
	default:
		err = l.takeMetrics(body)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}

func (l *lab) takeLogs(body []byte) error {
	req := plogotlp.NewExportRequest()
	if err := req.UnmarshalProto(body); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, rl := range req.Logs().ResourceLogs().All() {
		for _, sl := range rl.ScopeLogs().All() {
			for _, rec := range sl.LogRecords().All() {
				attrs := rec.Attributes().AsRaw()
				attrs["event"] = rec.EventName()
				l.records = append(l.records, attrs)
			}
		}
	}
	return nil
}

func (l *lab) takeMetrics(body []byte) error {
	req := pmetricotlp.NewExportRequest()
	if err := req.UnmarshalProto(body); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b := labTick{agent: l.agents}
	for _, rm := range req.Metrics().ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				for _, p := range points(m).All() {
					b.time = p.Timestamp().AsTime()
					if p.Flags().NoRecordedValue() {
						continue // the series ended
					}
					b.points = append(b.points, labPoint{m.Name(), p.Attributes().AsRaw(), startOf(p.StartTimestamp()), p.DoubleValue() + float64(p.IntValue())})
				}
			}
		}
	}
	l.batches = append(l.batches, b)
	slices.SortFunc(l.batches, func(a, b labTick) int { return a.time.Compare(b.time) })
	return nil
}

func startOf(t pcommon.Timestamp) time.Time {
	if t == 0 {
		return time.Time{}
	}
	return t.AsTime()
}

func podUID(name string) string {
	return fmt.Sprintf("00000000-0000-4000-8000-%012x", []byte(name)[:min(len(name), 6)])
}
func containerID(name string) string { return fmt.Sprintf("%064x", []byte(name)[:min(len(name), 32)]) }
