package kubernetes

import (
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload"
	"github.com/gpumeter/gpumeter/internal/workload/cgroup"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi"
	"github.com/gpumeter/gpumeter/internal/workload/kubelet"
)

// builder derives workloads and grants from what is known at one moment.
type builder struct {
	cfg      Config
	api      API // nil if it may not be used
	current  bool
	snapshot kubelet.Snapshot
	stale    bool

	grants []workload.Grant
	wait   bool
	// refused are the pods whose slices contradict what the kubelet gave, as namespace/name.
	refused []string
}

// replica identifies the device behind a set of replicas.
type replica struct{ resource, base string }

func (b *builder) build() {
	offered, given := map[replica]int{}, map[replica]int{}
	for resource, ids := range b.snapshot.Offered {
		for _, id := range ids {
			offered[replica{resource, b.base(resource, id)}]++
		}
	}
	type running struct {
		kubelet.Allocation
		workload workload.Workload
	}
	var list []running
	for _, a := range b.snapshot.Allocations {
		p := b.named(a.Namespace, a.Pod)
		if p.Phase == "Succeeded" || p.Phase == "Failed" {
			continue
		}
		w := b.workload(p, a.Container, "")
		if b.sliced(a, p, w) {
			continue
		}
		list = append(list, running{a, w})
		for _, id := range a.DeviceIDs {
			given[replica{a.Resource, b.base(a.Resource, id)}]++
		}
	}
	holders := map[claimed]map[string]bool{} // by workload ID
	for _, a := range list {
		b.devices(a.Allocation, a.workload, offered, given)
		for _, d := range a.Claims {
			if !b.holds(d) {
				continue
			}
			if holders[claimOf(d)] == nil {
				holders[claimOf(d)] = map[string]bool{}
			}
			holders[claimOf(d)][a.workload.ID] = true
		}
	}
	for _, a := range list {
		seen := map[claimed]bool{}
		for _, d := range a.Claims {
			on := holders[claimOf(d)]
			if seen[claimOf(d)] || !on[a.workload.ID] {
				continue
			}
			seen[claimOf(d)] = true
			b.grants = append(b.grants, workload.Grant{
				Workload: a.workload, Device: workload.Ref{Resource: d.Driver, IDs: b.names(d)},
				Held: 1, Replicas: len(on), Stale: b.stale,
			})
		}
	}
}

// base returns the device that id is a replica of, or id itself.
func (b *builder) base(resource, id string) string {
	return workload.Base(b.cfg.Vendors.Resource(resource), id)
}

// claimed identifies a device of a claim.
type claimed struct{ driver, pool, device string }

func claimOf(d kubelet.ClaimDevice) claimed { return claimed{d.Driver, d.Pool, d.Device} }

// devices adds the grants of a device plugin.
func (b *builder) devices(a kubelet.Allocation, w workload.Workload, offered, given map[replica]int) {
	resource := b.cfg.Vendors.Resource(a.Resource)
	if resource.Unit == device.NoDevice {
		return
	}
	held := map[string]int{}
	var order []string
	for _, id := range a.DeviceIDs {
		base := workload.Base(resource, id)
		if held[base] == 0 {
			order = append(order, base)
		}
		held[base]++
	}
	for _, base := range order {
		r := replica{a.Resource, base}
		b.grants = append(b.grants, workload.Grant{
			Workload: w, Device: workload.Ref{Resource: a.Resource, IDs: []string{base}},
			// If the kubelet does not report what is offered, or no longer offers a replica
			// that is allocated, the shares must still not exceed the device.
			Held: held[base], Replicas: max(offered[r], given[r], 1), Stale: b.stale,
		})
	}
}

// holds reports whether the holder of a claim holds its device.
func (b *builder) holds(d kubelet.ClaimDevice) bool {
	if b.cfg.Vendors.Resource(d.Driver).Unit == device.NoDevice {
		return false
	}
	if b.api == nil {
		return true
	}
	switch b.api.Access(d.ClaimNamespace, d.ClaimName, d.Driver, d.Pool, d.Device) {
	case kubeapi.AccessAdmin:
		return false
	case kubeapi.AccessPending:
		b.wait = true // no holder for a moment is better than the wrong one
		return false
	}
	return true
}

// names returns the names of a claimed device.
func (b *builder) names(d kubelet.ClaimDevice) []string {
	if b.api != nil {
		if ids, ok := b.api.Claimed(d.Driver, d.Pool, d.Device); ok {
			return ids
		}
	}
	var ids []string
	for _, name := range d.CDI { // such as nvidia.com/gpu=GPU-...
		// A bare number may name a device of any vendor.
		if _, id, ok := strings.Cut(name, "="); ok && strings.Trim(id, "0123456789") != "" {
			ids = append(ids, id)
		}
	}
	return append(ids, kubeapi.Names(d.Device)...)
}

