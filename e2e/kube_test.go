//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
)

// The resources and namespaces of the tests.
const (
	wholeGPU  = "nvidia.com/gpu"
	migSlice  = "nvidia.com/mig-1g.18gb"
	sharedGPU = "nvidia.com/gpu.shared"

	red, blue = "team-red", "team-blue"
)

// GPUs of the node with a special role. All others are allocated whole.
const (
	cutGPU     = 3 // partitioned
	slicedGPU  = 4 // time-sliced
	secretGPU  = 7 // not offered
	gpuCount   = 8
	replicas   = 4
	partitions = 2
)

func gpuUUID(i int) string    { return fmt.Sprintf("GPU-e2e00000-0000-4000-8000-%012d", i) }
func migUUID(slot int) string { return fmt.Sprintf("MIG-e2e00000-0000-4000-8000-%012d", slot) }

// gpuPlugins offer exactly as much as the pods of TestKubernetes request: a later pod gets the GPU of an
// earlier one.
func gpuPlugins() []*devicePlugin {
	whole, cut, sliced := &devicePlugin{resource: wholeGPU}, &devicePlugin{resource: migSlice}, &devicePlugin{resource: sharedGPU}
	for i := range gpuCount {
		if i != cutGPU && i != slicedGPU && i != secretGPU {
			whole.ids = append(whole.ids, gpuUUID(i))
		}
	}
	for slot := range partitions {
		cut.ids = append(cut.ids, migUUID(slot))
	}
	for i := range replicas {
		sliced.ids = append(sliced.ids, fmt.Sprintf("%s::%d", gpuUUID(slicedGPU), i))
	}
	return []*devicePlugin{whole, cut, sliced}
}

// gpuScript describes the idle GPUs of the node. They draw no power, so their energy is constant unless a
// test sets it.
func gpuScript() string {
	script := fmt.Sprintf("gpus %d\ngpu * power 0 0\ngpu * util 0 0\ngpu * energy 1000000\n", gpuCount)
	for i := range gpuCount {
		script += fmt.Sprintf("gpu %d uuid %s\n", i, gpuUUID(i))
	}
	for slot := range partitions {
		script += fmt.Sprintf("mig %d %d %s %d 0 1 1 16384 15204352\n", cutGPU, slot, migUUID(slot), slot+1)
	}
	return script
}

// TestKubernetes runs on one cluster, because starting one takes a while. The parts build on each other.
func TestKubernetes(t *testing.T) {
	t.Parallel()
	host := nvmltest.New(t, gpuScript())
	c := newCluster(t, gpuPlugins()...)
	for _, namespace := range []string{red, blue} {
		c.api.create("/api/v1/namespaces", "{apiVersion: v1, kind: Namespace, metadata: {name: "+namespace+"}}")
	}
	c.api.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", clusterRole(t))
	c.bind(asAgent)
	c.runPod(red, "solo", wholeGPU, 1)
	c.runPod(red, "pair", wholeGPU, 2)
	c.runPod(blue, "slice", migSlice, 1)
	c.runPod(blue, "quick", sharedGPU, 1)
	c.runPod(blue, "slow", sharedGPU, 1)
	c.runPod(blue, "thief", "", 0)
	c.runJob(blue, "train", wholeGPU, 1)
	c.runDeployment(red, "serve", wholeGPU, 1)

	g := &gpus{host: host, on: map[string][]gpuProcess{}}
	for _, app := range []string{"solo", "pair", "serve"} {
		g.use(t, app, c.running(red, app))
	}
	for _, app := range []string{"slice", "quick", "slow", "thief", "train"} {
		g.use(t, app, c.running(blue, app))
	}
	binary := gpumeter(t)
	parts := []struct {
		name string
		run  func(*kubeTest)
	}{
		{"Owners", (*kubeTest).owners},
		{"Replaced", (*kubeTest).replaced},
		{"Claims", (*kubeTest).claims},
		{"Kubelet", (*kubeTest).kubeletFaults},
		{"Check", (*kubeTest).check},
		{"API", (*kubeTest).apiFaults}, // last: it may leave no API server
	}
	for _, part := range parts {
		t.Run(part.name, func(t *testing.T) { part.run(&kubeTest{cluster: c.in(t), parent: c, gpus: g, binary: binary}) })
	}
}

// clusterRole returns the documented permissions of the agent.
func clusterRole(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../internal/workload/kubeapi/doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var role strings.Builder
	for line := range strings.Lines(string(text)) {
		if code, ok := strings.CutPrefix(line, "//\t"); ok {
			role.WriteString(code)
		}
	}
	return role.String()
}

