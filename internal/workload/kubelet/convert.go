package kubelet

import (
	"cmp"
	"slices"
	"strings"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const (
	maxContainers = 10_000 // containers with devices
	maxDevices    = 20_000 // of all containers, and as many offered
	maxName       = 512    // bytes; Kubernetes allows fewer
)

// Allocation is what one container was allocated of one resource.
type Allocation struct {
	Namespace, Pod, Container string
	// Resource is the name under which the devices are requested, or that of the driver if
	// they were claimed.
	Resource  string
	DeviceIDs []string // the device plugin's ids, including replicas, sorted
	Claims    []ClaimDevice
}

// ClaimDevice is a device that a container holds through a resource claim (DRA).
type ClaimDevice struct {
	ClaimNamespace, ClaimName string
	Driver, Pool, Device      string
	ShareID                   string   // of a device shared by capacity
	CDI                       []string // Container Device Interface names
}

// convert returns the allocations of all containers, and how many entries were rejected.
// The kubelet repeats a resource per device if the plugin reports the topology, lists
// restartable init containers like others, and lists containers without devices, which are
// omitted.
func convert(r *podresources.ListPodResourcesResponse) (list []Allocation, refused int) {
	devices, containers := 0, 0
	for _, pod := range r.GetPodResources() {
		for _, c := range pod.GetContainers() {
			if len(c.GetDevices()) == 0 && len(c.GetDynamicResources()) == 0 {
				continue
			}
			if containers == maxContainers || max(len(pod.GetNamespace()), len(pod.GetName()), len(c.GetName())) > maxName {
				refused++
				continue
			}
			own, n := convertContainer(c, maxDevices-devices)
			refused += n
			if len(own) > 0 {
				containers++
			}
			for i := range own {
				own[i].Namespace, own[i].Pod, own[i].Container = pod.GetNamespace(), pod.GetName(), c.GetName()
				devices += len(own[i].DeviceIDs) + len(own[i].Claims)
			}
			list = append(list, own...)
		}
	}
	slices.SortStableFunc(list, func(a, b Allocation) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod),
			cmp.Compare(a.Container, b.Container), cmp.Compare(a.Resource, b.Resource))
	})
	return list, refused
}

// convertContainer returns the allocations of one container, at most room devices, and how
// many were rejected.
func convertContainer(c *podresources.ContainerResources, room int) (own []Allocation, refused int) {
	of := func(resource string) *Allocation {
		i := slices.IndexFunc(own, func(a Allocation) bool { return a.Resource == resource })
		if i < 0 {
			i = len(own)
			own = append(own, Allocation{Resource: resource})
		}
		return &own[i]
	}
	for _, d := range c.GetDevices() {
		for _, id := range d.GetDeviceIds() {
			if room == 0 || !plausible(d.GetResourceName(), id) {
				refused++
				continue
			}
			room--
			a := of(d.GetResourceName())
			a.DeviceIDs = append(a.DeviceIDs, id)
		}
	}
	for _, claim := range c.GetDynamicResources() {
		for _, r := range claim.GetClaimResources() {
			if room == 0 || !claimed(r) ||
				max(len(claim.GetClaimName()), len(claim.GetClaimNamespace())) > maxName {
				refused++
				continue
			}
			room--
			d := ClaimDevice{
				ClaimNamespace: claim.GetClaimNamespace(), ClaimName: claim.GetClaimName(),
				Driver: r.GetDriverName(), Pool: r.GetPoolName(), Device: r.GetDeviceName(), ShareID: r.GetShareId(),
			}
			for _, cdi := range r.GetCdiDevices() {
				d.CDI = append(d.CDI, cdi.GetName())
			}
			a := of(resourceOf(r))
			a.Claims = append(a.Claims, d)
		}
	}
	for i := range own {
		slices.Sort(own[i].DeviceIDs)
		own[i].DeviceIDs = slices.Compact(own[i].DeviceIDs)
	}
	return own, refused
}

// offered returns the ids of all devices by resource, and how many were rejected.
func offered(r *podresources.AllocatableResourcesResponse) (all map[string][]string, refused int) {
	all = map[string][]string{}
	room := maxDevices
	for _, d := range r.GetDevices() {
		for _, id := range d.GetDeviceIds() {
			if room == 0 || !plausible(d.GetResourceName(), id) {
				refused++
				continue
			}
			room--
			all[d.GetResourceName()] = append(all[d.GetResourceName()], id)
		}
	}
	for resource, ids := range all {
		slices.Sort(ids)
		all[resource] = slices.Compact(ids)
	}
	return all, refused
}

// plausible rejects empty and overlong names.
func plausible(resource, id string) bool {
	return resource != "" && len(resource) <= maxName && id != "" && len(id) <= maxName
}

// claimed rejects claims that name no device.
func claimed(r *podresources.ClaimResource) bool {
	for _, cdi := range r.GetCdiDevices() {
		if cdi.GetName() == "" || len(cdi.GetName()) > maxName {
			return false
		}
	}
	named := r.GetDeviceName() != "" || len(r.GetCdiDevices()) > 0
	return named && resourceOf(r) != "" && len(r.GetCdiDevices()) <= maxName &&
		max(len(r.GetDriverName()), len(r.GetPoolName()), len(r.GetDeviceName()), len(r.GetShareId())) <= maxName
}

// resourceOf returns the driver of a claimed device. A kubelet before 1.31 does not report
// it; then it is the kind of the CDI device, which most drivers name after themselves.
func resourceOf(r *podresources.ClaimResource) string {
	if r.GetDriverName() != "" || len(r.GetCdiDevices()) == 0 {
		return r.GetDriverName()
	}
	kind, _, _ := strings.Cut(r.GetCdiDevices()[0].GetName(), "=")
	return kind
}
