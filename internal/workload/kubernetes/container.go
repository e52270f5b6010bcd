package kubernetes

import (
	"time"

	"github.com/gpumeter/gpumeter/internal/workload"
	"github.com/gpumeter/gpumeter/internal/workload/cgroup"
)

var _ workload.ContainerSource = (*Source)(nil)

// Container implements workload.ContainerSource for containers of pods on this node.
func (s *Source) Container(id string) (workload.Workload, bool) {
	how, _, api := s.api(time.Now())
	b := builder{cfg: s.cfg, api: api, current: how == workload.OK}
	return b.container(cgroup.Container{ID: id})
}
