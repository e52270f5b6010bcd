//go:build e2e

package e2e

import (
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

const autoscaling = "../docs/autoscaling.md"

// block returns the block of code in a document that starts with prefix.
func block(t *testing.T, document, prefix string) string {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	for part := range strings.SplitSeq(string(text), "\n```") {
		if _, code, _ := strings.Cut(part, "\n"); strings.HasPrefix(code, prefix) { // the language follows ```
			return code
		}
	}
	t.Fatalf("%s has no code that starts with %q", document, prefix)
	return ""
}

// requirePicker skips the test if an endpoint picker cannot run, and returns the folder with the definitions of its
// resources.
func requirePicker(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if _, err := exec.LookPath(name); err != nil {
			skip(t, "epp", fmt.Errorf("tools/deps.sh kubernetes etcd did not install it: %w", err))
		}
	}
	path, err := exec.LookPath("epp")
	if err != nil {
		skip(t, "epp", err)
	}
	return folderOf(t, path)
}

// folderOf returns the folder of a program that a link leads to.
func folderOf(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Dir(path)
}

// documentedModel is the model in the queries of docs/autoscaling.md.
const documentedModel = "llama-3.1-8b"

// picked is a pool with an endpoint picker: pods that are records of an API server, whose engines and agents are
// processes of this machine. Each pod has a loopback address of its own.
type picked struct {
	t      *testing.T
	api    apiServer
	picker *process
	at     struct{ grpc, metrics string }
	pods   []*enginePod
}

type enginePod struct {
	*engine
	name, ip string
	waiting  int // requests that it has, besides the one that it works on
}

// busyPod returns a pod whose engine works on one request at a time, and ends none while the test runs.
func busyPod(t *testing.T, number int) *enginePod {
	p := &enginePod{engine: vllmLike(t), name: fmt.Sprintf("llama-%d", number), ip: fmt.Sprintf("127.0.0.%d", 10+number)}
	p.model = documentedModel
	p.place("env", "POD_IP="+p.ip, p.argv[0], "--model", p.model, "--force-dummy-tokenizer", "--mode", "echo", "--max-num-seqs", "1", "--max-waiting-queue-length", "64",
		"--time-to-first-token", "1h", "--enable-kvcache", "--kv-cache-size", "40", "--block-size", "8", "--seed", "1", "--port")
	p.start()
	return p
}

// cached is the part of the cache that a prompt takes which the engine works on: 26 words fill three of 40 blocks of eight.
const promptWords, cached = 26, 3. / 40

// send sends requests until the engine has one that it works on and some that wait.
func (p *enginePod) send(waiting int) {
	p.t.Helper()
	for p.waiting = waiting; waiting >= 0; waiting-- {
		go func() { _, _ = p.ask(promptWords) }() // ends with the engine
	}
	eventually(p.t, p.name+" has its requests", func() error {
		page, err := get(p.t, p.url("/metrics"))
		if err != nil {
			return err
		}
		for _, want := range []string{fmt.Sprintf(`vllm:num_requests_waiting{model_name=%q} %d`, p.model, p.waiting), fmt.Sprintf(`vllm:kv_cache_usage_perc{model_name=%q} %v`, p.model, cached)} {
			if !strings.Contains(page, "\n"+want+"\n") {
				return fmt.Errorf("no %s in\n%s", want, page)
			}
		}
		return nil
	})
}

// define creates the definitions of resources that are in a folder, and waits until the API server offers the resources.
func (a apiServer) define(t *testing.T, folder string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has %q, %v", folder, files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		a.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", string(text))
		var d struct {
			Spec struct {
				Group    string
				Names    struct{ Plural string }
				Versions []struct {
					Name   string
					Served bool
				}
			}
		}
		if err := yaml.Unmarshal(text, &d); err != nil {
			t.Fatal(err)
		}
		for _, v := range d.Spec.Versions {
			if v.Served {
				a.offers(t, "/apis/"+d.Spec.Group+"/"+v.Name, d.Spec.Names.Plural)
			}
		}
	}
}

// offers waits until a group has a resource.
func (a apiServer) offers(t *testing.T, group, resource string) {
	t.Helper()
	eventually(t, "the API server offers "+resource, func() error {
		var list struct{ Resources []struct{ Name string } }
		if err := a.get(group, &list); err != nil {
			return err
		}
		if !slices.ContainsFunc(list.Resources, func(r struct{ Name string }) bool { return r.Name == resource }) {
			return fmt.Errorf("%s has %v", group, list.Resources)
		}
		return nil
	})
}

// open starts the API server, and creates the pool and its pods.
func (c *picked) open(definitions string) {
	t := c.t
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "log"), 0o755); err != nil {
		t.Fatal(err)
	}
	control := &cluster{t: t, dir: dir}
	control.startAPI()
	c.api = control.api
	c.api.define(t, definitions)
	c.addPods()
	pool := block(t, autoscaling, "apiVersion: inference.networking.k8s.io/v1\n")
	eventually(t, "the API server serves pools", func() error {
		return c.api.do(http.MethodPost, "/apis/inference.networking.k8s.io/v1/namespaces/serving/inferencepools", "application/yaml", pool, nil)
	})
	t.Setenv("KUBECONFIG", c.api.kubeconfig(dir, asAdmin))
}

// addPods creates the records of the pods, which nobody starts.
func (c *picked) addPods() {
	c.api.create("/api/v1/namespaces", "{apiVersion: v1, kind: Namespace, metadata: {name: serving}}")
	const pods = "/api/v1/namespaces/serving/pods"
	for _, p := range c.pods {
		c.api.create(pods, fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s, labels: {app: llama}}, spec: {containers: [{name: engine, image: none}]}}", p.name))
		c.api.patch(pods+"/"+p.name+"/status", fmt.Sprintf(`{"status": {"phase": "Running", "podIP": %[1]q, "podIPs": [{"ip": %[1]q}], "conditions": [{"type": "Ready", "status": "True"}]}}`, p.ip))
	}
}

