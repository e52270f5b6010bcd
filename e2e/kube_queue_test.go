//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestKubeQueue compares what the elected agent says about pods that wait with the objects and the messages of the real
// API server and scheduler.
func TestKubeQueue(t *testing.T) {
	t.Parallel()
	q := newQueueTest(t)
	q.node("gn1", "64", "")
	q.node("gn2", "64", "{taints: [{key: team, value: a, effect: NoSchedule}]}")
	q.node("gn3", "4", "")
	q.node("gn4", "64", "{unschedulable: true}")

	// Without a pod that was placed before the agents start, nothing shows that it does not count.
	q.pod(red, "before", 1, "1", "")
	eventually(t, "a pod is placed", func() error { return q.placed(red, "before") })

	first := q.agent("first", q.schedulerPages()...)
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
	q.repeats(first, "kube-scheduler", map[string]float64{
		`scheduler_up{}`: 1,
		`scheduler_queue_gpu_used{queue="team-red"}`:     6,
		`scheduler_queue_gpu_pending{queue="team-red"}`:  8,
		`scheduler_queue_gpu_pending{queue="team-blue"}`: 38,
		`scheduler_queue_job_count{state="pending"}`:     8,
		`scheduler_queue_job_count{state="held"}`:        1,
	})
	q.why()
	q.fits()

	if text, err := get(t, "http://"+second.address+"/metrics"); err != nil || strings.Contains(text, "scheduler_") {
		t.Errorf("the other agent reports as well: %v\n%s", err, text)
	}
	if code := first.stop(t); code != 0 {
		t.Errorf("the elected agent ended with %d", code)
	}
	want[`scheduler_job_wait_duration_seconds_count{queue="team-red"}`] = 2 // and that of small, which fits removed
	q.shows(second, want)
	q.compare(second)
	q.pod(red, "after", 1, "1", "nodeSelector: {kubernetes.io/hostname: gn1}")
	q.shows(second, map[string]float64{`scheduler_job_wait_duration_seconds_count{queue="team-red"}`: 3})
}

// compare fails the test unless the sums of the agent are those of the API's objects.
func (q *queueTest) compare(a queueAgent) {
	q.t.Helper()
	want := map[string]float64{}
	for _, p := range q.apiPods() {
		text, ok := p.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"]
		if !ok {
			continue
		}
		gpus, err := strconv.ParseFloat(text, 64)
		if err != nil {
			q.t.Fatal(err)
		}
		kind := "scheduler_gpu_pending"
		if p.Spec.NodeName != "" {
			kind = "scheduler_gpu_allocated"
		}
		if p.Status.Phase != "Failed" && p.Status.Phase != "Succeeded" {
			want[kind+" "+p.Metadata.Namespace] += gpus
		}
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
