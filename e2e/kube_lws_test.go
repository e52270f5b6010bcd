//go:build e2e

package e2e

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/gpumeter/gpumeter/internal/workload/kubeapi"
)

const lwsAPI = "/apis/leaderworkerset.x-k8s.io/v1"

type lwsStatus struct{ Replicas, ReadyReplicas int }

// Catches a LeaderWorkerSet whose workers belong to their leader or to a StatefulSet, one group of all its replicas, and workers that are needed
// and do not exist yet.
func TestLeaderWorkerSet(t *testing.T) {
	t.Parallel()
	path, err := exec.LookPath("lws")
	if err != nil {
		skip(t, "lws", fmt.Errorf("tools/deps.sh lws did not build it: %w", err))
	}
	q := newSetTest(t)
	nodes := []string{"gn1", "gn2", "gn3"}
	for _, node := range nodes {
		q.node(node, "64", "")
	}
	q.pod(blue, "before", 4, "1", "")
	q.operator(folderOf(t, path), "lws", "config.lws.x-k8s.io/v1alpha1", "leaderworkerset.x-k8s.io")
	a := q.agent("agent")

	// The workers exist when their leader is ready, and one of them finds no place.
	q.api.create(lwsAPI+"/namespaces/"+red+"/leaderworkersets", `{apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, metadata: {name: vllm}, spec: {replicas: 2,
startupPolicy: LeaderReady, leaderWorkerTemplate: {size: 3, workerTemplate: {spec: {containers: [
{name: main, image: none, resources: {limits: {nvidia.com/gpu: "4"}, requests: {cpu: "1", memory: 8Gi}}}]}}}}}`)
	set := lwsAPI + "/namespaces/" + red + "/leaderworkersets/vllm"
	q.shows(a, map[string]float64{
		`scheduler_group_count{queue="team-red",state="waiting",system="leaderworkerset"}`:                         2,
		`scheduler_group_member_count{member="placed",queue="team-red",state="waiting",system="leaderworkerset"}`:  2,
		`scheduler_group_member_count{member="missing",queue="team-red",state="waiting",system="leaderworkerset"}`: 4,
	})
	statusOf(q, set, lwsStatus{Replicas: 2})
	q.run("vllm-0")
	q.shows(a, map[string]float64{
		`scheduler_group_count{queue="team-red",state="waiting",system="leaderworkerset"}`:                         1,
		`scheduler_group_count{queue="team-red",state="placed",system="leaderworkerset"}`:                          1,
		`scheduler_group_member_count{member="placed",queue="team-red",state="placed",system="leaderworkerset"}`:   2,
		`scheduler_group_member_count{member="running",queue="team-red",state="placed",system="leaderworkerset"}`:  1,
		`scheduler_group_member_count{member="missing",queue="team-red",state="waiting",system="leaderworkerset"}`: 2,
	})
	q.run("vllm-0")
	statusOf(q, set, lwsStatus{Replicas: 2, ReadyReplicas: 1})
	q.run("vllm-1")
	q.shows(a, map[string]float64{
		`scheduler_gpu_pending{queue="team-red",reason="gpu",type="H100"}`:                                         4,
		`scheduler_group_count{queue="team-red",state="running",system="leaderworkerset"}`:                         1,
		`scheduler_group_count{queue="team-red",state="waiting",system="leaderworkerset"}`:                         1,
		`scheduler_group_member_count{member="running",queue="team-red",state="running",system="leaderworkerset"}`: 3,
		`scheduler_group_member_count{member="running",queue="team-red",state="waiting",system="leaderworkerset"}`: 1,
		`scheduler_group_member_count{member="placed",queue="team-red",state="waiting",system="leaderworkerset"}`:  1,
		`scheduler_group_member_count{member="waiting",queue="team-red",state="waiting",system="leaderworkerset"}`: 1,
		`scheduler_group_member_count{member="missing",queue="team-red",state="waiting",system="leaderworkerset"}`: absent,
	})
	statusOf(q, set, lwsStatus{Replicas: 2, ReadyReplicas: 1})
	q.explains(red, "Its group vllm-1 (leaderworkerset) needs 3 pods: all exist, 2 have a place. Those that wait ask for 4 GPUs, and 0 are free.")
	q.owned(nodes, map[kubeapi.Owner]int{{Kind: "leaderworkerset", Name: "vllm"}: 5, {Kind: "pod", Name: "before"}: 1})
	q.compare(a)

	// The groups are ready as the LeaderWorkerSet says.
	q.api.remove("/api/v1/namespaces/" + blue + "/pods/before?gracePeriodSeconds=0")
	q.shows(a, map[string]float64{`scheduler_group_count{queue="team-red",state="placed",system="leaderworkerset"}`: 1})
	q.run("vllm-1")
	statusOf(q, set, lwsStatus{Replicas: 2, ReadyReplicas: 2})
	q.shows(a, map[string]float64{
		`scheduler_group_count{queue="team-red",state="running",system="leaderworkerset"}`:                         2,
		`scheduler_group_member_count{member="running",queue="team-red",state="running",system="leaderworkerset"}`: 6,
	})
}
