//go:build e2e

package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
)

const volcanoAPI = "/apis/scheduling.volcano.sh/v1beta1"

// Catches numbers of pods in Volcano's queues that differ from what Volcano itself says, in thousandths of GPUs, and a gang whose
// reason is lost. The agent, the page of Volcano and its objects are compared.
func TestVolcano(t *testing.T) {
	t.Parallel()
	path, err := exec.LookPath("volcano-scheduler")
	if err != nil {
		skip(t, "volcano", fmt.Errorf("tools/deps.sh volcano did not build it: %w", err))
	}
	q := newQueueTest(t)
	q.node("gn1", "64", "")
	q.node("gn2", "64", "")
	page := q.volcano(folderOf(t, path))
	for queue, limits := range map[string]string{
		"red":  `deserved: {nvidia.com/gpu: 4}, capability: {nvidia.com/gpu: 8}`,
		"blue": `deserved: {nvidia.com/gpu: 12}`,
	} {
		q.api.create(volcanoAPI+"/queues", fmt.Sprintf("{apiVersion: scheduling.volcano.sh/v1beta1, kind: Queue, metadata: {name: %s}, spec: {%s}}", queue, limits))
	}
	a := q.agent("agent", fmt.Sprintf("{url: %q}", page))

	q.volcanoGang(red, "red", "first", 4, 2)
	q.volcanoShows(page, map[string]float64{`volcano_queue_allocated_scalar_resources{queue="red"}`: 8000})
	q.volcanoGang(red, "red", "second", 4, 1)
	q.volcanoGang(blue, "blue", "third", 4, 3)
	q.volcanoShows(page, map[string]float64{
		`volcano_queue_allocated_scalar_resources{queue="red"}`:  8000,
		`volcano_queue_allocated_scalar_resources{queue="blue"}`: 6000, // of two members that have found a place, and do not get it
		`volcano_queue_deserved_scalar_resources{queue="red"}`:   4000,
		`volcano_queue_request_scalar_resources{queue="red"}`:    12000,
		`volcano_queue_request_scalar_resources{queue="blue"}`:   12000,
		`volcano_queue_capacity_scalar_resources{queue="red"}`:   8000,
	})
	q.shows(a, map[string]float64{
		`scheduler_gpu_allocated{queue="team-red",type="H100"}`:              8,
		`scheduler_gpu_pending{queue="team-red",reason="gang",type="H100"}`:  4,
		`scheduler_gpu_pending{queue="team-blue",reason="gang",type="H100"}`: 12,
	})
	q.shows(a, map[string]float64{
		`scheduler_group_count{queue="team-red",state="placed",system="volcano"}`:   1,
		`scheduler_group_count{queue="team-red",state="waiting",system="volcano"}`:  1,
		`scheduler_group_count{queue="team-blue",state="waiting",system="volcano"}`: 1,
	})
	q.compare(a)
	q.repeats(a, "volcano", map[string]float64{
		`scheduler_up{}`:                            1,
		`scheduler_queue_gpu_used{queue="red"}`:     8,
		`scheduler_queue_gpu_nominal{queue="red"}`:  4,
		`scheduler_queue_gpu_borrowed{queue="red"}`: 4,
		`scheduler_queue_gpu_limit{queue="red"}`:    8,
		`scheduler_queue_gpu_pending{queue="red"}`:  4,
		`scheduler_queue_gpu_nominal{queue="blue"}`: 12,
		`scheduler_queue_gpu_used{queue="root"}`:    absent, // a sum of the others
	})
}

// volcano starts Volcano and returns the URL of its page.
func (q *queueTest) volcano(folder string) string {
	t := q.t
	t.Helper()
	q.api.define(t, folder)
	q.api.create("/api/v1/namespaces", "{apiVersion: v1, kind: Namespace, metadata: {name: volcano-system}}")
	config := filepath.Join(q.dir, "volcano.yaml")
	write(t, config, `actions: "enqueue, allocate, preempt, reclaim, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins: [{name: drf}, {name: predicates}, {name: capacity}, {name: nodeorder}]
`)
	health, metrics := freeAddress(t), freeAddress(t)
	kubeconfig := q.api.kubeconfig(q.dir, asAdmin)
	q.daemon("volcano-controller-manager", "--kubeconfig="+kubeconfig, "--leader-elect=false", "--controllers=+queue-controller,+pg-controller")
	q.daemon("volcano-scheduler", "--kubeconfig="+kubeconfig, "--leader-elect=false", "--scheduler-conf="+config, "--plugins-dir=", "--cache-dumper=false",
		"--enable-metrics", "--listen-address="+metrics, "--enable-healthz", "--healthz-address="+health).ready(t, "http://"+health+"/healthz")
	return "http://" + metrics + "/metrics"
}

// volcanoGang creates pods that Volcano places together.
func (q *queueTest) volcanoGang(namespace, queue, name string, pods, gpus int) {
	q.t.Helper()
	q.api.create(volcanoAPI+"/namespaces/"+namespace+"/podgroups", fmt.Sprintf("{apiVersion: scheduling.volcano.sh/v1beta1, kind: PodGroup, metadata: {name: %s}, spec: {queue: %s, minMember: %d, minResources: {nvidia.com/gpu: %d}}}",
		name, queue, pods, pods*gpus))
	for i := range pods {
		q.podOf(namespace, fmt.Sprintf("{name: %[1]s-%[2]d, annotations: {scheduling.k8s.io/group-name: %[1]s}}", name, i), gpus, "1", "schedulerName: volcano")
	}
}

// volcanoShows waits until Volcano's page has these values of its queues' GPUs.
func (q *queueTest) volcanoShows(url string, want map[string]float64) {
	q.t.Helper()
	eventually(q.t, "Volcano shows its queues", func() error {
		text, err := get(q.t, url)
		if err != nil {
			return err
		}
		return matches(samples(q.t, ofGPUs(text), "volcano_", map[string]string{"queue_name": "queue"}), want)
	})
}
