//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
)

// labels returns the labels that identify the owner of a series.
func (c container) labels() map[string]string {
	labels := map[string]string{
		"gpu_workload_kind": c.kind, "gpu_workload_name": c.owner, "k8s_namespace_name": c.namespace,
		"k8s_pod_name": c.pod, "k8s_pod_uid": c.uid, "k8s_container_name": c.name,
	}
	if c.kind != "pod" {
		labels["k8s_"+c.kind+"_name"] = c.owner
	}
	return labels
}

// labels returns the labels that identify the device and the owner of a series.
func (p gpuProcess) labels() map[string]string {
	labels := p.container.labels()
	labels["gpu_uuid"] = gpuUUID(p.gpu)
	if p.slot >= 0 {
		labels["gpu_partition_id"], labels["gpu_partition_profile"] = migUUID(p.slot), "1g.18gb"
	}
	return labels
}

// with returns a copy of labels with one more label.
func with(labels map[string]string, key, value string) map[string]string {
	labels = maps.Clone(labels)
	labels[key] = value
	return labels
}

// rest returns the labels of the free part of a GPU.
func rest(gpu int) map[string]string {
	return map[string]string{"gpu_workload_kind": "unallocated", "gpu_uuid": gpuUUID(gpu)}
}

// answer is the expected result of a query: values by labels.
type answer map[string]string

func (a answer) add(labels map[string]string, value float64) {
	a[fmt.Sprint(labels)] = strconv.FormatFloat(value, 'f', 6, 64)
}

// of returns a query for a metric without the labels that all series of the node or of a GPU have, and
// without drop. It leaves %s for the selector of a path.
func of(metric, selector string, drop ...string) string {
	drop = append([]string{
		"job", "instance", "__type__", "__unit__", "gpu_index", "gpu_model", "gpu_vendor", "host_name", "k8s_node_name",
	}, drop...)
	return fmt.Sprintf("sum without (%s) (%s{%s%%s})", strings.Join(drop, ", "), metric, selector)
}

// Catches usage charged to the wrong owner: every way to get a GPU must give exactly the labels of its
// holder, on both paths, and free parts belong to nobody.
func (k *kubeTest) owners() {
	k.watch(asAgent)
	held, owned := answer{}, answer{}
	for app, processes := range k.on {
		part := 1.0
		switch app {
		case "slice":
			part = 1.0 / 7
		case "quick", "slow":
			part = 1.0 / replicas
		}
		for _, p := range processes {
			held.add(p.labels(), part)
			if p.gpu != slicedGPU { // shared by two
				owned.add(p.labels(), 1)
			}
		}
	}
	free := answer{}
	free.add(rest(cutGPU), 6.0/7)
	free.add(rest(slicedGPU), 1-2.0/replicas)
	k.expect(of("gpu_allocation_ratio", "", "gpu_share_basis"), held)
	k.expect(of("gpu_unallocated_ratio", "")+" > 0", free)
	k.expect(strings.Replace(of("", `__name__=~"gpu_(partition_)?memory_used_bytes", gpu_workload_kind!="", `), "sum", "count", 1), owned)
	// A counter of a device continues when its owner changes.
	k.expect(of("gpu_energy_joules_total", `gpu_workload_kind!="", `), answer{})

	// Two pods on one GPU share its usage in proportion to their kernels.
	shares := answer{}
	for app, part := range map[string]float64{"quick": 0.6, "slow": 0.2} {
		shares.add(with(k.on[app][0].labels(), "gpu_share_basis", "process"), part)
	}
	k.expect(of("gpu_workload_utilization_ratio", fmt.Sprintf(`gpu_uuid=%q, k8s_pod_uid!="", `, gpuUUID(slicedGPU))), shares)
	k.expectStatus("kubelet", "ok")
	k.expectStatus("kubernetes_api", "ok")
	k.expectStatus("resolver", "not_requested") // the thief
}

// expectStatus waits until the agent reports exactly this reason for a source.
func (k *kubeTest) expectStatus(source, reason string) {
	k.t.Helper()
	want := answer{}
	want.add(map[string]string{"gpumeter_attribution_reason": reason, "gpumeter_attribution_source": source}, 1)
	k.expect(of("gpumeter_attribution_status", fmt.Sprintf("gpumeter_attribution_source=%q, ", source)), want)
}

