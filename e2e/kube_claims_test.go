//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
	"github.com/gpumeter/gpumeter/internal/workload/kubelet/kubelettest"
)

const (
	claimNode   = "node-b"
	claimDriver = "gpu.nvidia.com"
	resourceAPI = "/apis/resource.k8s.io/v1"
)

// claim is a ResourceClaim and its pods.
type claim struct {
	name, device string // device is the driver's name
	gpu, slot    int
	admin        bool
	pods         []string
}

// Catches claimed GPUs that are not attributed: their names are known only to the driver, a claim may be
// for a partition or shared by several pods, and admin access does not hold a GPU. The objects are in a
// real API server; the kubelet is a fake because a real one would need a driver.
func (k *kubeTest) claims() {
	claims := []claim{
		{name: "alone", device: "gpu-0", gpu: 0, slot: -1, pods: []string{"claimer"}},
		{name: "shared", device: "gpu-1", gpu: 1, slot: -1, pods: []string{"left", "right"}},
		{name: "cut", device: "gpu-3-mig-0", gpu: cutGPU, slot: 0, pods: []string{"slicer"}},
		{name: "admin", device: "gpu-0", gpu: 0, slot: -1, admin: true, pods: []string{"monitor"}},
	}
	k.api.patch("/api/v1/namespaces/"+blue, `{"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}`)
	k.api.create("/api/v1/nodes", "{apiVersion: v1, kind: Node, metadata: {name: "+claimNode+"}}")
	var devices []string
	for name, uuid := range map[string]string{"gpu-0": gpuUUID(0), "gpu-1": gpuUUID(1), "gpu-3-mig-0": migUUID(0)} {
		devices = append(devices, fmt.Sprintf("{name: %s, attributes: {uuid: {string: %s}}}", name, uuid))
	}
	k.api.create(resourceAPI+"/resourceslices", fmt.Sprintf(`{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {name: e2e},
spec: {driver: %s, nodeName: %[2]s, pool: {name: %[2]s, generation: 1, resourceSliceCount: 1}, devices: [%s]}}`,
		claimDriver, claimNode, strings.Join(devices, ", ")))

	want := answer{}
	var listed []*podresources.PodResources
	for _, c := range claims {
		k.createClaim(c)
		for _, name := range c.pods {
			listed = append(listed, kubelettest.Pod(blue, name, c.listed("main"), kubelettest.Container("sidecar")))
			p := gpuProcess{container: k.createClaimer(name, c.name), gpu: c.gpu, slot: c.slot}
			part := 1 / float64(len(c.pods))
			if c.slot >= 0 {
				part /= 7
			}
			if !c.admin {
				want.add(p.labels(), part)
			}
		}
	}
	free := answer{}
	free.add(rest(cutGPU), 6.0/7)
	for _, gpu := range []int{2, slicedGPU, 5, 6, secretGPU} {
		free.add(rest(gpu), 1)
	}

	root := k.t.TempDir()
	socket := filepath.Join(root, "var/lib/kubelet/pod-resources/kubelet.sock")
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		k.t.Fatal(err)
	}
	server, err := kubelettest.Start(socket)
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(server.Stop)
	server.Set(listed, nil)
	k.gpus = &gpus{host: nvmltest.New(k.t, gpuScript())}
	k.watchNode(asAgent, claimNode, root)
	k.expect(of("gpu_allocation_ratio", "", "gpu_share_basis"), want)
	k.expect(of("gpu_unallocated_ratio", "")+" > 0", free)
	k.expectStatus("kubernetes_api", "ok")
}

// createClaim creates a claim with an allocated device.
func (k *kubeTest) createClaim(c claim) {
	k.t.Helper()
	path := resourceAPI + "/namespaces/" + blue + "/resourceclaims"
	k.api.create(path, fmt.Sprintf(`{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: %s},
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: %s, adminAccess: %t}}]}}}`, c.name, claimDriver, c.admin))
	k.api.patch(path+"/"+c.name+"/status", fmt.Sprintf(
		`{"status": {"allocation": {"devices": {"results": [{"request": "gpu", "driver": %q, "pool": %q, "device": %q, "adminAccess": %t}]}}}}`,
		claimDriver, claimNode, c.device, c.admin))
}

// createClaimer creates a pod with a claim on the node. It stays pending without a kubelet.
func (k *kubeTest) createClaimer(name, claim string) container {
	k.t.Helper()
	uid := k.api.create("/api/v1/namespaces/"+blue+"/pods", fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {
nodeName: %s, resourceClaims: [{name: gpu, resourceClaimName: %s}],
containers: [{name: main, image: %[4]q, resources: {claims: [{name: gpu}]}}, {name: sidecar, image: %[4]q}]}}`, name, claimNode, claim, workerImage))
	return container{namespace: blue, pod: name, uid: uid, name: "main", kind: "pod", owner: name}
}

// listed returns a container with the claim, as the kubelet lists it.
func (c claim) listed(container string) *podresources.ContainerResources {
	return &podresources.ContainerResources{Name: container, DynamicResources: []*podresources.DynamicResource{{
		ClaimName: c.name, ClaimNamespace: blue,
		ClaimResources: []*podresources.ClaimResource{{DriverName: claimDriver, PoolName: claimNode, DeviceName: c.device}},
	}}}
}
