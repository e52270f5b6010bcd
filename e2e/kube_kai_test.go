//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"os/exec"
	"testing"
)

const (
	kaiQueues = "/apis/scheduling.run.ai/v2/queues"
	kaiGroups = "/apis/scheduling.run.ai/v2alpha2/namespaces/"
)

// Catches numbers of pods in KAI's queues that differ from what KAI itself says, and a gang whose reason is lost. The agent, the page of
// KAI and the objects of the API server are compared.
func TestKAI(t *testing.T) {
	t.Parallel()
	path, err := exec.LookPath("kai-scheduler")
	if err != nil {
		skip(t, "kai", fmt.Errorf("tools/deps.sh kai did not build it: %w", err))
	}
	if l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", ":8080"); err != nil {
		skip(t, "kai", fmt.Errorf("one of its controllers has a fixed port: %w", err))
	} else {
		l.Close()
	}
	q := newQueueTest(t)
	q.node("gn1", "64", "")
	q.node("gn2", "64", "")
	page, queues := q.kai(folderOf(t, path))
	q.kaiQueue("all", "", 16, 16)
	q.kaiQueue("red", "all", 4, 8)
	q.kaiQueue("blue", "all", 12, -1)
	a := q.agent("agent", fmt.Sprintf("{url: %q}", page), fmt.Sprintf("{url: %q}", queues))

	q.kaiGang(red, "red", "first", 4, 2)
	q.shows(a, map[string]float64{`scheduler_gpu_allocated{queue="team-red",type="H100"}`: 8})
	q.kaiGang(red, "red", "second", 4, 1)
	q.shows(a, map[string]float64{`scheduler_gpu_pending{queue="team-red",reason="quota",type="H100"}`: 4})
	q.kaiShows(page, map[string]float64{`kai_queue_fair_share_gpu{queue="red"}`: 8, `kai_queue_fair_share_gpu{queue="all"}`: 12})
	q.compare(a)
	q.repeats(a, "kai", map[string]float64{
		`scheduler_up{}`: 1,
		`scheduler_queue_gpu_nominal{queue="red"}`:      4,
		`scheduler_queue_gpu_used{queue="red"}`:         8,
		`scheduler_queue_gpu_borrowed{queue="red"}`:     4,
		`scheduler_queue_gpu_used{queue="blue"}`:        0,
		`scheduler_queue_fair_share_ratio{queue="red"}`: 1,
		`scheduler_queue_gpu_used{queue="all"}`:         absent, // the sum of the others
	})

	// The blue team claims its quota: what the red one has beyond its own is taken back, and the red team's other gang fits then. Of the
	// blue one only three pods fit: 4 and 8 GPUs are free, and each pod wants 3.
	q.kaiGang(blue, "blue", "third", 4, 3)
	q.shows(a, map[string]float64{`scheduler_job_count{queue="team-red",state="stopping"}`: 4})
	q.buried(red)
	q.shows(a, map[string]float64{
		`scheduler_gpu_allocated{queue="team-red",type="H100"}`:                 4,
		`scheduler_gpu_count{state="free",type="H100"}`:                         12,
		`scheduler_job_count{queue="team-blue",state="pending"}`:                4,
		`scheduler_gpu_pending{queue="team-blue",reason="gang",type="H100"}`:    12,
		`scheduler_group_count{queue="team-blue",state="waiting",system="kai"}`: 1,
	})
	q.compare(a)
	q.kaiShows(page, map[string]float64{
		`kai_queue_fair_share_gpu{queue="red"}`:  4,
		`kai_queue_fair_share_gpu{queue="blue"}`: 12,
		`kai_queue_fair_share_gpu{queue="all"}`:  16,
	})
	for i := range 4 {
		q.api.remove(fmt.Sprintf("/api/v1/namespaces/%s/pods/second-%d?gracePeriodSeconds=0", red, i))
	}
	q.shows(a, map[string]float64{`scheduler_gpu_allocated{queue="team-blue",type="H100"}`: 12})
	q.compare(a)
	q.repeats(a, "kai", map[string]float64{
		`scheduler_queue_gpu_used{queue="red"}`:      0,
		`scheduler_queue_gpu_used{queue="blue"}`:     12,
		`scheduler_queue_gpu_borrowed{queue="blue"}`: 0,
	})
}

