//go:build e2e

package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
)

// The deployments of TestKubeInference: replicas of one engine, and an engine behind data parallelism.
const (
	chat, wide           = "chat", "wide"
	chatModel, wideModel = "org/chat", "org/wide"
)

// inferenceTest is a cluster whose engines are found by an agent without any configuration of engines.
type inferenceTest struct {
	*cluster
	*gpus
	hub     server
	agent   func() *process // starts an agent, or starts it again
	clients *clients
	all     []*podEngine // also those that are gone
	before  usage        // what they counted before the agent ran
}

// Catches series of engines in pods without the pod's owner or with another's, sums over replicas and ranks that
// are not what clients received, and tokens that a rolling update or a restart of the agent loses or counts twice.
func TestKubeInference(t *testing.T) {
	t.Parallel()
	const simulator = "llmdsim"
	path, err := exec.LookPath(simulator)
	if err != nil {
		skip(t, simulator, err)
	}
	host := nvmltest.New(t, gpuScript())
	devices := &devicePlugin{resource: wholeGPU}
	for _, i := range []int{0, 1, 2, 5} { // as many as the pods request: a new pod gets the GPU of an old one
		devices.ids = append(devices.ids, gpuUUID(i))
	}
	k := &inferenceTest{cluster: newCluster(t, devices), gpus: &gpus{host: host, on: map[string][]gpuProcess{}}, clients: &clients{t: t}}
	k.load(makeImage(t, enginesImage, program(t, "engine"), path, k.worker))
	k.api.create("/api/v1/namespaces", "{apiVersion: v1, kind: Namespace, metadata: {name: "+red+"}}")
	k.api.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", clusterRole(t))
	k.bind(asAgent)
	k.deployEngines(red, chat, 2, 1, "/"+simulator, "--model", chatModel, "--force-dummy-tokenizer", "--mode", "echo", "--port", enginePort,
		"--prefill-overhead", "2ms", "--inter-token-latency", "4ms", "--seed", "1")
	k.deployEngines(red, wide, 1, 2, "/engine", "serve", wideModel, enginePort, "2")
	k.serve(k.engines(red, chat, chatModel, 2)...)
	k.serve(k.engines(red, wide, wideModel, 1)...)
	for i := range 12 { // what engines counted before the agent started is part of their totals
		k.clients.send(1 + i)
	}
	k.counted(k.all...)
	for _, e := range k.all {
		k.before.add(e.used)
	}

	k.watch()
	began := time.Now()
	agent := k.agent()
	k.read(began, k.all...)
	k.check(k.all...)
	end := k.clients.begin()
	k.api.patch("/apis/apps/v1/namespaces/"+red+"/deployments/"+chat, `{"spec": {"template": {"metadata": {"annotations": {"version": "2"}}}}}`)
	old := slices.Clone(k.all[:2])
	first := k.deleted(old...)
	k.clients.drain(first)
	k.counted(first)
	k.read(time.Now(), first)
	k.checkPod(first)
	// The agent starts again while the others are asked, and the first pod still runs.
	if code := agent.stop(t); code != 0 {
		t.Errorf("the agent exited with %d", code)
	}
	again := time.Now()
	k.agent()
	k.read(again, k.all...)
	k.checkPod(first)
	k.end(first)
	k.serve(k.engines(red, chat, chatModel, 1, old...)...)

	second := k.deleted(slices.DeleteFunc(slices.Clone(old), func(e *podEngine) bool { return e == first })...)
	k.clients.drain(second)
	k.counted(second)
	k.read(time.Now(), second)
	k.checkPod(second)
	k.end(second)
	k.serve(k.engines(red, chat, chatModel, 1, k.all...)...)

	live := slices.DeleteFunc(slices.Clone(k.all), func(e *podEngine) bool { return slices.Contains(old, e) })
	k.read(again, live...) // all are found
	end()
	for _, err := range k.clients.errs {
		t.Error(err)
	}
	k.counted(live...)
	k.read(time.Now(), live...)
	k.ended(old...)
	k.check(live...)
	k.checkSums()
}

// serve puts engines on their GPUs and sends them requests.
func (k *inferenceTest) serve(list ...*podEngine) {
	k.t.Helper()
	for _, e := range list {
		for i, pid := range e.ranks {
			process := e.container
			process.pid, process.devices = pid, e.devices[i:i+1]
			k.use(k.t, fmt.Sprintf("%s/%d", e.pod, i), process)
		}
		k.all = append(k.all, e)
		k.clients.add(e)
	}
}

// end lets a pod that is being deleted end, whose GPUs are then free.
func (k *inferenceTest) end(e *podEngine) {
	k.t.Helper()
	k.release(e)
	for i := range e.ranks {
		k.gpus.end(k.t, fmt.Sprintf("%s/%d", e.pod, i))
	}
}

