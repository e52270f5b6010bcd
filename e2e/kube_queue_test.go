//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// queueTest is a control plane without kubelets: nodes are objects that we write, and pods stay where the real
// scheduler puts them.
type queueTest struct {
	*cluster
	binary string
}

// TestKubeQueue compares what the elected agent says about pods that wait with the objects and the messages of the real
// API server and scheduler.
func TestKubeQueue(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"etcd", "kube-apiserver", "kube-scheduler"} {
		if _, err := exec.LookPath(name); err != nil {
			skip(t, "kubelet", fmt.Errorf("tools/deps.sh kubernetes etcd did not install it: %w", err))
		}
	}
	q := &queueTest{cluster: &cluster{t: t, dir: t.TempDir()}, binary: gpumeter(t)}
	if err := os.Mkdir(filepath.Join(q.dir, "log"), 0o700); err != nil {
		t.Fatal(err)
	}
	q.startAPI()
	q.daemon("kube-scheduler", "--kubeconfig="+q.api.kubeconfig(q.dir, asAdmin), "--leader-elect=false", "--secure-port=0")
	for _, namespace := range []string{red, blue, "gpumeter"} {
		q.api.create("/api/v1/namespaces", "{apiVersion: v1, kind: Namespace, metadata: {name: "+namespace+"}}")
	}
	q.node("gn1", "64", "")
	q.node("gn2", "64", "{taints: [{key: team, value: a, effect: NoSchedule}]}")
	q.node("gn3", "4", "")
	q.node("gn4", "64", "{unschedulable: true}")
	q.permit(asAgent)

	// Without a pod that was placed before the agents start, nothing shows that it does not count.
	q.pod(red, "before", 1, "1", "")
	eventually(t, "a pod is placed", func() error { return q.placed(red, "before") })

	first := q.agent("first")
	q.shows(first, map[string]float64{`scheduler_gpu_allocated{queue="team-red",type="H100"}`: 1})
	second := q.agent("second")

	q.pod(red, "train", 5, "8", "nodeSelector: {kubernetes.io/hostname: gn1}")
	q.pod(red, "large", 8, "8", "nodeSelector: {pool: open}")
	for i := range 4 {
		q.pod(blue, fmt.Sprint("gang-", i), 8, "8", "nodeSelector: {pool: open}")
	}
	q.pod(blue, "tainted", 2, "1", "nodeSelector: {kubernetes.io/hostname: gn2}")
	q.pod(blue, "gated", 2, "1", "schedulingGates: [{name: example.com/admission}]")
	q.pod(blue, "cordoned", 1, "1", "nodeSelector: {kubernetes.io/hostname: gn4}")
	q.pod(blue, "nowhere", 1, "1", "nodeSelector: {kubernetes.io/hostname: gn9}")
	want := map[string]float64{
		`scheduler_up{}`: 1,
		`scheduler_gpu_allocated{queue="team-red",type="H100"}`:                     6,
		`scheduler_gpu_pending{queue="team-red",reason="cpu",type="H100"}`:          8,
		`scheduler_gpu_pending{queue="team-blue",reason="cpu",type="H100"}`:         32,
		`scheduler_gpu_pending{queue="team-blue",reason="taint",type="H100"}`:       2,
		`scheduler_gpu_pending{queue="team-blue",reason="held",type="H100"}`:        2,
		`scheduler_gpu_pending{queue="team-blue",reason="unavailable",type="H100"}`: 1,
		`scheduler_gpu_pending{queue="team-blue",reason="affinity"}`:                1, // no label without a value
		`scheduler_gpu_count{state="allocated",type="H100"}`:                        6,
		`scheduler_gpu_count{state="free",type="H100"}`:                             18,
		`scheduler_gpu_count{state="drained",type="H100"}`:                          8,
		`scheduler_gpu_count{state="down",type="H100"}`:                             0,
		`scheduler_gpu_stranded{cause="taint",type="H100"}`:                         8,
		`scheduler_gpu_stranded{cause="cordoned",type="H100"}`:                      8,
		`scheduler_job_wait_duration_seconds_count{queue="team-red"}`:               1, // only that of train
	}
	q.shows(first, want)
	q.compare(first)
	q.why()
	q.fits()

	if text, err := get(t, "http://"+second.address+"/metrics"); err != nil || strings.Contains(text, "scheduler_") {
		t.Errorf("the other agent reports as well: %v\n%s", err, text)
	}
	if code := first.stop(t); code != 0 {
		t.Errorf("the elected agent ended with %d", code)
	}
	delete(want, `scheduler_job_wait_duration_seconds_count{queue="team-red"}`) // the first has counted it
	q.shows(second, want)
	q.compare(second)
	if n, ok := q.page(second)[`scheduler_job_wait_duration_seconds_count{queue="team-red"}`]; ok {
		t.Errorf("the other counts %v pods again", n)
	}
	q.pod(red, "after", 1, "1", "nodeSelector: {kubernetes.io/hostname: gn1}")
	q.shows(second, map[string]float64{`scheduler_job_wait_duration_seconds_count{queue="team-red"}`: 1})
	q.waited(second, "after")
}