// expectReason waits until the agent reports a reason for a source and not ok. A source may have several
// reasons.
func (k *kubeTest) expectReason(source, reason string) {
	k.t.Helper()
	want := answer{}
	want.add(map[string]string{"gpumeter_attribution_reason": reason, "gpumeter_attribution_source": source}, 1)
	k.expect(of("gpumeter_attribution_status", fmt.Sprintf(`gpumeter_attribution_source=%q, gpumeter_attribution_reason=~"ok|%s", `, source, reason)), want)
}

// soon is when the last trace of an owner must be gone: the agent may have queried the kubelet just before,
// and read the GPUs just before the next query. The third interval is slack for a busy machine.
const soon = 3 * kubeInterval

// Catches a replaced pod of the same name that is still charged, or whose last usage did not arrive. The
// same holds for the pods of a deployment.
func (k *kubeTest) replaced() {
	k.watch(asAgent)
	old := k.on["solo"][0]
	gpu := old.gpu
	sums := func(metric string) string { return of(metric, fmt.Sprintf("gpu_uuid=%q, ", gpuUUID(gpu))) }
	joules := answer{}
	joules.add(old.labels(), 0)
	k.expect(sums("gpu_workload_energy_joules_total"), joules)
	k.burn(k.t, gpu, 500)
	joules.add(old.labels(), 500)
	k.expect(sums("gpu_workload_energy_joules_total"), joules)

	gone := k.remove("solo")
	k.runPod(red, "solo", wholeGPU, 1)
	k.use(k.t, "solo", k.running(red, "solo", old.container))
	now := k.on["solo"][0]
	if now.gpu != gpu || now.uid == old.uid {
		k.t.Fatalf("GPU %d was given to %+v, not to another pod", gpu, now)
	}
	held := answer{}
	held.add(now.labels(), 1)
	k.expect(of("gpu_allocation_ratio", fmt.Sprintf("gpu_uuid=%q, ", gpuUUID(gpu)), "gpu_share_basis"), held)
	k.burn(k.t, gpu, 300)
	joules.add(now.labels(), 300)
	k.expect(of("gpu_workload_energy_joules_total", fmt.Sprintf(`gpu_uuid=%q, k8s_pod_uid!="", `, gpuUUID(gpu))), joules)
	all := answer{} // it was free for a moment, without usage
	all.add(map[string]string{}, 800)
	k.expect(fmt.Sprintf("sum(gpu_workload_energy_joules_total{gpu_uuid=%q, %%s})", gpuUUID(gpu)), all)
	k.checkGone(old, gone)

	serve := k.on["serve"][0]
	gone = k.remove("serve")
	k.use(k.t, "serve", k.running(red, "serve", serve.container))
	held = answer{}
	held.add(k.on["serve"][0].labels(), 1)
	k.expect(of("gpu_allocation_ratio", `k8s_deployment_name="serve", `, "gpu_share_basis"), held)
	k.checkGone(serve, gone)
}

// remove deletes the pod of an app and returns when it was gone.
func (k *kubeTest) remove(app string) time.Time {
	k.t.Helper()
	path := k.on[app][0].path()
	k.api.remove(path)
	k.end(k.t, app)
	eventually(k.t, path+" is gone", func() error {
		err := k.api.get(path, nil)
		if errors.Is(err, errNotFound) {
			return nil
		}
		return fmt.Errorf("it still exists (%w)", err)
	})
	return time.Now()
}

// checkGone fails the test if anything but the sums of an owner existed on either path soon after the owner
// was gone, or if the sums differ between the paths.
func (k *kubeTest) checkGone(old gpuProcess, gone time.Time) {
	k.t.Helper()
	want := answer{}
	for _, sum := range []string{"energy_joules", "allocated_time_seconds", "active_time_seconds", "idle_time_seconds"} {
		want.add(map[string]string{"__name__": "gpu_workload_" + sum + "_total"}, 1)
	}
	time.Sleep(time.Until(gone.Add(soon))) // a database cannot be queried about the future
	last := map[string]map[string]string{}
	for path, selector := range paths {
		all := fmt.Sprintf("{k8s_pod_uid=%q, %s}", old.uid, selector)
		last[path] = k.db.at(all, gone.Add(soon))
		if diff := cmp.Diff(map[string]string(want), k.rounded("count by (__name__) ("+all+")", gone.Add(soon))); diff != "" {
			k.t.Errorf("series of %s by %s after it was gone (-want +got):\n%s", old.pod, path, diff)
		}
	}
	if diff := cmp.Diff(last["page"], last["OTLP"]); diff != "" {
		k.t.Errorf("the last values of %s (-page +OTLP):\n%s", old.pod, diff)
	}
}
