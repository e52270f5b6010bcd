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

// labels returns those that say whose a series is.
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

// labels returns those that say what a series is of, and whose that is.
func (p gpuProcess) labels() map[string]string {
	labels := p.container.labels()
	labels["gpu_uuid"] = gpuUUID(p.gpu)
	if p.slot >= 0 {
		labels["gpu_partition_id"], labels["gpu_partition_profile"] = migUUID(p.slot), "1g.18gb"
	}
	return labels
}

// with returns a copy of labels with one more.
func with(labels map[string]string, key, value string) map[string]string {
	labels = maps.Clone(labels)
	labels[key] = value
	return labels
}

// rest returns the labels of the part of a GPU that nobody has.
func rest(gpu int) map[string]string {
	return map[string]string{"gpu_workload_kind": "unallocated", "gpu_uuid": gpuUUID(gpu)}
}

// answer is what a query should give: values by labels.
type answer map[string]string

func (a answer) add(labels map[string]string, value float64) {
	a[fmt.Sprint(labels)] = strconv.FormatFloat(value, 'f', 6, 64)
}

// of returns a query for a metric with all labels but those that all series of the node or
// of a GPU have, and drop. It leaves %s for the selector of a path.
func of(metric, selector string, drop ...string) string {
	drop = append([]string{
		"job", "instance", "__type__", "__unit__", "gpu_index", "gpu_model", "gpu_vendor", "host_name", "k8s_node_name",
	}, drop...)
	return fmt.Sprintf("sum without (%s) (%s{%s%%s})", strings.Join(drop, ", "), metric, selector)
}

// What people are asked to pay for is theirs: every way to get a GPU gives exactly the
// labels of who has it, by both paths, and what nobody has is nobody's.
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
			if p.gpu != slicedGPU { // of which two have a part
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
	// A counter of a device goes on when its owner changes.
	k.expect(of("gpu_energy_joules_total", `gpu_workload_kind!="", `), answer{})

	// Two pods on one GPU share what it does by what their kernels need.
	shares := answer{}
	for app, part := range map[string]float64{"quick": 0.6, "slow": 0.2} {
		shares.add(with(k.on[app][0].labels(), "gpu_share_basis", "process"), part)
	}
	k.expect(of("gpu_workload_utilization_ratio", fmt.Sprintf(`gpu_uuid=%q, k8s_pod_uid!="", `, gpuUUID(slicedGPU))), shares)
	k.expectStatus("kubelet", "ok")
	k.expectStatus("kubernetes_api", "ok")
	k.expectStatus("resolver", "not_requested") // the thief
}

// expectStatus waits until the agent says of a source what it should, and nothing else.
func (k *kubeTest) expectStatus(source, reason string) {
	k.t.Helper()
	want := answer{}
	want.add(map[string]string{"gpumeter_attribution_reason": reason, "gpumeter_attribution_source": source}, 1)
	k.expect(of("gpumeter_attribution_status", fmt.Sprintf("gpumeter_attribution_source=%q, ", source)), want)
}

// expectReason waits until what the agent says of a source has a reason and is not ok. It
// may lack several things at once.
func (k *kubeTest) expectReason(source, reason string) {
	k.t.Helper()
	want := answer{}
	want.add(map[string]string{"gpumeter_attribution_reason": reason, "gpumeter_attribution_source": source}, 1)
	k.expect(of("gpumeter_attribution_status", fmt.Sprintf(`gpumeter_attribution_source=%q, gpumeter_attribution_reason=~"ok|%s", `, source, reason)), want)
}

// soon is when the last trace of an owner must be gone: the agent may have asked the
// kubelet just before, and have read the GPUs just before it asked again. The third
// interval is for a busy machine.
const soon = 3 * kubeInterval

// A pod that is replaced by one of the same name gets no more of the bill, and what it
// has to pay has arrived. The same is true of the pods of a deployment.
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
	all := answer{} // nobody had it for a moment, in which it used nothing
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
		return fmt.Errorf("it is there (%w)", err)
	})
	return time.Now()
}

// checkGone fails the test if anything but the sums of an owner was there by either path
// soon after it was gone, or if one path has other sums than the other.
func (k *kubeTest) checkGone(old gpuProcess, gone time.Time) {
	k.t.Helper()
	want := answer{}
	for _, sum := range []string{"energy_joules", "allocated_time_seconds", "active_time_seconds", "idle_time_seconds"} {
		want.add(map[string]string{"__name__": "gpu_workload_" + sum + "_total"}, 1)
	}
	time.Sleep(time.Until(gone.Add(soon))) // a database cannot be asked about the future
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
