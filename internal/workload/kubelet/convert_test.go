package kubelet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpumeter/gpumeter/internal/workload/kubelet/kubelettest"
)

// claims returns a container that holds devices through claims.
func claims(name string, list ...*podresources.DynamicResource) *podresources.ContainerResources {
	return &podresources.ContainerResources{Name: name, DynamicResources: list}
}

func claim(name string, list ...*podresources.ClaimResource) *podresources.DynamicResource {
	return &podresources.DynamicResource{ClaimNamespace: "ml", ClaimName: name, ClaimResources: list}
}

func TestConvert(t *testing.T) {
	f := func(want []Allocation, pods ...*podresources.PodResources) {
		t.Helper()
		got, refused := convert(&podresources.ListPodResourcesResponse{PodResources: pods})
		if diff := cmp.Diff(want, got); diff != "" || refused != 0 {
			t.Errorf("%d refused (-want +got):\n%s", refused, diff)
		}
	}
	gpu := func(container string, ids ...string) Allocation {
		return Allocation{Namespace: "ml", Pod: "p", Container: container, Resource: "nvidia.com/gpu", DeviceIDs: ids}
	}
	devices := func(ids ...string) []*podresources.ContainerDevices {
		return kubelettest.Devices("nvidia.com/gpu", ids...)
	}
	const pod = "p"

	f(nil)
	f(nil, kubelettest.Pod("ml", pod), kubelettest.Pod("ml", "q", kubelettest.Container("c")))
	// One entry per device is one allocation.
	f([]Allocation{gpu("c", "GPU-1", "GPU-2")}, kubelettest.Pod("ml", pod, kubelettest.Container("c", devices("GPU-2", "GPU-1")...)))
	// One entry for all devices, from a plugin without topology.
	f([]Allocation{gpu("c", "GPU-1", "GPU-2")}, kubelettest.Pod("ml", pod,
		kubelettest.Container("c", &podresources.ContainerDevices{ResourceName: "nvidia.com/gpu", DeviceIds: []string{"GPU-1", "GPU-2"}})))
	// Replicas are not the same device twice.
	f([]Allocation{gpu("c", "GPU-1::0", "GPU-1::3")}, kubelettest.Pod("ml", pod, kubelettest.Container("c", devices("GPU-1::3", "GPU-1::0")...)))
	// A device that is listed twice is one device.
	f([]Allocation{gpu("c", "GPU-1")}, kubelettest.Pod("ml", pod, kubelettest.Container("c", devices("GPU-1", "GPU-1")...)))
	// Two resources of a container, and a sidecar that is an init container.
	f([]Allocation{
		gpu("c", "GPU-1"),
		{Namespace: "ml", Pod: "p", Container: "c", Resource: "nvidia.com/mig-1g.10gb", DeviceIDs: []string{"MIG-1"}},
		gpu("sidecar", "GPU-2"),
	}, kubelettest.Pod("ml", pod, kubelettest.Container("sidecar", devices("GPU-2")...), kubelettest.Container("none"),
		kubelettest.Container("c", slices.Concat(kubelettest.Devices("nvidia.com/mig-1g.10gb", "MIG-1"), devices("GPU-1"))...)))
	// A container may have both, and one claim may have devices of two drivers.
	c := claims("c",
		claim("gpus",
			&podresources.ClaimResource{DriverName: "gpu.nvidia.com", PoolName: "node1", DeviceName: "gpu-0", CdiDevices: []*podresources.CDIDevice{{Name: "k8s.gpu.nvidia.com/device=gpu-0"}}},
			&podresources.ClaimResource{DriverName: "gpu.nvidia.com", PoolName: "node1", DeviceName: "gpu-1", ShareId: new("s1")},
			&podresources.ClaimResource{DriverName: "compute-domain.nvidia.com", PoolName: "node1", DeviceName: "channel-0"}),
		claim("old", &podresources.ClaimResource{CdiDevices: []*podresources.CDIDevice{{Name: "k8s.gpu.example.com/claim=x"}}}))
	c.Devices = devices("GPU-9")
	f([]Allocation{
		{Namespace: "ml", Pod: "p", Container: "c", Resource: "compute-domain.nvidia.com", Claims: []ClaimDevice{
			{ClaimNamespace: "ml", ClaimName: "gpus", Driver: "compute-domain.nvidia.com", Pool: "node1", Device: "channel-0"},
		}},
		{Namespace: "ml", Pod: "p", Container: "c", Resource: "gpu.nvidia.com", Claims: []ClaimDevice{
			{ClaimNamespace: "ml", ClaimName: "gpus", Driver: "gpu.nvidia.com", Pool: "node1", Device: "gpu-0", CDI: []string{"k8s.gpu.nvidia.com/device=gpu-0"}},
			{ClaimNamespace: "ml", ClaimName: "gpus", Driver: "gpu.nvidia.com", Pool: "node1", Device: "gpu-1", ShareID: "s1"},
		}},
		{Namespace: "ml", Pod: "p", Container: "c", Resource: "k8s.gpu.example.com/claim", Claims: []ClaimDevice{
			{ClaimNamespace: "ml", ClaimName: "old", CDI: []string{"k8s.gpu.example.com/claim=x"}},
		}},
		gpu("c", "GPU-9"),
	}, kubelettest.Pod("ml", pod, c))
	// A claim shared by two pods is listed for both.
	shared := claim("shared", &podresources.ClaimResource{DriverName: "d", PoolName: "n", DeviceName: "x"})
	held := []ClaimDevice{{ClaimNamespace: "ml", ClaimName: "shared", Driver: "d", Pool: "n", Device: "x"}}
	f([]Allocation{
		{Namespace: "ml", Pod: "a", Container: "c", Resource: "d", Claims: held},
		{Namespace: "ml", Pod: "b", Container: "c", Resource: "d", Claims: held},
	}, kubelettest.Pod("ml", "b", claims("c", shared)), kubelettest.Pod("ml", "a", claims("c", shared)))
}

