//go:build e2e

package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/gpumeter/gpumeter/internal/workload/kubeapi"
)

const rayAPI = "/apis/ray.io/v1"

type rayStatus struct {
	State                                      string
	DesiredGPU                                 string
	DesiredWorkerReplicas, ReadyWorkerReplicas int
}

// Catches a RayCluster that is taken for a group where its pods are placed one by one, the PodGroup that KubeRay makes for Volcano without the
// members that it needs, and one that hides the RayCluster from the owners.
func TestKubeRay(t *testing.T) {
	t.Parallel()
	path, err := exec.LookPath("kuberay")
	if err != nil {
		skip(t, "kuberay", fmt.Errorf("tools/deps.sh kuberay did not build it: %w", err))
	}
	volcano, err := exec.LookPath("volcano-scheduler")
	if err != nil {
		skip(t, "volcano", fmt.Errorf("tools/deps.sh volcano did not build it: %w", err))
	}
	q := newSetTest(t)
	nodes := []string{"gn1", "gn2"}
	for _, node := range nodes {
		q.node(node, "64", "")
	}
	q.pod(blue, "before", 4, "1", "")
	q.api.define(t, folderOf(t, path))
	q.volcano(folderOf(t, volcano))
	a := q.agent("agent")

	operator := q.kubeRay()
	plain := q.rayCluster(red, "plain", 2, 4)
	q.shows(a, map[string]float64{`scheduler_gpu_allocated{queue="team-red",type="H100"}`: 8})
	statusOf(q, plain, rayStatus{DesiredGPU: "8", DesiredWorkerReplicas: 2})
	q.run("plain-")
	statusOf(q, plain, rayStatus{State: "ready", DesiredGPU: "8", DesiredWorkerReplicas: 2, ReadyWorkerReplicas: 2})
	q.shows(a, map[string]float64{`scheduler_job_count{queue="team-red",state="running"}`: 2})
	for series := range q.page(a) {
		if strings.HasPrefix(series, "scheduler_group_") {
			t.Errorf("without a batch scheduler there is %s", series)
		}
	}
	operator.stop(t)

	q.kubeRay("--batch-scheduler=volcano")
	gang := q.rayCluster(red, "gang", 2, 4)
	q.shows(a, map[string]float64{
		`scheduler_gpu_pending{queue="team-red",reason="gang",type="H100"}`:                                8,
		`scheduler_group_count{queue="team-red",state="waiting",system="volcano"}`:                         1,
		`scheduler_group_member_count{member="waiting",queue="team-red",state="waiting",system="volcano"}`: 3,
	})
	statusOf(q, gang, rayStatus{DesiredGPU: "8", DesiredWorkerReplicas: 2})
	q.explains(red, "Its group ray-gang-pg (volcano) needs 3 pods: all exist, none has a place.")
	q.api.remove("/api/v1/namespaces/" + blue + "/pods/before?gracePeriodSeconds=0")
	q.shows(a, map[string]float64{
		`scheduler_group_count{queue="team-red",state="placed",system="volcano"}`:                        1,
		`scheduler_group_member_count{member="placed",queue="team-red",state="placed",system="volcano"}`: 3,
	})
	q.run("gang-")
	statusOf(q, gang, rayStatus{State: "ready", DesiredGPU: "8", DesiredWorkerReplicas: 2, ReadyWorkerReplicas: 2})
	q.shows(a, map[string]float64{
		`scheduler_group_count{queue="team-red",state="running",system="volcano"}`:                         1,
		`scheduler_group_member_count{member="running",queue="team-red",state="running",system="volcano"}`: 3,
	})
	q.owned(nodes, map[kubeapi.Owner]int{{Kind: "raycluster", Name: "plain"}: 3, {Kind: "raycluster", Name: "gang"}: 3})
	q.compare(a)
}

// kubeRay starts the operator.
func (q *queueTest) kubeRay(args ...string) *process {
	q.t.Helper()
	health := freeAddress(q.t)
	p := q.daemon("kuberay", append(args, "--kubeconfig="+q.api.kubeconfig(q.dir, asAdmin), "--metrics-addr=0", "--health-probe-bind-address="+health, "--enable-leader-election=false")...)
	p.ready(q.t, "http://"+health+"/readyz")
	return p
}

// rayCluster creates a RayCluster, a head without GPUs and workers with some, and returns its path.
func (q *queueTest) rayCluster(namespace, name string, workers, gpus int) string {
	q.t.Helper()
	template := func(limits string) string {
		return fmt.Sprintf(`{spec: {containers: [{name: ray, image: none, resources: {limits: {%s}, requests: {cpu: "1", memory: 8Gi}}}]}}`, limits)
	}
	path := rayAPI + "/namespaces/" + namespace + "/rayclusters"
	q.api.create(path, fmt.Sprintf(`{apiVersion: ray.io/v1, kind: RayCluster, metadata: {name: %s}, spec: {headGroupSpec: {rayStartParams: {}, template: %s},
workerGroupSpecs: [{groupName: workers, replicas: %[3]d, minReplicas: %[3]d, maxReplicas: %[3]d, rayStartParams: {}, template: %[4]s}]}}`, name, template(""), workers, template(fmt.Sprintf("nvidia.com/gpu: %d", gpus))))
	return path + "/" + name
}
