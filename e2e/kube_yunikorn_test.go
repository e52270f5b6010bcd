//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"os/exec"
	"testing"
)

// yunikornPage has a fixed port.
const yunikornPage = "127.0.0.1:9080"

// Catches numbers of pods in YuniKorn's queues that differ from what YuniKorn itself says, inner queues that count beside their leaves, and a
// quota that is not seen.
func TestYuniKorn(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("yunikorn"); err != nil {
		skip(t, "yunikorn", fmt.Errorf("tools/deps.sh yunikorn did not build it: %w", err))
	}
	if l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", ":9080"); err != nil {
		skip(t, "yunikorn", fmt.Errorf("its port is fixed: %w", err))
	} else {
		l.Close()
	}
	q := newQueueTest(t)
	q.node("gn1", "64", "")
	q.node("gn2", "64", "")
	q.api.create("/api/v1/namespaces", "{apiVersion: v1, kind: Namespace, metadata: {name: yunikorn}}")
	q.api.create("/api/v1/namespaces/yunikorn/configmaps", `apiVersion: v1
kind: ConfigMap
metadata: {name: yunikorn-configs}
data:
  queues.yaml: |
    partitions:
    - name: default
      queues:
      - name: root
        submitacl: "*"
        queues:
        - {name: red, resources: {guaranteed: {nvidia.com/gpu: 4}, max: {nvidia.com/gpu: 8}}}
        - {name: blue, resources: {guaranteed: {nvidia.com/gpu: 12}}}
`)
	q.daemon("env", "KUBECONFIG="+q.api.kubeconfig(q.dir, asAdmin), "NAMESPACE=yunikorn", "yunikorn").ready(t, "http://"+yunikornPage+"/ws/v1/metrics")
	a := q.agent("agent", fmt.Sprintf("{url: %q}", "http://"+yunikornPage+"/ws/v1/metrics"))

	q.application(red, "red", "first", 4, 2)
	q.shows(a, map[string]float64{`scheduler_gpu_allocated{queue="team-red",type="H100"}`: 8})
	q.application(red, "red", "second", 4, 1)
	q.application(blue, "blue", "third", 2, 4)
	q.shows(a, map[string]float64{`scheduler_gpu_allocated{queue="team-blue",type="H100"}`: 8, `scheduler_job_count{queue="team-red",state="pending"}`: 4})
	q.compare(a)
	q.repeats(a, "yunikorn", map[string]float64{
		`scheduler_up{}`: 1,
		`scheduler_queue_gpu_used{queue="root.red"}`:      8,
		`scheduler_queue_gpu_limit{queue="root.red"}`:     8,
		`scheduler_queue_gpu_nominal{queue="root.red"}`:   4,
		`scheduler_queue_gpu_borrowed{queue="root.red"}`:  4,
		`scheduler_queue_gpu_pending{queue="root.red"}`:   4,
		`scheduler_queue_gpu_used{queue="root.blue"}`:     8,
		`scheduler_queue_gpu_borrowed{queue="root.blue"}`: 0,
		`scheduler_queue_gpu_used{queue="root"}`:          absent, // the sum of the others
		`scheduler_queue_gpu_capacity{}`:                  16,
	})
}

// application creates pods of one application of YuniKorn.
func (q *queueTest) application(namespace, queue, name string, pods, gpus int) {
	q.t.Helper()
	for i := range pods {
		q.podOf(namespace, fmt.Sprintf("{name: %[1]s-%[2]d, labels: {applicationId: %[1]s, queue: root.%[3]s}}", name, i, queue), gpus, "1", "schedulerName: yunikorn")
	}
}
