//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"testing"
)

// Catches GPUs that kube-state-metrics counts under other names or in other states, where pods may not be watched. An agent that only has
// its page is compared with one that watches.
func TestKubeStateMetrics(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("ksm"); err != nil {
		skip(t, "ksm", fmt.Errorf("tools/deps.sh ksm did not build it: %w", err))
	}
	q := newQueueTest(t)
	q.node("gn1", "64", "")
	q.node("gn2", "64", "{unschedulable: true}")
	addr, other := freeAddress(t), freeAddress(t)
	host, port, _ := net.SplitHostPort(addr)
	_, telemetry, _ := net.SplitHostPort(other)
	q.daemon("ksm", "--kubeconfig="+q.api.kubeconfig(q.dir, asAdmin), "--host="+host, "--port="+port, "--telemetry-host="+host, "--telemetry-port="+telemetry).ready(t, "http://"+addr+"/metrics")

	config := filepath.Join(q.dir, "pages.yaml")
	write(t, config, fmt.Sprintf(`
receivers: {scheduler: {scheduler: queueing, queueing: {interval: 1s, cluster: e2e, pages: [{url: "http://%s/metrics"}]}}}
exporters: {page: {endpoint: "127.0.0.1:0"}}
service: {pipelines: {metrics: {receivers: [scheduler], exporters: [page]}}}
`, addr))
	p := start(t, q.binary, "agent", "--config", config, "--socket", "")
	p.name = "pages"
	pages, watch := queueAgent{p, p.find(t, pageAddress)}, q.agent("watch")

	q.pod(red, "train", 5, "1", "")
	eventually(t, "the first pod is placed", func() error { return q.placed(red, "train") })
	q.pod(blue, "large", 8, "1", "")
	q.pod(blue, "gated", 2, "1", "schedulingGates: [{name: example.com/admission}]")
	q.shows(watch, map[string]float64{
		`scheduler_gpu_allocated{queue="team-red",type="H100"}`:                     5,
		`scheduler_gpu_pending{queue="team-blue",reason="unavailable",type="H100"}`: 8,
		`scheduler_gpu_pending{queue="team-blue",reason="held",type="H100"}`:        2,
	})
	q.repeats(pages, "kube-state-metrics", map[string]float64{
		`scheduler_up{}`: 1,
		`scheduler_queue_gpu_used{queue="team-red"}`:     5,
		`scheduler_queue_gpu_pending{queue="team-blue"}`: 10,
		`scheduler_queue_gpu_capacity{}`:                 16,
	})
}