// watch starts a hub, and says how the agent is started.
func (k *inferenceTest) watch() {
	binary, state := gpumeter(k.t), k.t.TempDir()
	address := start(k.t, binary, "hub", "--data-dir", filepath.Join(k.t.TempDir(), "hub"), "--listen", "127.0.0.1:0", "--listen-grpc", "").find(k.t, hubAddress)
	k.hub = server{k.t, address}
	kubeconfig := k.api.kubeconfig(k.t.TempDir(), asAgent)
	k.agent = func() *process {
		return start(k.t, binary, "agent", "--nvidia-library", k.host.Library, "--root", k.root, "--kubeconfig", kubeconfig, "--interval", "1s",
			"--slow-interval", "1s", "--listen", "127.0.0.1:0", "--socket", "", "--state-dir", state, "--no-standby", "--no-cloud",
			"--node-name", nodeName, "--host-name", "host-a", "--otlp-endpoint", address)
	}
}

// counters are those that a client can check, with the names that the engine gives them.
var counters = []struct {
	name, page string
	of         func(u usage) int
}{
	{"inference_token_input_total", "vllm:prompt_tokens_total", func(u usage) int { return u.in }},
	{"inference_token_output_total", "vllm:generation_tokens_total", func(u usage) int { return u.out }},
	{"inference_request_finished_total", "vllm:request_success_total", func(u usage) int { return u.requests }},
	{"gen_ai_server_time_to_first_token_seconds_count", "vllm:time_to_first_token_seconds_count", func(u usage) int { return u.requests }},
}

// counted waits until engines that get no requests have counted all that they had.
func (k *inferenceTest) counted(list ...*podEngine) {
	k.t.Helper()
	for _, e := range list {
		eventually(k.t, e.pod+" has counted all requests", func() error {
			page, err := e.page()
			if err != nil {
				return err
			}
			for _, c := range counters {
				sum := 0.0
				for _, m := range regexp.MustCompile(`(?m)^`+c.page+`\{[^}]*\} (\S+)$`).FindAllStringSubmatch(page, -1) {
					v, err := strconv.ParseFloat(m[1], 64)
					if err != nil {
						return err
					}
					sum += v
				}
				if want := c.of(e.used); sum != float64(want) {
					return fmt.Errorf("%s is %v, want %d", c.page, sum, want)
				}
			}
			return nil
		})
	}
}

// engineID is what the agent calls the engine, also if it does not say whose it is.
func (e *podEngine) engineID() string { return fmt.Sprintf("pod/%s/%s:%s", e.uid, e.name, enginePort) }

// of returns a selector of a metric of an engine.
func (e *podEngine) of(metric string) string {
	return fmt.Sprintf("%s{inference_engine_id=%q}", metric, e.engineID())
}

// read waits until the hub has a reading of each engine that began after a time.
func (k *inferenceTest) read(after time.Time, list ...*podEngine) {
	k.t.Helper()
	for _, e := range list {
		up := e.of("inference_scrape_up")
		k.hub.wait(fmt.Sprintf("timestamp(%s) > %s and %s == 1", up, seconds(after), up))
	}
}

// ended waits until the series of engines have ended: an agent misses an engine when it reads it the next time.
func (k *inferenceTest) ended(list ...*podEngine) {
	k.t.Helper()
	for _, e := range list {
		eventually(k.t, "the series of "+e.pod+" end", func() error {
			left, err := k.hub.query(fmt.Sprintf(`count by (__name__) ({__name__=~"(inference|gen_ai)_.+", inference_engine_id=%q})`, e.engineID()))
			if err == nil && len(left) > 0 {
				err = fmt.Errorf("the hub still has %v", left)
			}
			return err
		})
	}
}

// checkPod compares what the hub has of an engine with what clients received from it.
func (k *inferenceTest) checkPod(e *podEngine) {
	k.t.Helper()
	for _, c := range counters {
		if got, want := k.hub.number("sum("+e.of(c.name)+")"), strconv.Itoa(c.of(e.used)); got != want {
			k.t.Errorf("%s of %s is %s, but clients received %s", c.name, e.pod, got, want)
		}
	}
}

// identity are the labels of all series of an engine.
func (e *podEngine) identity() map[string]string {
	labels := e.container.labels()
	labels["inference_engine_id"] = e.engineID()
	labels["server_address"], labels["server_port"] = "127.0.0.1", enginePort
	labels["host_name"], labels["k8s_node_name"], labels["job"], labels["instance"] = "host-a", nodeName, "gpumeter", "host-a"
	return labels
}

