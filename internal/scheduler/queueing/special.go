package queueing

import (
	"math"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
)

// kueueLimits takes what ClusterQueues can have at most: their own quota and what they may borrow. Without a cohort there is
// nobody to borrow from, whatever the limit says; with one, +Inf is no limit.
func kueueLimits(r *reader) {
	lent := map[string]float64{}
	key := func(s sample) string {
		return s.Get("cluster_queue") + "\xff" + s.Get("flavor") + "\xff" + s.Get("resource")
	}
	for _, s := range r.gauges("kueue_cluster_queue_borrowing_limit") {
		lent[key(s)] = s.Value
	}
	unlimited := map[Point]bool{}
	for _, s := range r.gauges("kueue_cluster_queue_nominal_quota") {
		if !r.vendors.CountsDevices(s.Get("resource")) || !sensible(s.Value) {
			continue
		}
		p := Point{Name: Limit, Queue: clean(s.Get("cluster_queue")), Model: clean(s.Get("flavor"))}
		more, ok := lent[key(s)]
		switch {
		case s.Get("cohort") == "":
			r.Gauges[p] += s.Value
		case ok && sensible(more):
			r.Gauges[p] += s.Value + more
		default:
			unlimited[p] = true
		}
	}
	for p := range unlimited { // of one resource is no limit of all
		delete(r.Gauges, p)
	}
}

const quotaSpec, quotaStatus = "scheduler_elastic_quota_spec", "scheduler_elastic_quota_status"

// elasticQuotas takes Koordinator's quotas. A quota may be of devices, of hundredths of devices, or of both.
func elasticQuotas(r *reader) {
	parts := map[Point]float64{}
	whole := map[string]bool{} // queues with a quota of devices
	take := func(name Name, family, field string) {
		for _, s := range r.gauges(family) {
			if s.Get("field") != field || s.Get("is_parent") == "true" || !sensible(s.Value) {
				continue
			}
			p := Point{Name: name, Queue: clean(s.Get("name"))}
			switch resource := s.Get("resource"); {
			case r.vendors.CountsDevices(resource):
				whole[p.Queue] = true
				r.Gauges[p] += s.Value
			case resource == "koordinator.sh/gpu-core":
				parts[p] += s.Value / 100
			}
		}
	}
	take(Limit, quotaSpec, "max")
	take(Nominal, quotaSpec, "min")
	take(Used, quotaStatus, "used")
	take(asked, quotaStatus, "child-request") // what pods ask for; request is at least min for some quotas
	if !r.has(asked, parts) {
		take(asked, quotaStatus, "request")
	}
	take(entitled, quotaStatus, "runtime")
	for p, v := range parts {
		if !whole[p.Queue] {
			r.Gauges[p] = v
		}
	}
}

// has reports whether a number is known of any queue.
func (r *reader) has(name Name, more map[Point]float64) bool {
	for _, m := range []map[Point]float64{r.Gauges, more} {
		for p := range m {
			if p.Name == name {
				return true
			}
		}
	}
	return false
}

// Metrics of HAMi: by their names since 2.9, and by those before, which newer versions may have as well.
var (
	hamiMemory     = []string{"hami_gpu_memory_limit_bytes", "GPUDeviceMemoryLimit"}
	hamiCores      = []string{"hami_gpu_core_limit_ratio", "GPUDeviceCoreLimit"}
	hamiPodMemory  = []string{"hami_vgpu_memory_allocated_bytes", "vGPUMemoryAllocated", "vGPUPodsDeviceAllocated"}
	hamiPodCores   = []string{"hami_vgpu_core_allocated_ratio", "vGPUCoreAllocated"}
	hamiQuotaUsed  = []string{"hami_resource_quota_used", "QuotaUsed"}
	hamiQuotaLimit = []string{"hami_resource_quota_limit"}

	hamiFamilies = func() (out []string) {
		for _, list := range [][]string{hamiMemory, hamiCores, hamiPodMemory, hamiPodCores, hamiQuotaUsed, hamiQuotaLimit} {
			out = append(out, list...)
		}
		return out
	}()
)

// either returns the first of two labels that a series has.
func either(s sample, newer, older string) string {
	if v := s.Get(newer); v != "" {
		return v
	}
	return s.Get(older)
}

// hami takes the parts of devices that containers have, by namespace: of the memory or of the cores, whichever is more. The
// memory and the cores are divided by those of the device, so that their units do not matter: cores called a ratio are percent,
// or a number of cores.
func hami(r *reader) {
	type limits struct{ memory, cores float64 }
	devices, models := map[string]*limits{}, map[string]string{}
	each := func(names []string, f func(*limits, float64)) {
		for _, s := range r.gauges(names...) {
			id := either(s, "device_uuid", "deviceuuid")
			if !sensible(s.Value) || id == "" {
				r.Refused++
				continue
			}
			if devices[id] == nil {
				devices[id] = &limits{}
				models[id] = clean(either(s, "device_type", "devicetype"))
				r.Gauges[Point{Name: Capacity, Model: models[id]}]++
			}
			f(devices[id], s.Value)
		}
	}
	each(hamiMemory, func(l *limits, v float64) { l.memory = v })
	each(hamiCores, func(l *limits, v float64) { l.cores = v })
	type slice struct{ namespace, pod, container, device string }
	parts := map[slice]float64{}
	take := func(names []string, of func(*limits) float64) {
		for _, s := range r.gauges(names...) {
			c := slice{either(s, "namespace", "podnamespace"), either(s, "pod", "podname"), either(s, "container_index", "containeridx"), either(s, "device_uuid", "deviceuuid")}
			l := devices[c.device]
			switch {
			case !sensible(s.Value):
				r.Refused++
			case l != nil && of(l) > 0:
				parts[c] = max(parts[c], min(1, s.Value/of(l)))
			}
		}
	}
	take(hamiPodMemory, func(l *limits) float64 { return l.memory })
	take(hamiPodCores, func(l *limits) float64 { return l.cores })
	for c, v := range parts {
		r.Gauges[Point{Name: Used, Queue: clean(c.namespace), Model: models[c.device]}] += v
	}
	hamiQuotas(r)
}

