package kubernetes

import (
	"fmt"
	"slices"

	"github.com/gpumeter/gpumeter/internal/workload"
	"github.com/gpumeter/gpumeter/internal/workload/hami"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi"
	"github.com/gpumeter/gpumeter/internal/workload/kubelet"
)

// sliced adds the grants of a container whose allocation is replicas of HAMi's plugin. The kubelet picked any of them: which
// devices the container has, and how much of each, is in an annotation of the pod. It reports whether the allocation
// is done with.
//
// Users can write annotations. Slices count only for a container to which the kubelet gave replicas, at most as many
// as those, and only of devices that the plugin offers on this node. A pod without believable slices has no
// grant: which of the devices are its own is not known, and to guess would give it those of others.
func (b *builder) sliced(a kubelet.Allocation, p kubeapi.Pod, w workload.Workload) bool {
	whole := func(id string) bool { _, ok := hami.Base(id); return !ok }
	if len(a.DeviceIDs) == 0 || len(a.Claims) > 0 || slices.ContainsFunc(a.DeviceIDs, whole) {
		return false
	}
	own := p.Slices[a.Container]
	if p.SlicesErr == nil && len(own) == 0 {
		return false // unknown devices, like those of any other plugin
	}
	offered := map[string]int{} // replicas by device
	for _, id := range b.snapshot.Offered[a.Resource] {
		if device, ok := hami.Base(id); ok {
			offered[device]++
		}
	}
	elsewhere := func(s hami.Slice) bool { return len(offered) > 0 && offered[s.Device] == 0 }
	if p.SlicesErr != nil || len(own) > len(a.DeviceIDs) || slices.ContainsFunc(own, elsewhere) {
		b.refused = append(b.refused, p.Namespace+"/"+p.Name)
		return true
	}
	first := len(b.grants)
	for _, s := range own {
		i := slices.IndexFunc(b.grants[first:], func(g workload.Grant) bool { return g.Device.IDs[0] == s.Device })
		if i < 0 {
			i = len(b.grants) - first
			b.grants = append(b.grants, workload.Grant{
				Workload: w, Device: workload.Ref{Resource: a.Resource, IDs: []string{s.Device}}, Replicas: max(1, offered[s.Device]), Stale: b.stale,
			})
		}
		g := &b.grants[first+i]
		g.Held++
		g.Limit.Memory += s.Memory
		g.Limit.Compute = min(1, g.Limit.Compute+s.Compute)
	}
	return true
}

// sliceStatus reports pods whose slices are not believed.
func (s *Source) sliceStatus() []workload.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.built.refused)
	if n == 0 {
		return nil
	}
	return []workload.Status{{Source: fromHAMi, Reason: workload.Failed, Detail: fmt.Sprintf(
		"the annotation %s of %d containers is not what the kubelet gave them, such as %s", hami.Annotation, n, slices.Min(s.built.refused))}}
}