// node creates a node with 8 GPUs that is ready. spec may be empty.
func (q *queueTest) node(name, cpu, spec string) {
	q.t.Helper()
	pool := "open"
	if spec != "" {
		pool = "closed"
	}
	q.api.create("/api/v1/nodes", fmt.Sprintf("{apiVersion: v1, kind: Node, metadata: {name: %[1]s, labels: {kubernetes.io/hostname: %[1]s, pool: %[2]s, nvidia.com/gpu.product: H100}}, spec: %[3]s}",
		name, pool, map[bool]string{true: "{}", false: spec}[spec == ""]))
	capacity := fmt.Sprintf(`{"cpu": %q, "memory": "500Gi", "nvidia.com/gpu": "8", "pods": "110"}`, cpu)
	q.api.patch("/api/v1/nodes/"+name+"/status", fmt.Sprintf(`{"status": {"capacity": %[1]s, "allocatable": %[1]s, "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": %[2]q, "lastTransitionTime": %[2]q, "reason": "KubeletReady", "message": ""}]}}`,
		capacity, time.Now().UTC().Format(time.RFC3339)))
	// The API server taints new nodes until a controller removes that.
	q.api.patch("/api/v1/nodes/"+name, fmt.Sprintf(`{"spec": {"taints": %s}}`, map[bool]string{true: `[{"key": "team", "value": "a", "effect": "NoSchedule"}]`, false: "null"}[name == "gn2"]))
}

// pod creates a pod. more is more of its spec.
func (q *queueTest) pod(namespace, name string, gpus int, cpu, more string) {
	q.t.Helper()
	if more != "" {
		more = ", " + more
	}
	q.api.create("/api/v1/namespaces/"+namespace+"/pods", fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {containers: [{name: main, image: none, resources: {limits: {nvidia.com/gpu: "%d"}, requests: {cpu: "%s", memory: 8Gi}}}]%s}}`,
		name, gpus, cpu, more))
}

func (q *queueTest) placed(namespace, name string) error {
	var p struct{ Spec struct{ NodeName string } }
	if err := q.api.get("/api/v1/namespaces/"+namespace+"/pods/"+name, &p); err != nil {
		return err
	}
	if p.Spec.NodeName == "" {
		return errors.New("not yet")
	}
	return nil
}

// permit gives a user the documented permissions, and those of gpumeter why.
func (q *queueTest) permit(user string) {
	q.t.Helper()
	text, err := os.ReadFile("../docs/schedulers.md")
	if err != nil {
		q.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```yaml\n")
	roles, _, ok := strings.Cut(rest, "```")
	cluster, role, two := strings.Cut(roles, "---\n")
	if !ok || !two {
		q.t.Fatal("docs/schedulers.md has no roles")
	}
	const rbac = "/apis/rbac.authorization.k8s.io/v1/"
	q.api.create(rbac+"clusterroles", cluster)
	q.api.create(rbac+"namespaces/gpumeter/roles", role)
	bind := func(path, kind, role string) {
		q.api.create(rbac+path, fmt.Sprintf(`{metadata: {name: %[1]s-%[3]s}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: %[2]s, name: %[3]s},
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %[1]s}]}`, user, kind, role))
	}
	bind("clusterrolebindings", "ClusterRole", "gpumeter-scheduler")
	bind("namespaces/gpumeter/rolebindings", "Role", "gpumeter-scheduler")
}

