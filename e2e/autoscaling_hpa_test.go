//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// requireAutoscaler skips the test if a tool, with its programs, or the control plane cannot run.
func requireAutoscaler(t *testing.T, tool string, programs ...string) {
	t.Helper()
	for _, name := range append([]string{"etcd", "kube-apiserver", "kube-controller-manager"}, programs...) {
		if _, err := exec.LookPath(name); err != nil {
			skip(t, tool, fmt.Errorf("tools/deps.sh kubernetes etcd %s did not install it: %w", tool, err))
		}
	}
}

// scaled is a control plane with the pods of a Prometheus, and a Deployment that it scales.
type scaled struct {
	*picked
	control *cluster
	serving *serving
}

// openScaled starts the control plane.
func openScaled(t *testing.T) *scaled {
	t.Helper()
	s := serve(t)
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "log"), 0o755); err != nil {
		t.Fatal(err)
	}
	control := &cluster{t: t, dir: dir}
	control.startAPI()
	c := &scaled{picked: &picked{t: t, api: control.api, pods: s.pods[:2]}, control: control, serving: s}
	c.addPods()
	c.api.create("/api/v1/namespaces", "{apiVersion: v1, kind: Namespace, metadata: {name: monitoring}}")
	return c
}

// aggregate makes the API server send requests for a group to a server on this machine. Nobody has a certificate here,
// so that the API server is anonymous to that server.
func (c *scaled) aggregate(group, port string) {
	c.t.Helper()
	c.api.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", fmt.Sprintf(`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: metrics},
  rules: [{apiGroups: [%s], resources: ["*"], verbs: ["*"]}, {nonResourceURLs: ["*"], verbs: [get]}]}`, group))
	c.api.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: metrics},
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: metrics}, subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: system:unauthenticated}]}`)
	c.api.create("/api/v1/namespaces/monitoring/services", fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {name: metrics}, spec: {type: ExternalName, externalName: localhost, ports: [{port: %s}]}}", port))
	c.api.create("/apis/apiregistration.k8s.io/v1/apiservices", fmt.Sprintf(`{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1beta1.%[1]s},
  spec: {group: %[1]s, version: v1beta1, groupPriorityMinimum: 100, versionPriority: 100, insecureSkipTLSVerify: true, service: {namespace: monitoring, name: metrics, port: %[2]s}}}`, group, port))
}

// anonymous are flags of a server that the API server sends requests to.
func (c *scaled) anonymous(port string) []string {
	kubeconfig := c.api.kubeconfig(c.control.dir, asAdmin)
	return []string{"--lister-kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig, "--authentication-skip-lookup", "--bind-address=127.0.0.1", "--secure-port=" + port}
}

func portOf(t *testing.T, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// perPod returns a metric of the pods as a HorizontalPodAutoscaler reads it.
func (c *scaled) perPod(metric string) (map[string]string, error) {
	var list struct {
		Items []struct {
			DescribedObject struct{ Name string }
			Value           string
		}
	}
	err := c.api.get("/apis/custom.metrics.k8s.io/v1beta1/namespaces/serving/pods/*/"+metric+"?labelSelector=app%3Dllama", &list)
	out := map[string]string{}
	for _, i := range list.Items {
		out[i.DescribedObject.Name] = i.Value
	}
	return out, err
}

const deployment = "/apis/apps/v1/namespaces/serving/deployments"

// deploy creates the Deployment of the model, whose pods nobody makes.
func (c *scaled) deploy(replicas int) {
	c.t.Helper()
	c.api.create(deployment, fmt.Sprintf(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: llama}, spec: {replicas: %d, selector: {matchLabels: {app: llama}},
  template: {metadata: {labels: {app: llama}}, spec: {containers: [{name: engine, image: none}]}}}}`, replicas))
	c.api.patch(deployment+"/llama/status", fmt.Sprintf(`{"status": {"replicas": %[1]d, "readyReplicas": %[1]d, "availableReplicas": %[1]d, "observedGeneration": 1}}`, replicas))
}

// scale starts the controller of autoscalers, and waits until it has given the Deployment its replicas.
func (c *scaled) scale(replicas int) {
	c.t.Helper()
	c.control.daemon("kube-controller-manager", "--kubeconfig="+c.api.kubeconfig(c.control.dir, asAdmin), "--leader-elect=false", "--secure-port=0",
		"--controllers=horizontal-pod-autoscaler-controller", "--horizontal-pod-autoscaler-sync-period=1s")
	eventually(c.t, "the model has its replicas", func() error {
		var d struct{ Spec struct{ Replicas int } }
		if err := c.api.get(deployment+"/llama", &d); err != nil || d.Spec.Replicas == replicas {
			return err
		}
		var list struct{ Items []struct{ Status any } }
		err := c.api.get("/apis/autoscaling/v2/namespaces/serving/horizontalpodautoscalers", &list)
		return errors.Join(err, fmt.Errorf("it has %d, want %d; the autoscaler says %v", d.Spec.Replicas, replicas, list.Items))
	})
}

// Catches rules from which the real Prometheus adapter makes no metric of a pod, and a HorizontalPodAutoscaler that
// does not scale by it.
func TestHorizontalPodAutoscaler(t *testing.T) {
	t.Parallel()
	requireAutoscaler(t, "promadapter", "promadapter")
	c := openScaled(t)
	port, rules := portOf(t, freeAddress(t)), filepath.Join(c.control.dir, "rules.yaml")
	write(t, rules, block(t, autoscaling, "# prometheus-adapter\n"))
	c.control.daemon("promadapter", append(c.anonymous(port), "--prometheus-url="+c.serving.prometheus.url, "--config="+rules, "--metrics-relist-interval=2s",
		"--cert-dir="+filepath.Join(c.control.dir, "adapter"))...)
	c.aggregate("custom.metrics.k8s.io", port)
	for metric, want := range map[string]map[string]string{
		"inference_requests_waiting": {"llama-1": "3", "llama-2": "7"},
		"inference_cache_used":       {"llama-1": "75m", "llama-2": "75m"},
	} {
		eventually(t, "the adapter has "+metric, func() error {
			got, err := c.perPod(metric)
			if diff := cmp.Diff(want, got); err == nil && diff != "" {
				err = fmt.Errorf("%s (-want +got):\n%s", metric, diff)
			}
			return err
		})
	}
	c.deploy(2)
	c.api.create("/apis/autoscaling/v2/namespaces/serving/horizontalpodautoscalers", block(t, autoscaling, "apiVersion: autoscaling/v2\n"))
	c.scale(3) // ten requests wait, and a replica may have four
}
