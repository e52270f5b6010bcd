// Package simulated plays a Kubernetes cluster that does not exist: nodes, and pods that follow a script. It has the
// objects that an API server would list at any moment, with the times, conditions and words of the scheduler, so that
// everything behind the API can be demonstrated and tested.
//
// The script says when a pod is created, placed, started and over. What the scheduler says about a pod that waits is
// computed from what the nodes have left at that moment.
package simulated

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/scheduler/kube"
)

// Cluster is a script. All its times are relative to Start.
type Cluster struct {
	Start time.Time
	Nodes []Node
	Pods  []Pod
}

// Node is a node that offers devices.
type Node struct {
	Name     string
	Labels   map[string]string
	Devices  map[string]int64 // by resource
	CPUs     int64
	Memory   int64 // GiB
	Cordoned bool
}

// Pod is a pod that asks for devices.
type Pod struct {
	Namespace, Name, UID string
	Kind, Owner          string // of the workload that owns the pod
	Container            string
	Labels               map[string]string
	Selector             map[string]string
	Devices              map[string]int64 // by resource
	CPUs                 int64
	Memory               int64 // GiB

	Created time.Duration
	// Gate is the name of a scheduling gate, removed at Released; 0: never.
	Gate     string
	Released time.Duration
	// Words is why a scheduler with rules of its own rejects the pod; empty: only for what the nodes lack.
	Words string
	// Node is where the pod runs from Placed on; empty: it waits for ever. Its first container starts at Started, and
	// the pod is over at Ended; 0: never.
	Node                   string
	Placed, Started, Ended time.Duration
}

// kept is how long a pod that is over stays in the API: Jobs with ttlSecondsAfterFinished.
const kept = time.Hour

// phase is where a pod is in its script.
type phase int

const (
	absent phase = iota // not created yet, or deleted
	gated
	waiting
	starting
	running
	over
)

func (p *Pod) at(up time.Duration) phase {
	switch {
	case up < p.Created, p.Ended != 0 && up >= p.Ended+kept:
		return absent
	case p.Ended != 0 && up >= p.Ended:
		return over
	case p.Node != "" && up >= p.Started:
		return running
	case p.Node != "" && up >= p.Placed:
		return starting
	case p.Gate != "" && (p.Released == 0 || up < p.Released):
		return gated
	}
	return waiting
}

// Feed makes sinks have the objects of a moment, as a list of an API server would.
func (c *Cluster) Feed(pods kube.PodSink, nodes kube.NodeSink, now time.Time) error {
	up := now.Sub(c.Start)
	addNode, commitNodes := nodes.Begin()
	for i := range c.Nodes {
		b, err := json.Marshal(c.Nodes[i].object())
		if err != nil {
			return fmt.Errorf("node %s: %w", c.Nodes[i].Name, err)
		}
		addNode(b)
	}
	addPod, commitPods := pods.Begin()
	for i := range c.Pods {
		p := &c.Pods[i]
		if p.at(up) == absent {
			continue
		}
		b, err := json.Marshal(c.object(p, up))
		if err != nil {
			return fmt.Errorf("pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		addPod(b)
	}
	commitNodes()
	commitPods()
	return nil
}

// object is a JSON object.
type object map[string]any

// asks returns the resources of a pod or a node.
func asks(devices map[string]int64, cpus, memory int64) object {
	o := object{"cpu": fmt.Sprint(cpus), "memory": fmt.Sprintf("%dGi", memory)}
	for name, n := range devices {
		o[name] = fmt.Sprint(n)
	}
	return o
}

func (n *Node) object() object {
	all := asks(n.Devices, n.CPUs, n.Memory)
	all["pods"] = "110"
	return object{
		"metadata": object{"name": n.Name, "labels": n.Labels},
		"spec":     object{"unschedulable": n.Cordoned},
		"status": object{
			"capacity": all, "allocatable": all,
			"conditions": []object{{"type": "Ready", "status": "True"}},
		},
	}
}

// object returns a pod as it is at a moment.
func (c *Cluster) object(p *Pod, up time.Duration) object {
	at := func(d time.Duration) string { return c.Start.Add(d).UTC().Format(time.RFC3339) }
	is := p.at(up)
	spec := object{
		"containers":   []object{{"name": p.Container, "resources": object{"requests": asks(p.Devices, p.CPUs, p.Memory)}}},
		"nodeSelector": p.Selector,
	}
	status := object{"phase": "Pending"}
	condition := func(kind, status, reason, message string, since time.Duration) object {
		return object{"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at(since)}
	}
	switch is {
	case gated:
		spec["schedulingGates"] = []object{{"name": p.Gate}}
		status["conditions"] = []object{condition("PodScheduled", "False", "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates", p.Created)}
	case waiting:
		status["conditions"] = []object{condition("PodScheduled", "False", "Unschedulable", c.verdict(p, up), max(p.Created, p.Released))}
	default:
		spec["nodeName"] = p.Node
		conditions := []object{condition("PodScheduled", "True", "", "", p.Placed), condition("Initialized", "True", "", "", p.Placed)}
		if ready := min(p.Placed+sandbox, p.Started); up >= ready {
			conditions = append(conditions, condition("PodReadyToStartContainers", "True", "", "", ready))
		}
		state := object{"waiting": object{"reason": "ContainerCreating"}}
		if is == running {
			status["phase"], state = "Running", object{"running": object{"startedAt": at(p.Started)}}
			conditions = append(conditions, condition("Ready", "True", "", "", p.Started))
		}
		if is == over {
			status["phase"], state = "Succeeded", object{"terminated": object{"startedAt": at(p.Started), "finishedAt": at(p.Ended), "exitCode": 0, "reason": "Completed"}}
		}
		status["conditions"], status["startTime"] = conditions, at(p.Placed)
		status["containerStatuses"] = []object{{"name": p.Container, "state": state}}
	}
	return object{
		"metadata": object{
			"uid": p.UID, "namespace": p.Namespace, "name": p.Name, "labels": p.Labels, "creationTimestamp": at(p.Created),
			"ownerReferences": p.owners(),
		},
		"spec": spec, "status": status,
	}
}

// sandbox is how long a kubelet takes from seeing a pod to pulling its images.
const sandbox = 4 * time.Second

// kinds are the kinds of owners, as the API writes them.
var kinds = map[string]object{
	"job":         {"apiVersion": "batch/v1", "kind": "Job"},
	"cronjob":     {"apiVersion": "batch/v1", "kind": "Job"}, // which the CronJob owns
	"deployment":  {"apiVersion": "apps/v1", "kind": "ReplicaSet"},
	"statefulset": {"apiVersion": "apps/v1", "kind": "StatefulSet"},
}

func (p *Pod) owners() []object {
	kind, ok := kinds[p.Kind]
	if !ok {
		return nil
	}
	return []object{{"apiVersion": kind["apiVersion"], "kind": kind["kind"], "name": p.Owner, "uid": strings.Repeat("0", 8) + p.UID[min(8, len(p.UID)):], "controller": true}}
}