// queueAgent is an agent and its page.
type queueAgent struct {
	*process
	address string
}

func (q *queueTest) agent(name string) queueAgent {
	q.t.Helper()
	dir := q.t.TempDir()
	config := filepath.Join(dir, name+".yaml")
	write(q.t, config, fmt.Sprintf(`
receivers: {scheduler: {scheduler: kubernetes, kubernetes: {interval: 1s, cluster: e2e, lease: gpumeter/gpumeter-scheduler, kubeconfig: %q}}}
exporters: {page: {endpoint: "127.0.0.1:0"}}
service: {pipelines: {metrics: {receivers: [scheduler], exporters: [page]}}}
`, q.api.kubeconfig(dir, asAgent)))
	p := start(q.t, q.binary, "agent", "--config", config, "--socket", "")
	p.name = name
	return queueAgent{p, p.find(q.t, pageAddress)}
}

// page returns the scheduler's series of an agent without the labels that all have, and with short ones.
func (q *queueTest) page(a queueAgent) map[string]float64 {
	q.t.Helper()
	text, err := get(q.t, "http://"+a.address+"/metrics")
	if err != nil {
		q.t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		q.t.Fatal(err)
	}
	short := map[string]string{
		"scheduler_queue": "queue", "scheduler_job_reason": "reason", "scheduler_gpu_type": "type", "scheduler_gpu_state": "state",
		"scheduler_gpu_stranded_cause": "cause", "scheduler_gpu_request": "request", "scheduler_job_state": "state",
	}
	out := map[string]float64{}
	for name, f := range families {
		if !strings.HasPrefix(name, "scheduler_") {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				if s := short[l.GetName()]; s != "" {
					labels = append(labels, fmt.Sprintf("%s=%q", s, l.GetValue()))
				}
			}
			slices.Sort(labels)
			set := "{" + strings.Join(labels, ",") + "}"
			if h := m.GetHistogram(); h != nil {
				out[name+"_count"+set], out[name+"_sum"+set] = float64(h.GetSampleCount()), h.GetSampleSum()
				continue
			}
			out[name+set] = m.GetGauge().GetValue()
		}
	}
	return out
}