// hamiQuotas takes the limits of namespaces: quotas of cores are in hundredths of a device. 0 is no limit.
func hamiQuotas(r *reader) {
	limit := func(s sample, v float64) {
		name := either(s, "quota_name", "quotaName")
		if !strings.HasSuffix(strings.TrimSuffix(name, "s"), "core") || r.vendors.Resource(name).Unit == device.Core || !sensible(v) || v == 0 {
			return
		}
		r.Gauges[Point{Name: Limit, Queue: clean(either(s, "namespace", "quotanamespace"))}] += v / 100
	}
	if list := r.gauges(hamiQuotaLimit...); len(list) > 0 {
		for _, s := range list {
			limit(s, s.Value)
		}
		return
	}
	for _, s := range r.gauges(hamiQuotaUsed...) {
		limit(s, number(s.Get("limit")))
	}
}

// Metrics of kube-state-metrics.
const (
	ksmRequests  = "kube_pod_container_resource_requests"
	ksmInit      = "kube_pod_init_container_resource_requests"
	ksmPhase     = "kube_pod_status_phase"
	ksmScheduled = "kube_pod_status_scheduled"
	ksmNodes     = "kube_node_status_allocatable"
	ksmQuotas    = "kube_resourcequota"
)

var ksmFamilies = []string{ksmRequests, ksmInit, ksmPhase, ksmScheduled, ksmNodes, ksmQuotas}

// ksm takes what pods ask for, by namespace, from kube-state-metrics.
func ksm(r *reader) {
	whole := sanitized(r.vendors)
	type pod struct {
		namespace, node, phase string
		main, init             float64
		placed                 bool
	}
	pods := map[string]*pod{}
	key := func(s sample) string { return s.Get("namespace") + "\xff" + s.Get("pod") + "\xff" + s.Get("uid") }
	for _, family := range []string{ksmRequests, ksmInit} {
		for _, s := range r.gauges(family) {
			if !whole(s.Get("resource")) {
				continue
			}
			if !sensible(s.Value) {
				r.Refused++
				continue
			}
			p := pods[key(s)]
			if p == nil {
				p = &pod{namespace: clean(s.Get("namespace")), node: s.Get("node")}
				pods[key(s)] = p
			}
			if family == ksmInit { // they run one after the other, and before the others
				p.init = max(p.init, s.Value)
			} else {
				p.main += s.Value
			}
		}
	}
	for _, s := range r.gauges(ksmPhase) {
		if p := pods[key(s)]; p != nil && s.Value == 1 {
			p.phase = s.Get("phase")
		}
	}
	for _, s := range r.gauges(ksmScheduled) {
		if p := pods[key(s)]; p != nil && s.Value == 1 && s.Get("condition") == "true" {
			p.placed = true
		}
	}
	for _, p := range pods {
		state := running
		switch placed := p.placed || p.node != ""; {
		case p.phase == "Succeeded" || p.phase == "Failed": // its requests are still on the page
			state = finished
		case !placed:
			state = pending
			r.Gauges[Point{Name: Pending, Queue: p.namespace}] += max(p.main, p.init)
		case p.phase == "Pending":
			state = starting
			fallthrough
		default:
			r.Gauges[Point{Name: Used, Queue: p.namespace}] += max(p.main, p.init)
		}
		r.Gauges[Point{Name: Jobs, Queue: p.namespace, Word: state}]++
	}
	for _, s := range r.gauges(ksmNodes) {
		if whole(s.Get("resource")) && sensible(s.Value) {
			r.Gauges[Point{Name: Capacity}] += s.Value
		}
	}
	ksmLimits(r)
}

// ksmLimits takes the ResourceQuotas of namespaces: of several for a resource the smallest counts.
func ksmLimits(r *reader) {
	least := map[[2]string]float64{}
	for _, s := range r.gauges(ksmQuotas) {
		resource, ok := strings.CutPrefix(s.Get("resource"), "requests.")
		if !ok || s.Get("type") != "hard" || !r.vendors.CountsDevices(resource) || !sensible(s.Value) {
			continue
		}
		key := [2]string{clean(s.Get("namespace")), resource}
		if old, ok := least[key]; !ok || s.Value < old {
			least[key] = s.Value
		}
	}
	for key, v := range least {
		r.Gauges[Point{Name: Limit, Queue: key[0]}] += v
	}
}

var notName = regexp.MustCompile(`[^a-zA-Z0-9*]`)

// sanitized returns what tells whole devices by the name of a resource in which other characters than letters and digits are
// underscores.
func sanitized(vendors device.Vendors) func(resource string) bool {
	type pattern struct {
		text string
		unit device.Unit
	}
	var patterns []pattern
	for _, v := range vendors {
		for _, res := range v.Resources {
			patterns = append(patterns, pattern{notName.ReplaceAllString(res.Name, "_"), res.Unit})
		}
	}
	known := map[string]bool{}
	return func(resource string) bool {
		if out, ok := known[resource]; ok {
			return out
		}
		for _, p := range patterns {
			if ok, err := path.Match(p.text, resource); ok && err == nil {
				known[resource] = p.unit == device.Whole
				return known[resource]
			}
		}
		known[resource] = false
		return false
	}
}

// number reads a number in a label. It is NaN if there is none.
func number(text string) float64 {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return math.NaN()
	}
	return v
}