func TestConvertRefuses(t *testing.T) {
	f := func(wantKept, wantRefused int, pods ...*podresources.PodResources) {
		t.Helper()
		got, refused := convert(&podresources.ListPodResourcesResponse{PodResources: pods})
		if len(got) != wantKept || refused != wantRefused {
			t.Errorf("%d kept and %d refused, want %d and %d", len(got), refused, wantKept, wantRefused)
		}
	}
	long := strings.Repeat("x", maxName+1)
	device := kubelettest.Devices("r/d", "id")
	f(1, 1, kubelettest.Pod(long, "p", kubelettest.Container("c", device...)), kubelettest.Pod("ml", "p", kubelettest.Container("c", device...)))
	f(1, 1, kubelettest.Pod("ml", "p", kubelettest.Container("c", kubelettest.Devices("r/d", "id", long)...)))
	f(0, 1, kubelettest.Pod("ml", "p", kubelettest.Container("c", kubelettest.Devices("", "id")...)))
	f(0, 1, kubelettest.Pod("ml", "p", kubelettest.Container("c", kubelettest.Devices("r/d", "")...)))
	f(0, 3, kubelettest.Pod("ml", "p", claims("c", claim("x",
		&podresources.ClaimResource{DriverName: "d"},
		&podresources.ClaimResource{DriverName: "d", DeviceName: "y", PoolName: long},
		&podresources.ClaimResource{DriverName: "d", CdiDevices: []*podresources.CDIDevice{{}}}))))
	f(0, 1, kubelettest.Pod("ml", "p", claims("c", claim(long, &podresources.ClaimResource{DriverName: "d", DeviceName: "y"}))))

	var many []*podresources.PodResources
	for i := range maxContainers + 5 {
		many = append(many, kubelettest.Pod("ml", fmt.Sprint(i), kubelettest.Container("c", device...)))
	}
	f(maxContainers, 5, many...)
	ids := make([]string, maxDevices+7)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	f(1, 7+1, kubelettest.Pod("ml", "p", kubelettest.Container("c", kubelettest.Devices("r/d", ids...)...)), kubelettest.Pod("ml", "q", kubelettest.Container("c", device...)))
	if got, refused := offered(&podresources.AllocatableResourcesResponse{Devices: kubelettest.Devices("r/d", ids...)}); len(got["r/d"]) != maxDevices || refused != 7 {
		t.Errorf("%d offered and %d refused", len(got["r/d"]), refused)
	}
}

