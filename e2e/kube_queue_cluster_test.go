//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// queueTest is a control plane without kubelets: nodes are objects that we write, and pods stay where the real
// scheduler puts them.
type queueTest struct {
	*cluster
	binary    string
	scheduler string // URL of the scheduler, without a path
}

// newQueueTest starts the API server and the scheduler, and gives the agents their permissions.
func newQueueTest(t *testing.T) *queueTest {
	t.Helper()
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
	kubeconfig, addr := q.api.kubeconfig(q.dir, asAdmin), freeAddress(t)
	_, port, _ := net.SplitHostPort(addr)
	q.scheduler = "https://" + addr
	q.daemon("kube-scheduler", "--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
		"--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port="+port, "--cert-dir="+filepath.Join(q.dir, "scheduler"))
	for _, namespace := range []string{red, blue, "gpumeter"} {
		q.api.create("/api/v1/namespaces", "{apiVersion: v1, kind: Namespace, metadata: {name: "+namespace+"}}")
	}
	q.permit(asAgent)
	return q
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
	q.api.patch("/api/v1/nodes/"+name, fmt.Sprintf(`{"spec": {"taints": %s}}`, map[bool]string{true: `[{"key": "team", "value": "a", "effect": "NoSchedule"}]`, false: "null"}[strings.Contains(spec, "taints")]))
}

// pod creates a pod. more is more of its spec.
func (q *queueTest) pod(namespace, name string, gpus int, cpu, more string) {
	q.t.Helper()
	q.podOf(namespace, "{name: "+name+"}", gpus, cpu, more)
}

// podOf is pod with more than a name in the metadata.
func (q *queueTest) podOf(namespace, metadata string, gpus int, cpu, more string) {
	q.t.Helper()
	if more != "" {
		more = ", " + more
	}
	q.api.create("/api/v1/namespaces/"+namespace+"/pods", fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: %s, spec: {containers: [{name: main, image: none, resources: {limits: {nvidia.com/gpu: "%d"}, requests: {cpu: "%s", memory: 8Gi}}}]%s}}`,
		metadata, gpus, cpu, more))
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

// buried ends the pods of a namespace that are being deleted, as their kubelets would.
func (q *queueTest) buried(namespace string) {
	q.t.Helper()
	path := "/api/v1/namespaces/" + namespace + "/pods"
	var list struct {
		Items []struct {
			Metadata struct{ Name, DeletionTimestamp string }
		}
	}
	if err := q.api.get(path, &list); err != nil {
		q.t.Fatal(err)
	}
	for _, p := range list.Items {
		if p.Metadata.DeletionTimestamp != "" {
			q.api.patch(path+"/"+p.Metadata.Name+"/status", `{"status": {"phase": "Failed"}}`)
			q.api.remove(path + "/" + p.Metadata.Name + "?gracePeriodSeconds=0")
		}
	}
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
	more, _, _ := strings.Cut(block(q.t, "../docs/schedulers.md", "- apiGroups: [discovery.k8s.io]"), "```")
	q.api.create(rbac+"clusterroles", "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: gpumeter-queueing}\nrules:\n"+more)
	bind("clusterrolebindings", "ClusterRole", "gpumeter-scheduler")
	bind("clusterrolebindings", "ClusterRole", "gpumeter-queueing")
	bind("namespaces/gpumeter/rolebindings", "Role", "gpumeter-scheduler")
}

// queueAgent is an agent and its page.
type queueAgent struct {
	*process
	address string
}

// agent starts an agent that also reads pages of queueing systems, each an entry of the configuration.
func (q *queueTest) agent(name string, pages ...string) queueAgent {
	q.t.Helper()
	dir := q.t.TempDir()
	config := filepath.Join(dir, name+".yaml")
	write(q.t, config, fmt.Sprintf(`
receivers: {scheduler: {scheduler: kubernetes, kubernetes: {interval: 1s, cluster: e2e, lease: gpumeter/gpumeter-scheduler, kubeconfig: %q}, queueing: {pages: [%s]}}}
exporters: {page: {endpoint: "127.0.0.1:0"}}
service: {pipelines: {metrics: {receivers: [scheduler], exporters: [page]}}}
`, q.api.kubeconfig(dir, asAgent), strings.Join(pages, ", ")))
	p := start(q.t, q.binary, "agent", "--config", config, "--socket", "")
	p.name = name
	return queueAgent{p, p.find(q.t, pageAddress)}
}

// page returns the scheduler's series of an agent without the labels that all have, and with short ones.
func (q *queueTest) page(a queueAgent) map[string]float64 {
	q.t.Helper()
	return q.pageOf(a, "kubernetes")
}

// pageOf returns those of one scheduler.
func (q *queueTest) pageOf(a queueAgent, system string) map[string]float64 {
	q.t.Helper()
	text, err := get(q.t, "http://"+a.address+"/metrics")
	if err != nil {
		q.t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") || strings.Contains(line, fmt.Sprintf("scheduler_type=%q", system)) {
			lines = append(lines, line)
		}
	}
	return samples(q.t, strings.Join(lines, ""), "scheduler_", map[string]string{
		"scheduler_queue": "queue", "scheduler_job_reason": "reason", "scheduler_gpu_type": "type", "scheduler_gpu_state": "state",
		"scheduler_gpu_stranded_cause": "cause", "scheduler_gpu_request": "request", "scheduler_job_state": "state", "scheduler_eviction_reason": "reason",
		"scheduler_claim_state": "state", "scheduler_claim_unit": "unit", "scheduler_group_state": "state", "scheduler_group_system": "system", "scheduler_member_state": "member",
	})
}

// schedulerPages are the pages of the scheduler, as agents are to read them.
func (q *queueTest) schedulerPages() (list []string) {
	token := filepath.Join(q.dir, "token")
	write(q.t, token, asAgent)
	for _, path := range []string{"/metrics", "/metrics/resources"} {
		list = append(list, fmt.Sprintf("{url: %q, ca_file: %q, token_file: %q}", q.scheduler+path, filepath.Join(q.dir, "scheduler", "kube-scheduler.crt"), token))
	}
	return list
}

// repeats waits until the page of an agent has these values of a queueing system.
func (q *queueTest) repeats(a queueAgent, system string, want map[string]float64) {
	q.t.Helper()
	eventually(q.t, a.name+" repeats what "+system+" says", func() error { return matches(q.pageOf(a, system), want) })
}

// samples returns the series of a page whose names have a prefix, with the labels in short, under the names there. Those that differ in other
// labels only are added up.
func samples(t *testing.T, text, prefix string, short map[string]string) map[string]float64 {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for name, f := range families {
		if !strings.HasPrefix(name, prefix) {
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
				out[name+"_count"+set] += float64(h.GetSampleCount())
				out[name+"_sum"+set] += h.GetSampleSum()
				continue
			}
			out[name+set] += m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetUntyped().GetValue() // one of them
		}
	}
	return out
}

// shows waits until the page of an agent has these values.
func (q *queueTest) shows(a queueAgent, want map[string]float64) {
	q.t.Helper()
	eventually(q.t, a.name+" shows what waits", func() error { return matches(q.page(a), want) })
}

// absent is the value of a series that must not exist.
const absent = -1

// matches returns an error unless a page has these values.
func matches(page, want map[string]float64) error {
	got := map[string]float64{}
	for name := range want {
		got[name] = absent
		if v, ok := page[name]; ok {
			got[name] = v
		}
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
		return fmt.Errorf("(-want +got):\n%s", diff)
	}
	return nil
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
		Phase      string
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