// bind gives a user the permissions of the agent.
func (c *cluster) bind(user string) {
	c.t.Helper()
	c.api.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", fmt.Sprintf(`{metadata: {name: %[1]s},
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: gpumeter},
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %[1]s}]}`, user))
}

// gpus are the GPUs of the node and the processes on them.
type gpus struct {
	host   *nvmltest.Host
	on     map[string][]gpuProcess // by app
	energy map[int]int             // joules since the start, by GPU
	more   string                  // lines at the end of the script
}

// gpuProcess is a container on a GPU.
type gpuProcess struct {
	container
	gpu  int
	slot int // slot of the partition, -1 for the whole GPU
}

// use puts the process of a container on its allocated devices.
func (g *gpus) use(t *testing.T, app string, c container) {
	t.Helper()
	ids := c.devices
	if app == "thief" {
		ids = []string{gpuUUID(secretGPU)}
	}
	g.on[app] = nil
	for _, id := range ids {
		p := gpuProcess{container: c, gpu: cutGPU, slot: -1}
		base, _, _ := strings.Cut(id, "::")
		for i := range gpuCount {
			if base == gpuUUID(i) {
				p.gpu = i
			}
		}
		for slot := range partitions {
			if base == migUUID(slot) {
				p.slot = slot
			}
		}
		g.on[app] = append(g.on[app], p)
	}
	g.write(t)
}

// end removes the processes of an app from their GPUs.
func (g *gpus) end(t *testing.T, app string) {
	delete(g.on, app)
	g.write(t)
}

// burn adds joules to the energy counter of a GPU.
func (g *gpus) burn(t *testing.T, gpu, joules int) {
	if g.energy == nil {
		g.energy = map[int]int{}
	}
	g.energy[gpu] += joules
	g.write(t)
}

// busy is the utilization of a GPU by an app, in percent.
var busy = map[string]int{"quick": 60, "slow": 20}

func (g *gpus) write(t *testing.T) {
	t.Helper()
	script := gpuScript() + fmt.Sprintf("gpu %d util %d 0\n", slicedGPU, busy["quick"]+busy["slow"])
	for gpu, joules := range g.energy {
		script += fmt.Sprintf("gpu %d energy %d\n", gpu, 1000*(1000+joules))
	}
	for _, app := range slices.Sorted(maps.Keys(g.on)) {
		for _, p := range g.on[app] {
			line := fmt.Sprintf("process %d %d compute %d %d", p.gpu, p.pid, 1<<30, busy[app])
			if p.slot >= 0 {
				line = fmt.Sprintf("process %d %d compute %d na %d 0", p.gpu, p.pid, 1<<20, p.slot+1)
			}
			script += line + "\n"
		}
	}
	g.host.Script(t, script+g.more)
}

// kubeTest is one part of TestKubernetes with its own database.
type kubeTest struct {
	*cluster
	parent *cluster // shared by the parts, with everything they start in it
	*gpus
	binary string
	db     *backend
}

const kubeInterval = time.Second

// watch starts an agent that uses the API server as a user, and a database that receives its metrics on both
// paths.
func (k *kubeTest) watch(user string) {
	k.t.Helper()
	k.watchNode(user, nodeName, k.root)
}

// watchNode is watch on a node whose files are below root.
func (k *kubeTest) watchNode(user, node, root string) {
	k.t.Helper()
	k.db = prometheus3(k.t)
	p := start(k.t, "env", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT="+k.db.url+k.db.path, k.binary, "agent",
		"--nvidia-library", k.host.Library, "--root", root, "--kubeconfig", k.api.kubeconfig(k.t.TempDir(), user),
		"--interval", kubeInterval.String(), "--slow-interval", kubeInterval.String(), "--listen", "127.0.0.1:0", "--socket", "",
		"--state-dir", k.t.TempDir(), "--node-name", node, "--host-name", "host-a")
	p.name = "gpumeter"
	k.db.up(p.find(k.t, pageAddress))
}

// paths are the selectors of the paths by which series reach the database.
var paths = map[string]string{"page": pulled, "OTLP": pushed}

// expect waits until a query has the expected answer on both paths. The query has one %s for the selector
// of a path.
func (k *kubeTest) expect(query string, want map[string]string) {
	k.t.Helper()
	k.db.expect(k.t, query, want)
}

// rounded returns the answer to a query at a time, with comparable values.
func (k *kubeTest) rounded(query string, when time.Time) map[string]string {
	k.t.Helper()
	return k.db.rounded(k.t, query, when)
}

func (b *backend) expect(t *testing.T, query string, want map[string]string) {
	t.Helper()
	for path, selector := range paths {
		eventually(t, path, func() error {
			if diff := cmp.Diff(want, b.rounded(t, fmt.Sprintf(query, selector), time.Now())); diff != "" {
				return fmt.Errorf("%s (-want +got):\n%s", query, diff)
			}
			return nil
		})
	}
}

func (b *backend) rounded(t *testing.T, query string, when time.Time) map[string]string {
	t.Helper()
	got := b.at(query, when)
	for key, value := range got {
		f, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatal(err)
		}
		got[key] = strconv.FormatFloat(f, 'f', 6, 64)
	}
	return got
}
