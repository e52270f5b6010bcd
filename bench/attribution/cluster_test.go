//go:build bench

package attribution

import (
	"fmt"
	"path/filepath"
	"testing"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpumeter/gpumeter/internal/workload/kubeapi/kubeapitest"
	"github.com/gpumeter/gpumeter/internal/workload/kubelet/kubelettest"
)

const (
	nodeName = "node-0"
	// The GPUs of the node are time-sliced, so that every pod has a share of one.
	gpus     = 8
	nodePods = 256
	// Pods per deployment.
	deploymentPods = 16
)

// cluster is a node with its kubelet, and an API server with the pods of all nodes.
type cluster struct {
	kubeconfig, socket string
}

// newCluster starts a cluster with this many pods in total, nodePods of them on our node.
func newCluster(t *testing.T, pods int) cluster {
	t.Helper()
	api := kubeapitest.New()
	for i := range pods {
		node := nodeName
		if i >= nodePods {
			node = fmt.Sprintf("node-%d", i/nodePods)
		}
		api.PutPod(pod(node, i))
		if i%deploymentPods == 0 {
			api.Put("/apis/apps/v1/namespaces/ml/replicasets/"+replicaSet(i), kubeapitest.Meta("rs-"+replicaSet(i),
				kubeapitest.Owned("apps/v1", "Deployment", deployment(i), "deploy-"+deployment(i))))
		}
	}
	url, stop := api.Serve()
	t.Cleanup(stop)
	dir := t.TempDir()
	kubeconfig, err := kubeapitest.Kubeconfig(dir, url)
	if err != nil {
		t.Fatal(err)
	}
	c := cluster{kubeconfig, filepath.Join(dir, "kubelet.sock")}
	kubelet, err := kubelettest.Start(c.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kubelet.Stop)
	var list []*podresources.PodResources
	var offered []*podresources.ContainerDevices
	for i := range nodePods {
		devices := kubelettest.Devices("nvidia.com/gpu.shared", fmt.Sprintf("%s::%d", uuid(i%gpus), i/gpus))
		list = append(list, kubelettest.Pod("ml", podName(i), kubelettest.Container("main", devices...)))
		offered = append(offered, devices...)
	}
	kubelet.Set(list, offered)
	return c
}

// uuid is the UUID of a GPU in the fake NVML.
func uuid(i int) string { return fmt.Sprintf("GPU-00000000-0000-4000-8000-%012x", i) }

func deployment(i int) string { return fmt.Sprintf("trainer-%d", i/deploymentPods) }
func replicaSet(i int) string { return deployment(i) + "-5d4f8c7b9d" }
func podName(i int) string    { return fmt.Sprintf("%s-%05x", replicaSet(i), i) }
func podUID(i int) string     { return fmt.Sprintf("%08x-0000-4000-8000-%012x", i, i) }

// A real ID has no pattern, but only its length affects the cost.
func containerID(i int) string { return fmt.Sprintf("%064x", i+1) }

// pod is as large as pods of real clusters: most of it is irrelevant here.
func pod(node string, i int) kubeapitest.Object {
	type object = kubeapitest.Object
	var env, conditions []object
	for n := range 25 {
		env = append(env, object{"name": fmt.Sprintf("SETTING_%d", n), "value": "some-value-of-a-setting"})
	}
	for _, c := range []string{"Initialized", "Ready", "ContainersReady", "PodScheduled", "PodReadyToStartContainers"} {
		conditions = append(conditions, object{"type": c, "status": "True", "lastTransitionTime": "2026-11-15T00:00:00Z"})
	}
	labels, annotations := object{"app": deployment(i), "pod-template-hash": "5d4f8c7b9d", "team": "red"}, object{}
	for n := range 8 {
		labels[fmt.Sprintf("example.com/label-%d", n)] = "value"
		annotations[fmt.Sprintf("example.com/annotation-%d", n)] = fmt.Sprintf("%0128d", n)
	}
	p := kubeapitest.Pod(node, "ml", podName(i), podUID(i),
		object{"metadata": kubeapitest.Owned("apps/v1", "ReplicaSet", replicaSet(i), "rs-"+replicaSet(i))},
		object{"metadata": object{"labels": labels, "annotations": annotations, "creationTimestamp": "2026-11-15T00:00:00Z"}},
		kubeapitest.Containers("main", containerID(i)),
		object{"status": object{"conditions": conditions, "podIP": fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255), "startTime": "2026-11-15T00:00:00Z"}})
	p["spec"].(object)["containers"] = []object{{"name": "main", "image": "registry.example.com/ml/trainer:1.2.3", "env": env}}
	return p
}