// shows waits until the page of an agent has these values.
func (q *queueTest) shows(a queueAgent, want map[string]float64) {
	q.t.Helper()
	eventually(q.t, a.name+" shows what waits", func() error {
		page, got := q.page(a), map[string]float64{}
		for name := range want {
			if v, ok := page[name]; ok {
				got[name] = v
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("(-want +got):\n%s", diff)
		}
		return nil
	})
}

// apiPod is a pod as the API server has it.
type apiPod struct {
	Metadata struct {
		Namespace, Name   string
		CreationTimestamp time.Time
	}
	Spec struct {
		NodeName   string
		Containers []struct {
			Resources struct{ Requests map[string]string }
		}
	}
	Status struct {
		Conditions []struct {
			Type, Status, Message string
			LastTransitionTime    time.Time
		}
	}
}

func (q *queueTest) apiPods() []apiPod {
	q.t.Helper()
	var list struct{ Items []apiPod }
	if err := q.api.get("/api/v1/pods", &list); err != nil {
		q.t.Fatal(err)
	}
	return list.Items
}

// compare fails the test unless the sums of the agent are those of the API's objects.
func (q *queueTest) compare(a queueAgent) {
	q.t.Helper()
	want := map[string]float64{}
	for _, p := range q.apiPods() {
		gpus, err := strconv.ParseFloat(p.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"], 64)
		if err != nil {
			q.t.Fatal(err)
		}
		kind := "scheduler_gpu_pending"
		if p.Spec.NodeName != "" {
			kind = "scheduler_gpu_allocated"
		}
		want[kind+" "+p.Metadata.Namespace] += gpus
		want["scheduler_job_count "+p.Metadata.Namespace]++
	}
	got := map[string]float64{}
	for series, v := range q.page(a) {
		name, labels, _ := strings.Cut(series, "{")
		_, queue, _ := strings.Cut(labels, `queue="`)
		queue, _, _ = strings.Cut(queue, `"`)
		if slices.Contains([]string{"scheduler_gpu_pending", "scheduler_gpu_allocated", "scheduler_job_count"}, name) {
			got[name+" "+queue] += v
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		q.t.Errorf("sums of %s (-API +page):\n%s", a.name, diff)
	}
}

// waited fails the test unless the histogram of an agent has the wait of one pod, as its condition says.
func (q *queueTest) waited(a queueAgent, name string) {
	q.t.Helper()
	for _, p := range q.apiPods() {
		for _, c := range p.Status.Conditions {
			if p.Metadata.Name != name || c.Type != "PodScheduled" {
				continue
			}
			want := c.LastTransitionTime.Sub(p.Metadata.CreationTimestamp).Seconds()
			if got := q.page(a)[`scheduler_job_wait_duration_seconds_sum{queue="team-red"}`]; math.Abs(got-want) > 1e-9 {
				q.t.Errorf("%s waited %v s, %s says %v s", name, want, a.name, got)
			}
			return
		}
	}
	q.t.Errorf("%s was not scheduled", name)
}

// why compares what gpumeter why says with the scheduler's own messages.
func (q *queueTest) why() {
	q.t.Helper()
	kubeconfig := q.api.kubeconfig(q.dir, asAdmin)
	first := map[string]string{
		"large":    "too little CPU.",
		"tainted":  "it does not tolerate the taints of the nodes that have them.",
		"gated":    "its scheduling gates are closed.",
		"cordoned": "the nodes with enough of them free are cordoned or not ready.",
		"nowhere":  "its selector, affinity or spread excludes the nodes that have them.",
	}
	for _, p := range q.apiPods() {
		end := first[p.Metadata.Name]
		if end == "" {
			continue
		}
		delete(first, p.Metadata.Name)
		out := command(q.t, ".", q.binary, "why", p.Metadata.Namespace+"/"+p.Metadata.Name, "--kubeconfig", kubeconfig)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if len(lines) != 3 || !strings.HasSuffix(lines[0], end) || !strings.HasPrefix(lines[1], "26 of 32 nvidia.com/gpu are free: ") {
			q.t.Errorf("%s: want three lines, the first with %q:\n%s", p.Metadata.Name, end, out)
		}
		for _, c := range p.Status.Conditions {
			// The causes of the message, which is 0/4 nodes are available: 1 Insufficient cpu, 2 node(s) ... . preemption: ...
			_, text, ok := strings.Cut(c.Message, "available: ")
			if !ok {
				continue
			}
			text, _, _ = strings.Cut(text, ". ")
			for cause := range strings.SplitSeq(text, ", ") {
				n, words, _ := strings.Cut(cause, " ")
				if !strings.Contains(lines[2], n+" node") || !strings.Contains(lines[2], strings.TrimSuffix(words, ".")) {
					q.t.Errorf("%s: the scheduler says %q, we say\n%s", p.Metadata.Name, c.Message, lines[2])
				}
			}
		}
	}
	if len(first) > 0 {
		q.t.Errorf("no such pods: %v", slices.Sorted(maps.Keys(first)))
	}
	if out, err := tryCommand(q.t, ".", q.binary, "why", red+"/large", "--kubeconfig", q.api.kubeconfig(q.dir, asNobody)); err == nil || !strings.Contains(out, "cannot get the pod") {
		q.t.Errorf("as nobody: %v\n%s", err, out)
	}
}

// fits checks the advice in the second line by hand: a pod that asks for what gn3 has left is placed there.
func (q *queueTest) fits() {
	q.t.Helper()
	q.pod(red, "small", 8, "4", "nodeSelector: {pool: open}")
	eventually(q.t, "a pod that asks for the CPUs that are free is placed", func() error { return q.placed(red, "small") })
	q.api.remove("/api/v1/namespaces/" + red + "/pods/small?gracePeriodSeconds=0")
}