// captures are real files that are not part of this repository.
const captures = "../../../../shared/fixtures/k8s-real/podresources-list.json"

func TestConvertCapture(t *testing.T) {
	file, err := os.Open(captures)
	if err != nil {
		t.Skipf("no capture of a real kubelet: %v", err)
	}
	defer file.Close()
	var list podresources.ListPodResourcesResponse
	var all podresources.AllocatableResourcesResponse
	parts := json.NewDecoder(file) // both answers, one after the other
	for _, m := range []proto.Message{&list, &all} {
		var part json.RawMessage
		if err := errors.Join(parts.Decode(&part), protojson.Unmarshal(part, m)); err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := offered(&all); len(got["nvidia.com/gpu"]) != 8 {
		t.Errorf("offered are %v", got)
	}
	got, refused := convert(&list)
	var lines []string
	for _, a := range got {
		lines = append(lines, fmt.Sprint(a.Namespace, "/", a.Pod, "/", a.Container, " ", a.Resource, " ", len(a.DeviceIDs)))
	}
	want := []string{
		"default/batchjob-gm768/j nvidia.com/gpu 1",
		"default/toobig/j nvidia.com/gpu 4",
		"default/train-6f58d465bd-kvbqx/main nvidia.com/gpu 2",
		"default/train-6f58d465bd-kvbqx/rsc nvidia.com/gpu 1", // a restartable init container
	}
	if diff := cmp.Diff(want, lines); diff != "" || refused != 0 {
		t.Errorf("%d refused (-want +got):\n%s", refused, diff)
	}
}

// FuzzConvert checks that no answer exceeds the limits or makes up names.
func FuzzConvert(f *testing.F) {
	for _, m := range []proto.Message{
		&podresources.ListPodResourcesResponse{},
		&podresources.ListPodResourcesResponse{PodResources: onePod},
		&podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{kubelettest.Pod("ml", "p", claims("c", claim("x",
			&podresources.ClaimResource{DriverName: "d", PoolName: "n", DeviceName: "y", ShareId: new("s"), CdiDevices: []*podresources.CDIDevice{{Name: "k/d=1"}}})))}},
		&podresources.AllocatableResourcesResponse{Devices: oneOffered},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var list podresources.ListPodResourcesResponse
		if proto.Unmarshal(b, &list) == nil {
			got, _ := convert(&list)
			for _, a := range got {
				if a.Resource == "" || len(a.DeviceIDs)+len(a.Claims) == 0 || !slices.IsSorted(a.DeviceIDs) || len(slices.Compact(slices.Clone(a.DeviceIDs))) != len(a.DeviceIDs) {
					t.Errorf("bad allocation %+v", a)
				}
				for _, id := range a.DeviceIDs {
					if !bytes.Contains(b, []byte(id)) {
						t.Errorf("id %q was invented", id)
					}
				}
			}
		}
		var all podresources.AllocatableResourcesResponse
		if proto.Unmarshal(b, &all) == nil {
			got, _ := offered(&all)
			for resource, ids := range got {
				if resource == "" || len(ids) == 0 || len(ids) > maxDevices || !slices.IsSorted(ids) {
					t.Errorf("bad offer %q: %v", resource, ids)
				}
			}
		}
	})
}
