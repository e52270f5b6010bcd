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

// The GPUs of the node by what they are for. All others are given out whole.
const (
	cutGPU     = 3 // into partitions
	slicedGPU  = 4 // in time
	secretGPU  = 7 // not offered
	gpuCount   = 8
	replicas   = 4
	partitions = 2
)

func gpuUUID(i int) string    { return fmt.Sprintf("GPU-e2e00000-0000-4000-8000-%012d", i) }
func migUUID(slot int) string { return fmt.Sprintf("MIG-e2e00000-0000-4000-8000-%012d", slot) }

// gpuPlugins offer exactly as much as the pods of TestKubernetes ask for: who comes later
// gets what somebody else had.
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

// gpuScript is the node's GPUs with nothing on them. They draw nothing, because their
// energy stands still unless a test says how much it was.
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

// TestKubernetes runs on one cluster, because that takes a while to start. The parts go
// on from each other.
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
		{"API", (*kubeTest).apiFaults}, // the last: it may leave none
	}
	for _, part := range parts {
		t.Run(part.name, func(t *testing.T) { part.run(&kubeTest{cluster: c.in(t), parent: c, gpus: g, binary: binary}) })
	}
}

// clusterRole returns what the agent may be allowed, as it is documented.
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

// bind lets a user do what the agent may.
func (c *cluster) bind(user string) {
	c.t.Helper()
	c.api.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", fmt.Sprintf(`{metadata: {name: %[1]s},
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: gpumeter},
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %[1]s}]}`, user))
}

// gpus are those of the node and what runs on them.
type gpus struct {
	host   *nvmltest.Host
	on     map[string][]gpuProcess // by app
	energy map[int]int             // by GPU, joules more than at first
	more   string                  // lines at the end of the script
}

// gpuProcess is a container on a GPU.
type gpuProcess struct {
	container
	gpu  int
	slot int // of the partition, -1 if it has the GPU
}

// use puts the process of a container on the devices that it was given.
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

// end takes the processes of an app off their GPUs.
func (g *gpus) end(t *testing.T, app string) {
	delete(g.on, app)
	g.write(t)
}

// burn lets a GPU count joules.
func (g *gpus) burn(t *testing.T, gpu, joules int) {
	if g.energy == nil {
		g.energy = map[int]int{}
	}
	g.energy[gpu] += joules
	g.write(t)
}

// busy is how much of a GPU an app needs, in percent.
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

// kubeTest is one part of TestKubernetes, with a database of its own.
type kubeTest struct {
	*cluster
	parent *cluster // which the parts have in common, and what they start in it
	*gpus
	binary string
	db     *backend
}

const kubeInterval = time.Second

// watch starts an agent that asks the API server as a user, and a database that gets what
// it says both ways.
func (k *kubeTest) watch(user string) {
	k.t.Helper()
	k.watchNode(user, nodeName, k.root)
}

// watchNode does that on a node whose files are below root.
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

// paths are the ways by which series get to the database, as selectors.
var paths = map[string]string{"page": pulled, "OTLP": pushed}

// expect waits until a query gives what it should by both paths. The query has one %s
// for the selector of a path.
func (k *kubeTest) expect(query string, want map[string]string) {
	k.t.Helper()
	k.db.expect(k.t, query, want)
}

// rounded returns what a query gives at a time, with values that can be compared.
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