// kai starts KAI's scheduler, its binder and those that count what queues have, and returns the URLs of the scheduler's page and of that of
// the queues.
func (q *queueTest) kai(folder string) (scheduler, queues string) {
	t := q.t
	t.Helper()
	q.api.define(t, folder)
	q.api.create("/api/v1/namespaces", "{apiVersion: v1, kind: Namespace, metadata: {name: kai-scheduler}}")
	metrics, binder := freeAddress(t), freeAddress(t)
	_, port, _ := net.SplitHostPort(freeAddress(t))
	kubeconfig := q.api.kubeconfig(q.dir, asAdmin)
	q.daemon("kai-binder", "--kubeconfig="+kubeconfig, "--metrics-bind-address="+binder, "--health-probe-bind-address=0").ready(t, "http://"+binder+"/metrics")
	q.daemon("env", "KUBECONFIG="+kubeconfig, "kai-scheduler", "--listen-address="+metrics, "--plugin-server-port="+port).ready(t, "http://"+metrics+"/metrics")
	groups, counts := freeAddress(t), freeAddress(t)
	q.daemon("env", "KUBECONFIG="+kubeconfig, "kai-podgroupcontroller", "--enable-podgroup-webhook=false", "--health-probe-bind-address="+groups).ready(t, "http://"+groups+"/readyz")
	q.daemon("env", "KUBECONFIG="+kubeconfig, "kai-queuecontroller", "--enable-webhook=false", "--metrics-listen-address="+counts).ready(t, "http://"+counts+"/metrics")
	return "http://" + metrics + "/metrics", "http://" + counts + "/metrics"
}

// kaiQueue creates a queue with a quota and a limit of GPUs; -1 is none.
func (q *queueTest) kaiQueue(name, parent string, quota, limit int) {
	q.t.Helper()
	const free = "{quota: -1, limit: -1, overQuotaWeight: 1}"
	q.api.create(kaiQueues, fmt.Sprintf("{apiVersion: scheduling.run.ai/v2, kind: Queue, metadata: {name: %s}, spec: {parentQueue: %q, resources: {gpu: {quota: %d, limit: %d, overQuotaWeight: 1}, cpu: %s, memory: %s}}}",
		name, parent, quota, limit, free, free))
}

// kaiGang creates pods that KAI places together.
func (q *queueTest) kaiGang(namespace, queue, name string, pods, gpus int) {
	q.t.Helper()
	q.api.create(kaiGroups+namespace+"/podgroups", fmt.Sprintf("{apiVersion: scheduling.run.ai/v2alpha2, kind: PodGroup, metadata: {name: %s, labels: {kai.scheduler/queue: %[2]s}}, spec: {queue: %[2]s, minMember: %d}}", name, queue, pods))
	for i := range pods {
		q.podOf(namespace, fmt.Sprintf("{name: %[1]s-%[2]d, labels: {kai.scheduler/queue: %[3]s}, annotations: {pod-group-name: %[1]s}}", name, i, queue), gpus, "1", "schedulerName: kai-scheduler")
	}
}

// kaiShows waits until KAI's page has these values of its queues.
func (q *queueTest) kaiShows(url string, want map[string]float64) {
	q.t.Helper()
	eventually(q.t, "KAI shows its queues", func() error {
		text, err := get(q.t, url)
		if err != nil {
			return err
		}
		return matches(samples(q.t, text, "kai_", map[string]string{"queue_name": "queue"}), want)
	})
}
