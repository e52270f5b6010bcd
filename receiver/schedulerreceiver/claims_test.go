package schedulerreceiver

import (
	"fmt"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube/dra"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi/kubeapitest"
)

const resourceAPI = "resource.k8s.io/v1"

// claims gives a server a node with 4 GPUs for claims, of which two pods share one, and a pod that waits for 8.
func claims(s *kubeapitest.Server) {
	s.Install(resourceAPI, kubeapitest.Resource{Name: "resourceclaims", Kind: "ResourceClaim", Namespaced: true},
		kubeapitest.Resource{Name: "resourceslices", Kind: "ResourceSlice"}, kubeapitest.Resource{Name: "deviceclasses", Kind: "DeviceClass"})
	put := func(kind, name string, o object) {
		o["apiVersion"], o["kind"], o["metadata"] = resourceAPI, kind, object{"namespace": "dra", "name": name, "uid": "u-" + name}
		s.PutObject(o)
	}
	devices := []object{}
	for i := range 4 {
		devices = append(devices, object{"name": fmt.Sprint(i), "attributes": object{"type": object{"string": "gpu"}, "productName": object{"string": "B200"}}})
	}
	put("ResourceSlice", "gn9", object{"spec": object{"driver": "gpu.nvidia.com", "nodeName": "gn9", "pool": object{"name": "gn9"}, "devices": devices}})
	put("DeviceClass", "gpu.nvidia.com", object{"spec": object{"selectors": []object{{"cel": object{"expression": "device.driver == 'gpu.nvidia.com'"}}}}})
	asks := func(count int) object {
		return object{"devices": object{"requests": []object{{"name": "r", "exactly": object{"deviceClassName": "gpu.nvidia.com", "count": count}}}}}
	}
	put("ResourceClaim", "shared", object{"spec": asks(1), "status": object{
		"allocation":  object{"devices": object{"results": []object{{"request": "r", "driver": "gpu.nvidia.com", "pool": "gn9", "device": "0"}}}},
		"reservedFor": []object{{"resource": "pods", "uid": "u-one"}, {"resource": "pods", "uid": "u-two"}},
	}})
	put("ResourceClaim", "eight", object{"spec": asks(8)})
	s.PutNode(kubeapitest.Node("gn9", object{"status": object{"allocatable": object{"cpu": "64", "memory": "500Gi", "pods": "110"}}}))
	pod := func(at, name, claim string) {
		s.PutPod(kubeapitest.Pod(at, "dra", name, "u-"+name, object{
			"metadata": object{"labels": object{"team": "nlp"}},
			"spec":     object{"resourceClaims": []object{{"name": "gpus", "resourceClaimName": claim}}},
		}))
	}
	pod("gn9", "one", "shared")
	pod("gn9", "two", "shared")
	pod("", "many", "eight")
}

// Catches a pod that asks only by a claim and is not counted, a device that counts for each of the pods that share it, and a
// missing permission for claims that costs more than the claims or is logged more than once.
func TestKubernetesClaims(t *testing.T) {
	s := queued()
	claims(s)
	url, stop := s.Serve()
	defer stop()
	sink, logs := kubernetes(t, url)
	want := map[string]float64{
		"scheduler.claim.count gpu.nvidia.com gpu.nvidia.com allocated": 1, "scheduler.claim.count gpu.nvidia.com gpu.nvidia.com pending": 1,
		"scheduler.claim.device.count gpu.nvidia.com gpu.nvidia.com allocated whole": 1, "scheduler.claim.device.count gpu.nvidia.com gpu.nvidia.com pending whole": 8,
		"scheduler.gpu.allocated B200 dra nlp": 1, "scheduler.gpu.pending B200 new dra nlp": 8, "scheduler.job.count running dra nlp": 2, "scheduler.job.count pending dra nlp": 1,
		"scheduler.gpu.count allocated B200": 1, "scheduler.gpu.count free B200": 3, "scheduler.job.count held ml vision": 1, "scheduler.up": 1,
	}
	has := func(want map[string]float64) {
		t.Helper()
		await.NoError(t, func() error {
			got := points(last(sink))
			maps.DeleteFunc(got, func(key string, _ float64) bool { _, ok := want[key]; return !ok })
			if diff := cmp.Diff(want, got); diff != "" {
				return fmt.Errorf("(-want +got):\n%s", diff)
			}
			return nil
		})
	}
	has(want)
	s.Fail("/apis/"+resourceAPI+"/resourceclaims", kubeapitest.Fault{Status: 403})
	s.DropWatches(false)
	await.True(t, "claims are absent", func() bool {
		got := points(last(sink))
		_, claims := got["scheduler.claim.count gpu.nvidia.com gpu.nvidia.com pending"]
		_, devices := got["scheduler.gpu.count free B200"]
		// What a pod asked for does not change: those that are known stay.
		return !claims && !devices && got["scheduler.up"] == 1 && got["scheduler.job.count running dra nlp"] == 2 && got["scheduler.job.count held ml vision"] == 1
	})
	s.Heal()
	has(want)
	if n := logs.FilterMessage("Some objects of the Kubernetes API may not be watched, and what they would tell is absent").Len(); n != 1 {
		t.Errorf("the missing permission is logged %d times", n)
	}
}

// Catches a series for each combination of classes that somebody thinks of, and claims that are lost beyond the limit.
func TestFoldClaims(t *testing.T) {
	all := map[dra.Group]int64{}
	for i := range maxClasses + 50 {
		all[dra.Group{State: dra.Pending, Class: fmt.Sprint("c", i), Driver: "d"}] = int64(i + 1)
		all[dra.Group{State: dra.Allocated, Class: fmt.Sprint("c", i), Driver: "d"}] = 1
	}
	out := foldClaims(all)
	sum := int64(0)
	for _, n := range out {
		sum += n
	}
	other := dra.Group{State: dra.Pending, Class: "other", Driver: "other"}
	if want := int64(150*151/2 + 150); sum != want || len(out) != 2*maxClasses+2 || out[other] != 50*51/2 {
		t.Errorf("%d claims in %d groups, %d of them pending in the common one", sum, len(out), out[other])
	}
}
