//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"testing"
)

const koordinatorAPI = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/"

// Catches numbers of pods in Koordinator's elastic quotas that differ from what Koordinator itself says, quotas that count beside those below
// them, and a quota that is not seen.
func TestKoordinator(t *testing.T) {
	t.Parallel()
	path, err := exec.LookPath("koordinator")
	if err != nil {
		skip(t, "koordinator", fmt.Errorf("tools/deps.sh koordinator did not build it: %w", err))
	}
	q := newQueueTest(t)
	q.node("gn1", "64", "")
	q.node("gn2", "64", "")
	page := q.koordinator(folderOf(t, path))
	q.elastic(red, "red", 4, 8)
	q.elastic(blue, "blue", 12, 16)
	a := q.agent("agent", page)

	q.elasticPods(red, "red", "first", 4, 2)
	q.shows(a, map[string]float64{`scheduler_gpu_allocated{queue="team-red",type="H100"}`: 8})
	q.elasticPods(red, "red", "second", 4, 1)
	q.shows(a, map[string]float64{`scheduler_gpu_pending{queue="team-red",reason="quota",type="H100"}`: 4})
	q.compare(a)
	q.repeats(a, "koordinator", map[string]float64{
		`scheduler_up{}`:                                1,
		`scheduler_queue_gpu_used{queue="red"}`:         8,
		`scheduler_queue_gpu_pending{queue="red"}`:      4,
		`scheduler_queue_fair_share_ratio{queue="red"}`: 1,
		// It declares metrics of minima and maxima, and does not write them.
		`scheduler_queue_gpu_limit{queue="red"}`:    absent,
		`scheduler_queue_gpu_nominal{queue="red"}`:  absent,
		`scheduler_queue_gpu_borrowed{queue="red"}`: absent,
		`scheduler_queue_gpu_used{queue="blue"}`:    absent, // nor zeros
	})
}

// koordinator starts Koordinator's scheduler and returns its page, as agents are to read it.
func (q *queueTest) koordinator(folder string) string {
	t := q.t
	t.Helper()
	q.api.define(t, folder)
	q.api.create("/api/v1/namespaces", "{apiVersion: v1, kind: Namespace, metadata: {name: koordinator-system}}")
	kubeconfig, addr := q.api.kubeconfig(q.dir, asAdmin), freeAddress(t)
	_, port, _ := net.SplitHostPort(addr)
	config, certificates, token := filepath.Join(q.dir, "koordinator.yaml"), filepath.Join(q.dir, "koordinator"), filepath.Join(q.dir, "token")
	write(t, token, asAgent)
	write(t, config, fmt.Sprintf(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: %q}
leaderElection: {leaderElect: false}
profiles:
- schedulerName: koord-scheduler
  pluginConfig:
  - name: ElasticQuota
    args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: ElasticQuotaArgs, quotaGroupNamespace: koordinator-system}
  plugins:
    preFilter: {enabled: [{name: ElasticQuota}]}
    postFilter: {disabled: [{name: "*"}], enabled: [{name: ElasticQuota}, {name: DefaultPreemption}]}
    reserve: {enabled: [{name: ElasticQuota}]}
`, kubeconfig))
	q.daemon("koordinator", "--config="+config, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
		"--bind-address=127.0.0.1", "--secure-port="+port, "--cert-dir="+certificates)
	return fmt.Sprintf("{url: %q, insecure_skip_verify: true, token_file: %q}", "https://"+addr+"/metrics", token)
}

// elastic creates a quota with a minimum and a maximum of GPUs.
func (q *queueTest) elastic(namespace, name string, minimum, maximum int) {
	q.t.Helper()
	q.api.create(koordinatorAPI+namespace+"/elasticquotas", fmt.Sprintf(`{apiVersion: scheduling.sigs.k8s.io/v1alpha1, kind: ElasticQuota, metadata: {name: %s, labels: {quota.scheduling.koordinator.sh/is-parent: "false"}},
spec: {min: {nvidia.com/gpu: %d, cpu: 32, memory: 250Gi}, max: {nvidia.com/gpu: %d, cpu: 64, memory: 500Gi}}}`, name, minimum, maximum))
}

// elasticPods creates pods of a quota.
func (q *queueTest) elasticPods(namespace, quota, name string, pods, gpus int) {
	q.t.Helper()
	for i := range pods {
		q.podOf(namespace, fmt.Sprintf("{name: %s-%d, labels: {quota.scheduling.koordinator.sh/name: %s}}", name, i, quota), gpus, "1", "schedulerName: koord-scheduler")
	}
}