// check compares what the hub has now with the engines that run: their series, their owners, their devices, and
// the sums of what clients received.
func (k *inferenceTest) check(live ...*podEngine) {
	k.t.Helper()
	owners, devices := answer{}, answer{}
	models, apps := map[string]*usage{chatModel: {}, wideModel: {}}, map[string]*usage{chat: {}, wide: {}}
	for _, e := range live {
		owners.add(e.identity(), 1)
		models[e.model].add(e.used)
		apps[e.owner].add(e.used)
		for i := range e.devices {
			labels := e.identity()
			p := k.on[fmt.Sprintf("%s/%d", e.pod, i)][0]
			labels["gpu_uuid"], labels["gpu_index"], labels["gpu_model"], labels["gpu_vendor"] = gpuUUID(p.gpu), strconv.Itoa(p.gpu), "NVIDIA H200", "nvidia"
			labels["gen_ai_provider_name"], labels["gen_ai_request_model"] = "vllm", e.model
			devices.add(labels, 1)
		}
	}
	by := []string{"k8s_deployment_name"}
	for label := range live[0].identity() {
		if label != by[0] {
			by = append(by, label)
		}
	}
	group := fmt.Sprintf(`group by (%s) ({__name__=~"(inference|gen_ai)_.+"})`, strings.Join(by, ", "))
	if diff := cmp.Diff(owners, k.values(group)); diff != "" {
		k.t.Errorf("the owners of series (-want +got):\n%s", diff)
	}
	// Devices have the identity that their own metrics have.
	if diff := cmp.Diff(devices, k.values("inference_engine_device * on (host_name, gpu_uuid) group_left () gpu_up")); diff != "" {
		k.t.Errorf("the devices of engines (-want +got):\n%s", diff)
	}
	// What is no sum has its rank.
	ranks := answer{}
	for _, rank := range []string{"0", "1"} {
		ranks.add(map[string]string{"k8s_deployment_name": wide, "inference_engine_rank": rank}, 1)
	}
	if diff := cmp.Diff(ranks, k.values(`group by (k8s_deployment_name, inference_engine_rank) (inference_request_count{inference_engine_rank!=""})`)); diff != "" {
		k.t.Errorf("ranks of engines (-want +got):\n%s", diff)
	}
	for _, c := range counters {
		byModel, byApp := answer{}, answer{}
		for model, u := range models {
			byModel.add(map[string]string{"gen_ai_request_model": model}, float64(c.of(*u)))
		}
		for app, u := range apps {
			byApp.add(map[string]string{"k8s_deployment_name": app}, float64(c.of(*u)))
		}
		for label, want := range map[string]answer{"gen_ai_request_model": byModel, "k8s_deployment_name": byApp} {
			if diff := cmp.Diff(want, k.values(fmt.Sprintf("sum by (%s) (%s)", label, c.name))); diff != "" {
				k.t.Errorf("%s by %s (-clients +hub):\n%s", c.name, label, diff)
			}
		}
	}
}

// values returns the answer of the hub to a query.
func (k *inferenceTest) values(query string) answer {
	k.t.Helper()
	list, err := k.hub.query(query)
	if err != nil {
		k.t.Fatal(err)
	}
	got := answer{}
	for _, s := range list {
		v, err := strconv.ParseFloat(s.Value[1].(string), 64)
		if err != nil {
			k.t.Fatal(err)
		}
		got.add(s.Metric, v)
	}
	return got
}

// checkSums compares what counters grew by over the update with what clients received, and looks for a moment at
// which something counted twice.
func (k *inferenceTest) checkSums() {
	k.t.Helper()
	var total usage
	for _, e := range k.all {
		total.add(e.used)
		for _, c := range counters {
			if got, want := k.hub.number("sum(last_over_time("+e.of(c.name)+"[1h]))"), strconv.Itoa(c.of(e.used)); got != want {
				k.t.Errorf("%s of %s was %s at last, but clients received %s", c.name, e.pod, got, want)
			}
		}
	}
	for _, c := range counters {
		if got, want := k.hub.grown(c.name), c.of(total)-c.of(k.before); got != float64(want) {
			k.t.Errorf("%s grew by %v, but clients received %d", c.name, got, want)
		}
	}
	for most, want := range map[string]string{
		"count(inference_scrape_up)":                         "3",
		"max(count by (k8s_pod_uid) (inference_scrape_up))":  "1",
		"max(count by (gpu_uuid) (inference_engine_device))": "1", // the new pod has the GPU of the old one
	} {
		if got := k.hub.number(fmt.Sprintf("max_over_time((%s)[10m:1s])", most)); got != want {
			k.t.Errorf("%s was %s, want %s at most", most, got, want)
		}
	}
	k.t.Logf("clients received %+v, of which %+v before the agent ran", total, k.before)
}
