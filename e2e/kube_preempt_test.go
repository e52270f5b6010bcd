//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// Catches pods that the scheduler evicted for another and that are seen as running or gone while they still hold their GPUs, and the pod
// that they make room for, which waits for them and for nothing else.
func TestKubePreemption(t *testing.T) {
	t.Parallel()
	q := newQueueTest(t)
	q.node("gn1", "64", "")
	for name, value := range map[string]int{"low": 10, "urgent": 1000} {
		q.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", fmt.Sprintf("{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: %s}, value: %d}", name, value))
	}
	for i := range 4 {
		q.pod(blue, fmt.Sprint("low-", i), 2, "1", "priorityClassName: low")
	}
	a := q.agent("agent", q.schedulerPages()...)
	q.shows(a, map[string]float64{`scheduler_gpu_allocated{queue="team-blue",type="H100"}`: 8})

	q.pod(red, "urgent", 4, "1", "priorityClassName: urgent")
	eventually(t, "the scheduler evicts pods", func() error {
		if n := q.evicted(); n != 2 {
			return fmt.Errorf("it has evicted %d", n)
		}
		return nil
	})
	q.shows(a, map[string]float64{
		`scheduler_job_count{queue="team-blue",state="starting"}`:                 2,
		`scheduler_job_count{queue="team-blue",state="stopping"}`:                 2,
		`scheduler_gpu_allocated{queue="team-blue",type="H100"}`:                  8,
		`scheduler_gpu_count{state="free",type="H100"}`:                           0,
		`scheduler_gpu_pending{queue="team-red",reason="preempting",type="H100"}`: 4,
	})
	q.shows(a, map[string]float64{`scheduler_job_evicted_total{queue="team-blue",reason="preempted"}`: 2})
	q.compare(a)
	q.repeats(a, "kube-scheduler", map[string]float64{
		`scheduler_queue_evicted_total{reason="preempted"}`: 2,
		`scheduler_queue_gpu_used{queue="team-blue"}`:       8,
		`scheduler_queue_gpu_pending{queue="team-red"}`:     4,
	})
	out := command(t, ".", q.binary, "why", red+"/urgent", "--kubeconfig", q.api.kubeconfig(q.dir, asAdmin))
	if !strings.Contains(out, "pods were evicted for it and have not ended yet") || !strings.Contains(out, "It made room on gn1") {
		t.Errorf("why the pod waits:\n%s", out)
	}

	q.buried(blue)
	q.shows(a, map[string]float64{
		`scheduler_gpu_allocated{queue="team-blue",type="H100"}`: 4,
		`scheduler_gpu_allocated{queue="team-red",type="H100"}`:  4,
		`scheduler_gpu_count{state="free",type="H100"}`:          0,
	})
	q.compare(a)
	if err := q.placed(red, "urgent"); err != nil {
		t.Error(errors.Join(errors.New("the pod that others were evicted for is not placed"), err))
	}
}

// evicted returns how many pods the scheduler has evicted for others.
func (q *queueTest) evicted() (n int) {
	for _, p := range q.apiPods() {
		for _, c := range p.Status.Conditions {
			if c.Type == "DisruptionTarget" && c.Status == "True" {
				n++
			}
		}
	}
	return n
}