// pick starts the picker, which asks pods at a port.
func (c *picked) pick(port string, args ...string) {
	c.t.Helper()
	c.at.grpc, c.at.metrics = freeAddress(c.t), freeAddress(c.t)
	number := func(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }
	command := strings.Fields(block(c.t, autoscaling, "epp "))
	command[len(command)-1] = port
	c.picker = start(c.t, command[0], append(append(command[1:], args...), "--grpc-port", number(c.at.grpc), "--grpc-health-port", number(freeAddress(c.t)),
		"--metrics-port", number(c.at.metrics), "--metrics-endpoint-auth=false", "--secure-serving=false", "--tracing=false")...)
}

// says returns the picker's own metrics of the pool.
func (c *picked) says() (map[string]float64, error) {
	page, err := get(c.t, "http://"+c.at.metrics+"/metrics")
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for _, m := range regexp.MustCompile(`(?m)^inference_pool_(average_\w+|per_pod_queue_size|ready_pods)\{(?:model_server_pod="([^"]*)",)?name="llama"\} (\S+)$`).FindAllStringSubmatch(page, -1) {
		v, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			return nil, err
		}
		out[strings.TrimSpace(m[1]+" "+m[2])] = math.Round(v*1e6) / 1e6
	}
	return out, nil
}

// expect waits until the picker has the queues and caches that the engines have.
func (c *picked) expect() {
	c.t.Helper()
	want := map[string]float64{"ready_pods": float64(len(c.pods)), "average_queue_size": 0, "average_running_requests": 0, "average_kv_cache_utilization": 0}
	n := float64(len(c.pods))
	for _, p := range c.pods {
		want["per_pod_queue_size "+p.name+"-rank-0"] = float64(p.waiting)
		want["average_queue_size"] += float64(p.waiting) / n
		if p.waiting > 0 {
			want["average_running_requests"] += 1 / n
			want["average_kv_cache_utilization"] += cached / n
		}
	}
	eventually(c.t, "the picker knows the pods", func() error {
		got, err := c.says()
		if diff := cmp.Diff(want, got); err == nil && diff != "" {
			err = fmt.Errorf("its metrics (-want +got):\n%s", diff)
		}
		return err
	})
}

// chooses sends requests through the picker and fails unless all are for one pod.
func (c *picked) chooses(p *enginePod) {
	c.t.Helper()
	const requests = 20
	got := map[string]int{}
	for i := range requests {
		destination, err := destination(c.t, c.at.grpc, p.model, fmt.Sprintf("request %d", i))
		if err != nil {
			c.t.Fatal(err)
		}
		got[destination]++
	}
	if diff := cmp.Diff(map[string]int{net.JoinHostPort(p.ip, "8000"): requests}, got); diff != "" {
		c.t.Errorf("the pods that the picker chose (-want +got):\n%s", diff)
	}
}

// sidecar starts the agent of a pod as documented, but for addresses. The flag of one of them is where the picker asks.
func (p *enginePod) sidecar(binary, flag, address string, more ...string) {
	p.t.Helper()
	var documented []struct{ Args []string }
	if err := yaml.Unmarshal([]byte(block(p.t, autoscaling, "# of each pod of the pool\n")), &documented); err != nil || len(documented) != 1 {
		p.t.Fatalf("the documented container is %v, %v", documented, err)
	}
	there := map[string]string{"--inference-target": p.url("/metrics"), "--listen": "127.0.0.1:0", "--inference-listen": "127.0.0.1:0"}
	there[flag] = address
	args := documented[0].Args
	for i, arg := range args {
		name, _, _ := strings.Cut(arg, "=")
		if value, ok := there[name]; ok {
			args[i] = name + "=" + value
			delete(there, name)
		}
	}
	if len(there) > 0 {
		p.t.Fatalf("the documented container lacks %v", there)
	}
	start(p.t, binary, append(args, more...)...)
	eventually(p.t, "the agent of "+p.name+" has read its engine", func() error {
		page, err := get(p.t, "http://"+address+"/metrics")
		if err == nil && !strings.Contains(page, "requests_waiting") && !strings.Contains(page, `inference_request_state="waiting"`) {
			err = fmt.Errorf("it has no queue:\n%s", page)
		}
		return err
	})
}

// Catches names, numbers or an address that the endpoint picker of the Gateway API inference extension does not
// understand: it would spread requests evenly, whatever the engines say.
func TestEndpointPicker(t *testing.T) {
	definitions := requirePicker(t)
	binary := gpumeter(t)
	f := func(name, flag string, args func(t *testing.T) []string) {
		t.Run(name, func(t *testing.T) {
			c := &picked{t: t, pods: []*enginePod{busyPod(t, 1), busyPod(t, 2)}}
			_, port, _ := net.SplitHostPort(freeAddress(t))
			for _, p := range c.pods {
				p.sidecar(binary, flag, net.JoinHostPort(p.ip, port))
			}
			c.open(definitions)
			c.pick(port, args(t)...)
			c.expect()

			c.pods[0].send(3)
			c.expect()
			c.chooses(c.pods[1])
			c.pods[1].send(7)
			c.expect()
			c.chooses(c.pods[0])
		})
	}
	f("its own names", "--inference-listen", func(*testing.T) []string { return nil })
	f("the names of the vocabulary", "--listen", func(t *testing.T) []string {
		file := filepath.Join(t.TempDir(), "picker.yaml")
		write(t, file, block(t, autoscaling, "# epp --config-file"))
		return []string{"--config-file", file}
	})
}