// named returns what is known about the pod that currently has the name.
func (b *builder) named(namespace, name string) kubeapi.Pod {
	var p kubeapi.Pod
	ok := false
	if b.api != nil {
		p, ok = b.api.PodByName(namespace, name)
	}
	if ok && b.current {
		return p
	}
	uid := b.uid(namespace, name)
	if ok {
		// While the API server does not answer, the pod may have been replaced by another
		// of the same name, as in a StatefulSet. The log directories would show that.
		q, same := b.api.PodByUID(uid)
		if uid == "" || same && q.UID == p.UID {
			return p
		}
	}
	return kubeapi.Pod{UID: uid, Namespace: namespace, Name: name}
}

func (b *builder) uid(namespace, name string) string {
	if b.cfg.Logs == nil {
		return ""
	}
	uid, _ := b.cfg.Logs.UID(namespace, name)
	return uid
}

// container returns the workload of a container.
func (b *builder) container(c cgroup.Container) (workload.Workload, bool) {
	var logged kubelet.LogName
	if b.cfg.Logs != nil {
		logged, _ = b.cfg.Logs.Container(c.ID)
	}
	if p, ok := b.podOf(c); ok {
		name := p.ContainerIDs[c.ID]
		if name == "" {
			name = logged.Container // the pod's status lags behind
		}
		if name == "" && len(p.Containers) == 1 {
			name = p.Containers[0]
		}
		return b.workload(p, name, c.ID), true
	}
	p := kubeapi.Pod{UID: c.PodUID, Namespace: logged.Namespace, Name: logged.Pod}
	if p.Name == "" && b.cfg.Logs != nil {
		n, _ := b.cfg.Logs.Pod(c.PodUID)
		p.Namespace, p.Name = n.Namespace, n.Pod
	}
	if p.UID == "" && p.Name != "" {
		p.UID = b.uid(p.Namespace, p.Name)
	}
	if p.UID == "" {
		return workload.Workload{}, false // not a container of this cluster
	}
	return b.workload(p, logged.Container, c.ID), true
}

// podOf looks up the pod of a container in the API.
func (b *builder) podOf(c cgroup.Container) (kubeapi.Pod, bool) {
	switch {
	case b.api == nil:
		return kubeapi.Pod{}, false
	case c.PodUID != "":
		return b.api.PodByUID(c.PodUID)
	}
	return b.api.PodByContainer(c.ID)
}

// attributeOf maps owner kinds to OpenTelemetry attribute names.
// https://opentelemetry.io/docs/specs/semconv/resource/k8s/
var attributeOf = map[string]string{
	"deployment":  "k8s.deployment.name",
	"statefulset": "k8s.statefulset.name",
	"daemonset":   "k8s.daemonset.name",
	"job":         "k8s.job.name",
	"cronjob":     "k8s.cronjob.name",
	"replicaset":  "k8s.replicaset.name",
}

// workload returns the workload of a container of p. Both its name and its id may be
// unknown.
func (b *builder) workload(p kubeapi.Pod, container, id string) workload.Workload {
	w := workload.Workload{Kind: "pod", Name: p.Name, Team: p.Team, Attributes: map[string]string{}}
	if p.UID != "" && !p.Created.IsZero() {
		w.Job = &workload.Job{
			ID: "pod/" + p.UID, Scheduler: "kubernetes", Queue: p.Namespace, Created: p.Created, Started: p.Started, Restarted: p.Restarted,
		}
	}
	for _, page := range p.Pages {
		w.Pages = append(w.Pages, workload.Page(page))
	}
	if p.Owner != (kubeapi.Owner{}) {
		w.Kind, w.Name = p.Owner.Kind, p.Owner.Name
	}
	if w.Name == "" {
		w.Name = p.UID
	}
	if w.Team == "" {
		w.Team = b.cfg.Teams[p.Namespace]
	}
	set := func(key, value string) {
		if value != "" && w.Attributes[key] == "" {
			w.Attributes[key] = value
		}
	}
	set(workload.KeyQueue, p.Queue)
	set("k8s.namespace.name", p.Namespace)
	set("k8s.pod.name", p.Name)
	set("k8s.pod.uid", p.UID)
	set("k8s.container.name", container)
	if container == "" {
		set("container.id", id)
	}
	for _, o := range p.Owners {
		// A ReplicaSet's name changes with every rollout of its Deployment.
		if key := attributeOf[o.Kind]; key != "" && (o.Kind != "replicaset" || o == p.Owner) {
			set(key, o.Name)
		}
	}
	for k, v := range p.Labels {
		set("k8s.pod.label."+k, v)
	}
	of := p.UID
	if of == "" {
		of = p.Namespace + "/" + p.Name
	}
	if container == "" {
		container = id
	}
	w.ID = "pod/" + of + "/" + container
	return w
}
