//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/workload/kubeapi"
)

// newSetTest starts a control plane with the controllers of Kubernetes that sets of pods build on, and gives the agents also the permissions
// to find owners.
func newSetTest(t *testing.T) *queueTest {
	t.Helper()
	q := newQueueTest(t)
	q.daemon("kube-controller-manager", "--kubeconfig="+q.api.kubeconfig(q.dir, asAdmin), "--leader-elect=false", "--secure-port=0",
		"--controllers=job-controller,statefulset-controller")
	q.api.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", clusterRole(t))
	q.bind(asAgent)
	return q
}

// operator starts a controller with the webhooks that give its objects, of a group of resources, their defaults.
func (q *queueTest) operator(folder, name, configuration, group string) {
	t := q.t
	t.Helper()
	q.api.define(t, folder)
	dir := t.TempDir()
	certificate := selfSigned(t, dir)
	hooks, health, config := freeAddress(t), freeAddress(t), filepath.Join(dir, "config.yaml")
	host, port, _ := strings.Cut(hooks, ":")
	write(t, config, fmt.Sprintf(`apiVersion: %s
kind: Configuration
health: {healthProbeBindAddress: %q}
metrics: {bindAddress: "0"}
webhook: {host: %q, port: %s, certDir: %q}
leaderElection: {leaderElect: false}
internalCertManagement: {enable: false}
`, configuration, health, host, port, dir))
	q.daemon(name, "--config="+config, "--kubeconfig="+q.api.kubeconfig(dir, asAdmin)).ready(t, "http://"+health+"/readyz")
	q.hook(filepath.Join(folder, "webhook", "manifests.yaml"), "https://"+hooks, certificate, "", group)
}

// statusOf waits until the status of an object is this, in the fields that want has.
func statusOf[T any](q *queueTest, path string, want T, options ...cmp.Option) {
	q.t.Helper()
	eventually(q.t, "the status of "+path+" is current", func() error {
		var object struct{ Status T }
		if err := q.api.get(path, &object); err != nil {
			return err
		}
		if diff := cmp.Diff(want, object.Status, options...); diff != "" {
			return errors.New("(-want +got):\n" + diff)
		}
		return nil
	})
}

// run makes the pods that have a place and whose names start with prefix run, as their kubelets would.
func (q *queueTest) run(prefix string) {
	q.t.Helper()
	q.report(prefix, "Running", `{"type": "Ready", "status": "True"}, {"type": "Initialized", "status": "True"}`)
}

// finish makes them succeed.
func (q *queueTest) finish(prefix string) {
	q.t.Helper()
	q.report(prefix, "Succeeded", `{"type": "Ready", "status": "False", "reason": "PodCompleted"}`)
}

func (q *queueTest) report(prefix, phase, conditions string) {
	q.t.Helper()
	for _, p := range q.apiPods() {
		if p.Spec.NodeName != "" && strings.HasPrefix(p.Metadata.Name, prefix) {
			q.api.patch("/api/v1/namespaces/"+p.Metadata.Namespace+"/pods/"+p.Metadata.Name+"/status",
				fmt.Sprintf(`{"status": {"phase": %q, "conditions": [{"type": "PodScheduled", "status": "True"}, %s]}}`, phase, conditions))
		}
	}
}

// explains fails the test unless gpumeter why says this of each pod of a namespace that waits for GPUs.
func (q *queueTest) explains(namespace, line string) {
	q.t.Helper()
	asked := 0
	for _, p := range q.apiPods() {
		_, ours := p.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"]
		if p.Metadata.Namespace != namespace || p.Spec.NodeName != "" || !ours {
			continue
		}
		asked++
		out := command(q.t, ".", q.binary, "why", namespace+"/"+p.Metadata.Name, "--kubeconfig", q.api.kubeconfig(q.dir, asAdmin))
		if !strings.Contains(out, line) {
			q.t.Errorf("of %s want %q:\n%s", p.Metadata.Name, line, out)
		}
	}
	if asked == 0 {
		q.t.Errorf("no pod of %s waits", namespace)
	}
}

// owned waits until the attribution on each of the nodes gives the pods there to owners: kinds and names, and how many pods each has.
func (q *queueTest) owned(nodes []string, want map[kubeapi.Owner]int) {
	q.t.Helper()
	clients := map[string]*kubeapi.Client{}
	for _, node := range nodes {
		c, err := kubeapi.New(kubeapi.Config{Node: node, Kubeconfig: q.api.kubeconfig(q.dir, asAgent)})
		if err != nil {
			q.t.Fatal(err)
		}
		clients[node] = c
		go c.Run(q.t.Context()) // ends with the test
	}
	eventually(q.t, "the pods have owners", func() error {
		got := map[kubeapi.Owner]int{}
		for _, p := range q.apiPods() {
			if c := clients[p.Spec.NodeName]; c != nil {
				found, _ := c.PodByName(p.Metadata.Namespace, p.Metadata.Name)
				got[found.Owner]++
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return errors.New("(-want +got):\n" + diff)
		}
		return nil
	})
	for node, c := range clients {
		if problems := c.State().Problems; len(problems) > 0 {
			q.t.Errorf("%s: %+v", node, problems)
		}
	}
}
