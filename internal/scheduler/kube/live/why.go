package live

import (
	"context"
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi"
)

// Why says why a pod waits, in lines. It lists the pods, the nodes and what else explains it once. If they may not be
// listed, or cannot, the last lines say so, and the others are what the scheduler says.
func Why(ctx context.Context, api *kubeapi.API, vendors device.Vendors, namespace, name string, now func() time.Time) ([]string, error) {
	object, err := api.Pod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	cluster := kube.NewCluster(vendors, "", nil)
	pods, nodes := kube.PodSink{Cluster: cluster, Now: now}, kube.NodeSink{Cluster: cluster}
	failed := map[string]error{}
	for _, k := range cluster.Kinds() {
		if err := api.ListOptional(ctx, optional(&k), k.Sink); err != nil {
			k.Lost(true)
			failed[k.Kind] = err
		}
	}
	// Without all pods it is not known what the nodes have left.
	unknown := api.List(ctx, kubeapi.AllPods(), pods)
	if unknown == nil {
		unknown = api.List(ctx, kubeapi.AllNodes(), nodes)
	} else {
		add, commit := pods.Begin()
		add(object)
		commit()
	}
	s := cluster.Snapshot(now())
	pod := s.Pod(namespace, name)
	if pod == nil {
		return nil, fmt.Errorf("pod %s/%s asks for no accelerator", namespace, name)
	}
	lines := s.Why(pod)
	if unknown != nil {
		lines = append(lines, fmt.Sprintf("What is free is not known: %v.", unknown))
	}
	for _, k := range cluster.Kinds() {
		if err := failed[k.Kind]; err != nil && k.Concerns(pod) {
			lines = append(lines, fmt.Sprintf("More is not known: %v.", err))
		}
	}
	return lines, nil
}
