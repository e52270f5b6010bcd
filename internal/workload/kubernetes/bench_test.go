package kubernetes

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/workload/cgroup"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi"
	"github.com/gpumeter/gpumeter/internal/workload/kubelet"
)

// crowd is a node with 8 GPUs that 256 pods share.
func crowd() *node {
	n := &node{answered: true, state: kubeapi.State{Synced: true}, processes: map[uint32]cgroup.Container{}}
	n.Offered = map[string][]string{}
	for i := range 256 {
		id := fmt.Sprintf("GPU-%d::%d", i%8, i/8)
		name := fmt.Sprint("pod-", i)
		n.Offered["nvidia.com/gpu"] = append(n.Offered["nvidia.com/gpu"], id)
		n.Allocations = append(n.Allocations, gave("ml", name, "main", id))
		n.pods = append(n.pods, kubeapi.Pod{
			UID: fmt.Sprint("u", i), Namespace: "ml", Name: name, Phase: "Running", Owner: kubeapi.Owner{Kind: "deployment", Name: "d"},
			Owners: []kubeapi.Owner{{Kind: "replicaset", Name: "d-1"}, {Kind: "deployment", Name: "d"}}, ContainerIDs: map[string]string{fmt.Sprint("c", i): "main"},
		})
	}
	n.Snapshot.Time = time.Now()
	return n
}

func BenchmarkGrants(b *testing.B) {
	run := func(name string, change func(*node)) {
		b.Run(name, func(b *testing.B) {
			n := crowd()
			s := n.source()
			for b.Loop() {
				change(n)
				if len(s.Grants()) != 256 {
					b.Fatal("not all are there")
				}
			}
		})
	}
	run("unchanged", func(*node) {})
	run("changed", func(n *node) { n.state.Generation++ })
}

// What is declared here is what there is.
var (
	_ Kubelet = (*kubelet.Client)(nil)
	_ Cgroups = (*cgroup.Reader)(nil)
	_ Logs    = (*kubelet.Logs)(nil)
	_ API     = (*kubeapi.Client)(nil)
)
