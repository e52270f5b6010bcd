package simulated

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/scheduler"
)

const gpu = "nvidia.com/gpu"

var (
	vendors = device.Vendors{{Name: "nvidia", Resources: []device.Resource{{Name: gpu, Unit: device.Whole}}, ModelLabels: []string{"model"}}}
	boot    = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
)

// played is a script in which a pod is gated, waits, starts, runs, ends and is deleted, and others wait for ever.
func played() *Cluster {
	one := map[string]int64{gpu: 1}
	return &Cluster{
		Start: boot,
		Nodes: []Node{
			{Name: "n1", Labels: map[string]string{"model": "H100"}, Devices: map[string]int64{gpu: 2}, CPUs: 8, Memory: 64},
			{Name: "n2", Labels: map[string]string{"model": "H200"}, Devices: map[string]int64{gpu: 4}, CPUs: 8, Memory: 64},
			{Name: "n3", Labels: map[string]string{"model": "H100"}, Devices: map[string]int64{gpu: 8}, CPUs: 8, Memory: 64, Cordoned: true},
		},
		Pods: []Pod{
			{
				Namespace: "ml", Name: "a", UID: "ua", Labels: map[string]string{"team": "red"}, Devices: one, CPUs: 6, Memory: 8, Node: "n1",
				Created: time.Minute, Gate: "g", Released: 2 * time.Minute, Placed: 4 * time.Minute, Started: 5 * time.Minute, Ended: 9 * time.Minute,
			},
			{Namespace: "ml", Name: "cpu", UID: "uc", Devices: one, CPUs: 12, Memory: 8, Selector: map[string]string{"model": "H100"}, Created: 5 * time.Minute},
			{Namespace: "ml", Name: "quota", UID: "uq", Devices: one, CPUs: 1, Created: 5 * time.Minute, Words: "Pod ml/quota is rejected in PreFilter because ElasticQuota ml is more than Max"},
		},
	}
}

// Catches a step of a pod's life that Kubernetes' objects do not show, at another time than the script's, or twice.
func TestScript(t *testing.T) {
	t.Parallel()
	w := NewWatch(played(), vendors, "team")
	f := func(up time.Duration, want string) {
		t.Helper()
		v := w.View(boot.Add(up))
		if v.Err != nil || !v.Leads || v.Snapshot.Refused != 0 {
			t.Fatalf("after %s: %+v", up, v)
		}
		text := ""
		for _, p := range v.Snapshot.Pods {
			text += fmt.Sprintf("%s %s", p.Name, p.State)
			if p.State.Waits() {
				text += fmt.Sprintf(" (%s)", v.Snapshot.Reason(p))
			}
			text += ". "
		}
		if want != text {
			t.Errorf("after %s: %s, want %s", up, text, want)
		}
	}
	f(0, "")
	f(90*time.Second, "a held (held). ")
	f(3*time.Minute, "a pending (new). ") // it fits
	f(4*time.Minute, "a starting. ")
	f(6*time.Minute, "a running. cpu pending (cpu). quota pending (quota). ")
	f(10*time.Minute, "a finished. cpu pending (cpu). quota pending (quota). ")
	f(2*time.Hour, "cpu pending (cpu). quota pending (quota). ")
	v := w.View(boot.Add(3 * time.Hour))
	want := map[string]string{"scheduled": "1 in 180 s", "started": "1 in 60 s"}
	got := map[string]string{}
	for name, h := range map[string]scheduler.Histograms{"scheduled": v.Waits.Scheduled, "started": v.Waits.Started} {
		got[name] = fmt.Sprintf("%d in %v s", h["ml"].Count, h["ml"].Sum)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("waits (-want +got):\n%s", d)
	}
}

// Catches words that kube-scheduler does not use, or numbers that are not those of the nodes.
func TestVerdict(t *testing.T) {
	t.Parallel()
	c := played()
	f := func(pod int, up time.Duration, want string) {
		t.Helper()
		if got := c.verdict(&c.Pods[pod], up); got != want {
			t.Errorf("%s after %s:\n%s, want\n%s", c.Pods[pod].Name, up, got, want)
		}
	}
	f(1, 6*time.Minute, "0/3 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) were unschedulable. "+
		"preemption: 0/3 nodes are available: 1 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling.")
	f(2, 6*time.Minute, "0/3 nodes are available: Pod ml/quota is rejected in PreFilter because ElasticQuota ml is more than Max. "+
		"preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.")
	c.Pods[1].Devices = map[string]int64{gpu: 2}
	f(1, 6*time.Minute, "0/3 nodes are available: 1 Insufficient cpu, 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) were unschedulable. "+
		"preemption: 0/3 nodes are available: 1 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling.")
}

// Catches an object that lacks what other tools read: names, owners, and times that agree with each other.
func TestObject(t *testing.T) {
	t.Parallel()
	c := played()
	c.Pods[0].Kind, c.Pods[0].Owner, c.Pods[0].UID, c.Pods[0].Container = "job", "train", "12345678-0000", "main"
	b, err := json.Marshal(c.object(&c.Pods[0], 6*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"creationTimestamp":"2026-01-01T00:01:00Z"`, `"kind":"Job"`, `"name":"train"`, `"nodeName":"n1"`, `"phase":"Running"`,
		`"lastTransitionTime":"2026-01-01T00:04:00Z","message":"","reason":"","status":"True","type":"PodScheduled"`,
		`"lastTransitionTime":"2026-01-01T00:04:04Z","message":"","reason":"","status":"True","type":"PodReadyToStartContainers"`,
		`"running":{"startedAt":"2026-01-01T00:05:00Z"}`, `"requests":{"cpu":"6","memory":"8Gi","nvidia.com/gpu":"1"}`,
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %s in %s", want, b)
		}
	}
}
