//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Catches numbers of a fragmented cluster that are not those of the example which was worked out by hand from the published formula, and
// moves that do not make the pod fit: each is done by hand, and the real scheduler decides.
func TestKubeMoves(t *testing.T) {
	t.Parallel()
	q := newQueueTest(t)
	q.node("gn1", "64", "")
	q.node("gn2", "64", "")
	q.node("gn3", "4", "")
	q.bound("train-0", "gn2", 6, "8")
	q.bound("train-1", "gn1", 5, "8")
	q.bound("small-0", "gn2", 1, "4")
	waiting := []string{"cpuheavy-0", "train-2", "train-3", "nocpu-0", "urgent-0", "gated-0"}
	for i, wants := range []struct {
		gpus int
		cpu  string
	}{{2, "60"}, {4, "8"}, {8, "8"}, {2, "100"}, {4, "8"}} {
		q.pod(red, waiting[i], wants.gpus, wants.cpu, "")
	}
	q.pod(red, "gated-0", 1, "1", "schedulingGates: [{name: example.com/admission}]")
	a := q.agent("agent")
	q.shows(a, map[string]float64{
		`scheduler_gpu_count{state="allocated",type="H100"}`:                12,
		`scheduler_gpu_count{state="free",type="H100"}`:                     12,
		`scheduler_gpu_pending{queue="team-red",reason="held",type="H100"}`: 1,
		`scheduler_gpu_pending{queue="team-red",reason="cpu",type="H100"}`:  20,
		`scheduler_gpu_unusable_ratio{}`:                                    7. / 9,
		`scheduler_gpu_fragmentation_ratio{request="1",type="H100"}`:        0,
		`scheduler_gpu_fragmentation_ratio{request="2",type="H100"}`:        2. / 12,
		`scheduler_gpu_fragmentation_ratio{request="4",type="H100"}`:        4. / 12,
		`scheduler_gpu_fragmentation_ratio{request="8",type="H100"}`:        4. / 12,
		`scheduler_gpu_placeable{request="4",type="H100"}`:                  2,
		`scheduler_gpu_stranded{cause="cpu",type="H100"}`:                   6, // of 8 on gn3: half of the pods want less than 2 CPUs for a GPU
	})
	for _, name := range waiting {
		q.api.remove("/api/v1/namespaces/" + red + "/pods/" + name)
	}

	q.pod(red, "pinned", 2, "8", "nodeSelector: {kubernetes.io/hostname: gn2}")
	q.follow("pinned", "gn2", "small-0")
	q.node("gn4", "64", "")
	q.bound("a", "gn4", 2, "1")
	q.bound("b", "gn4", 2, "1")
	q.pod(red, "whole", 8, "8", "")
	q.follow("whole", "gn4", "a", "b")
	q.node("gn5", "64", "")
	q.bound("build", "gn5", 0, "40")
	q.pod(red, "cpus", 8, "32", "")
	q.follow("cpus", "gn5", "build")
}

// bound creates a pod of a controller that is on a node already.
func (q *queueTest) bound(name, node string, gpus int, cpu string) {
	q.t.Helper()
	q.podOf(red, fmt.Sprintf("{name: %s, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: trainer, uid: 00000000-0000-4000-8000-000000000001, controller: true}]}", name), gpus, cpu, "nodeName: "+node)
}

var (
	adviceLine = regexp.MustCompile(`It would fit on (\S+) if (.+)\.`)
	adviceMove = regexp.MustCompile(`(\S+)/(\S+) \([^)]*\) moved to ([^\s,.]+)`)
)

// follow waits until the scheduler has refused a pod, does by hand what gpumeter why proposes, which must be to move pods from a
// node, and waits until the scheduler has placed the pod there.
func (q *queueTest) follow(name, node string, pods ...string) {
	q.t.Helper()
	eventually(q.t, "the scheduler refuses "+name, func() error {
		for _, p := range q.apiPods() {
			for _, c := range p.Status.Conditions {
				if p.Metadata.Name == name && c.Type == "PodScheduled" && c.Status == "False" {
					return nil
				}
			}
		}
		return errors.New("not yet")
	})
	out := command(q.t, ".", q.binary, "why", red+"/"+name, "--kubeconfig", q.api.kubeconfig(q.dir, asAdmin))
	advice := adviceLine.FindStringSubmatch(out)
	if advice == nil || advice[1] != node {
		q.t.Fatalf("no advice to make room on %s for %s:\n%s", node, name, out)
	}
	var moved []string
	for _, m := range adviceMove.FindAllStringSubmatch(advice[2], -1) {
		moved = append(moved, m[2])
		q.move(m[2], m[3])
	}
	if diff := cmp.Diff(pods, moved); diff != "" {
		q.t.Fatalf("the pods that are to be moved (-want +got):\n%s\n%s", diff, out)
	}
	eventually(q.t, name+" is placed on "+node, func() error { return q.placedOn(name, node) })
}

// move creates a pod like another one on a node, and removes that, as its controller would.
func (q *queueTest) move(name, node string) {
	q.t.Helper()
	for _, p := range q.apiPods() {
		if p.Metadata.Name != name {
			continue
		}
		requests, gpus := p.Spec.Containers[0].Resources.Requests, 0
		if _, err := fmt.Sscan(requests["nvidia.com/gpu"], &gpus); err != nil {
			q.t.Fatal(err)
		}
		q.bound(strings.TrimSuffix(name, "-moved")+"-moved", node, gpus, requests["cpu"])
	}
	q.api.remove("/api/v1/namespaces/" + red + "/pods/" + name + "?gracePeriodSeconds=0")
}

func (q *queueTest) placedOn(name, node string) error {
	for _, p := range q.apiPods() {
		if p.Metadata.Name == name && p.Spec.NodeName != node {
			return fmt.Errorf("it is on %q, %+v", p.Spec.NodeName, p.Status.Conditions)
		}
	}
	return nil
}
