package simulated

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// verdict is what kube-scheduler says about a pod that waits: how many nodes each of its filters rejects, in its
// order and words. A node counts under the first filter that rejects it, and under every resource that it lacks.
func (c *Cluster) verdict(p *Pod, up time.Duration) string {
	if p.Words != "" {
		return fmt.Sprintf("0/%d nodes are available: %s. preemption: 0/%d nodes are available: %d Preemption is not helpful for scheduling.",
			len(c.Nodes), p.Words, len(c.Nodes), len(c.Nodes))
	}
	rejected, useless, victims := map[string]int{}, 0, 0
	for i := range c.Nodes {
		n := &c.Nodes[i]
		switch lacks := c.lacks(n, p, up); {
		case n.Cordoned:
			rejected["node(s) were unschedulable"]++
			useless++
		case !selects(p.Selector, n.Labels):
			rejected["node(s) didn't match Pod's node affinity/selector"]++
			useless++
		default:
			for _, resource := range lacks {
				rejected["Insufficient "+resource]++
			}
			if len(lacks) > 0 {
				victims++
			}
		}
	}
	said := func(counts map[string]int) string {
		var list []string
		for text, n := range counts {
			list = append(list, fmt.Sprintf("%d %s", n, text))
		}
		slices.Sort(list)
		return strings.Join(list, ", ")
	}
	preemption := map[string]int{}
	if victims > 0 {
		preemption["No preemption victims found for incoming pod"] = victims
	}
	if useless > 0 {
		preemption["Preemption is not helpful for scheduling"] = useless
	}
	return fmt.Sprintf("0/%d nodes are available: %s. preemption: 0/%d nodes are available: %s.", len(c.Nodes), said(rejected), len(c.Nodes), said(preemption))
}

// lacks returns the resources of which a node has too little left for a pod.
func (c *Cluster) lacks(n *Node, p *Pod, up time.Duration) []string {
	left := maps.Clone(n.Devices)
	cpus, memory := n.CPUs, n.Memory
	for i := range c.Pods {
		other := &c.Pods[i]
		if is := other.at(up); other.Node != n.Name || is != starting && is != running {
			continue
		}
		for name, count := range other.Devices {
			left[name] -= count
		}
		cpus, memory = cpus-other.CPUs, memory-other.Memory
	}
	var list []string
	if cpus < p.CPUs {
		list = append(list, "cpu")
	}
	if memory < p.Memory {
		list = append(list, "memory")
	}
	for name, count := range p.Devices {
		if left[name] < count {
			list = append(list, name)
		}
	}
	return list
}

func selects(selector, labels map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return true
}
