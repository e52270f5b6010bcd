package kube

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/scheduler"
	"github.com/gpumeter/gpumeter/internal/workload/podgroup"
)

// Pod is what is kept about a pod that asks for accelerators.
type Pod struct {
	UID, Namespace, Name string
	Team                 string // from the team label
	// Movable pods run elsewhere after they are deleted: a controller creates them again, on any node that fits.
	Movable   bool
	State     scheduler.State
	Node      string // empty: none yet
	Nominated string // the node where the scheduler made room for it
	Demand
	Gates  []string
	claims byClaim
	// Workload is the name of its Workload in Kueue, where the pod says it. kueue says whether Kueue has to do with the pod.
	Workload string
	kueue    bool
	member   member
	owners   []string // UIDs of its controller, and of the JobSet above
	// Evicted is why it lost its devices before it ended, empty if it did not, and EvictedAt since when that is so, zero if it is
	// not known.
	Evicted   string
	EvictedAt time.Time
	// Condition and Message are the scheduler's words on a pod that waits, empty if there are none yet.
	Condition, Message string
	// Created, Scheduled and Started are zero if they are unknown or in the future. Started is when the
	// first container started.
	Created, Scheduled, Started time.Time
	// Sandboxed is when its volumes and its network were there, zero if that is not so now or not known: see sandboxed.
	// Initialized is when its init containers had ended, zero if that is not so now. Inits says whether it has some. Changed
	// is when the API server wrote it last.
	Sandboxed, Initialized, Changed time.Time
	Inits                           bool
	// Ungated is when its last gate was removed, if that was seen. Ended is when its last container ended, zero if one has not,
	// and Result how it ended, empty if it did not.
	Ungated, Ended time.Time
	Result         EventKind
	// ReservedAt and AdmittedAt are when Kueue gave quota to its Workload and admitted it, zero if that is not known. They may be
	// before Created.
	ReservedAt, AdmittedAt time.Time
	// ControllerKind and Controller name what created the pod, empty if nothing did.
	ControllerKind, Controller string
}

// Demand is what decides which nodes fit a pod.
type Demand struct {
	// Requests has the devices of claims by their class.
	Requests
	// Claimed is the number of whole devices of its claims. Those of a claim that several pods share count for one of them.
	Claimed int64
	// At is the node where a claim of a waiting pod was allocated; empty: there is none.
	At          string
	Selector    map[string]string // labels that the node must have
	Affinity    []Term            // any of these must match the node; nil: no such rule
	Tolerations []Toleration
}

// Whole returns the number of whole devices.
func (d *Demand) Whole(v device.Vendors) int64 { return sum(d.Requests.Whole(v), d.Claimed) }

// FullName returns NAMESPACE/NAME.
func (p *Pod) FullName() string { return p.Namespace + "/" + p.Name }

// podObject is the part of a pod that is decoded.
type podObject struct {
	Metadata struct {
		UID               string            `json:"uid"`
		Namespace         string            `json:"namespace"`
		Name              string            `json:"name"`
		Labels            map[string]string `json:"labels"`
		CreationTimestamp time.Time         `json:"creationTimestamp"`
		DeletionTimestamp *time.Time        `json:"deletionTimestamp"`
		ManagedFields     []struct {
			Time time.Time `json:"time"`
		} `json:"managedFields"`
		Annotations struct {
			SafeToEvict  string `json:"cluster-autoscaler.kubernetes.io/safe-to-evict"`
			DoNotDisrupt string `json:"karpenter.sh/do-not-disrupt"`
			podgroup.Annotations
		} `json:"annotations"`
		OwnerReferences []struct {
			UID        string `json:"uid"`
			Kind       string `json:"kind"`
			Name       string `json:"name"`
			Controller bool   `json:"controller"`
		} `json:"ownerReferences"`
	} `json:"metadata"`
	Spec struct {
		podgroup.Spec
		NodeName       string            `json:"nodeName"`
		InitContainers []containerObject `json:"initContainers"`
		Containers     []containerObject `json:"containers"`
		Overhead       quantities        `json:"overhead"`
		Resources      resourcesObject   `json:"resources"` // of the whole pod
		NodeSelector   map[string]string `json:"nodeSelector"`
		Affinity       struct {
			NodeAffinity struct {
				Required *struct {
					Terms []Term `json:"nodeSelectorTerms"`
				} `json:"requiredDuringSchedulingIgnoredDuringExecution"`
			} `json:"nodeAffinity"`
		} `json:"affinity"`
		Tolerations []Toleration `json:"tolerations"`
		Gates       []struct {
			Name string `json:"name"`
		} `json:"schedulingGates"`
		Claims []struct {
			Name  string `json:"name"`
			Claim string `json:"resourceClaimName"`
		} `json:"resourceClaims"`
	} `json:"spec"`
	Status struct {
		Phase             string `json:"phase"`
		NominatedNodeName string `json:"nominatedNodeName"`
		Conditions        []struct {
			Type               string    `json:"type"`
			Status             string    `json:"status"`
			Reason             string    `json:"reason"`
			Message            string    `json:"message"`
			LastTransitionTime time.Time `json:"lastTransitionTime"`
		} `json:"conditions"`
		Claims []struct {
			Name  string `json:"name"`
			Claim string `json:"resourceClaimName"`
		} `json:"resourceClaimStatuses"`
		ContainerStatuses     []containerStatus `json:"containerStatuses"`
		InitContainerStatuses []containerStatus `json:"initContainerStatuses"`
	} `json:"status"`
}

type containerStatus struct {
	State, LastState struct {
		Running, Terminated struct {
			StartedAt  time.Time `json:"startedAt"`
			FinishedAt time.Time `json:"finishedAt"`
		}
	}
}

// firstStart returns when the first of containers started, as far as it is known, zero if none has.
func firstStart(list []containerStatus) (first time.Time) {
	for _, c := range list {
		for _, t := range []time.Time{
			c.State.Running.StartedAt, c.State.Terminated.StartedAt, c.LastState.Running.StartedAt, c.LastState.Terminated.StartedAt,
		} {
			if !t.IsZero() && (first.IsZero() || t.Before(first)) {
				first = t
			}
		}
	}
	return first
}

type containerObject struct {
	RestartPolicy string          `json:"restartPolicy"` // Always makes an init container a sidecar
	Resources     resourcesObject `json:"resources"`
}

type resourcesObject struct {
	Limits   quantities `json:"limits"`
	Requests quantities `json:"requests"`
}

// requests returns the requests. One that is missing is as high as the limit: the API server completes
// them in this way when a pod is created.
func (o *resourcesObject) requests(v device.Vendors) (Requests, error) {
	all := make(quantities, len(o.Limits)+len(o.Requests))
	maps.Copy(all, o.Limits)
	maps.Copy(all, o.Requests)
	return all.parse(v)
}

// maxMessage bounds the text that is kept of a condition. The scheduler joins the reasons of all nodes.
const maxMessage = 2 << 10

// parsePod reads a pod of the API.
func parsePod(b []byte, v device.Vendors, teamLabel string) (Pod, error) {
	var o podObject
	if err := json.Unmarshal(b, &o); err != nil {
		return Pod{}, fmt.Errorf("pod cannot be parsed: %w", err)
	}
	m := &o.Metadata
	if m.UID == "" || m.Name == "" {
		return Pod{}, errors.New("pod cannot be parsed: no UID or no name")
	}
	need, err := o.requests(v)
	if err != nil {
		return Pod{}, fmt.Errorf("pod %s/%s: %w", m.Namespace, m.Name, err)
	}
	p := Pod{
		UID: m.UID, Namespace: m.Namespace, Name: m.Name, Node: o.Spec.NodeName, State: o.state(), Demand: Demand{Requests: need},
	}
	p.member = o.belongs(p.State)
	p.claims = byClaim{refs: o.parseClaims(), listed: need.Devices}
	if len(need.Devices)+len(p.claims.refs) == 0 && !p.State.Has() {
		return p, nil
	}
	if teamLabel != "" {
		p.Team = m.Labels[teamLabel]
	}
	p.Selector, p.Tolerations = o.Spec.NodeSelector, o.Spec.Tolerations
	if r := o.Spec.Affinity.NodeAffinity.Required; r != nil {
		p.Affinity = append([]Term{}, r.Terms...) // not nil: a rule without terms matches no node
	}
	for _, g := range o.Spec.Gates {
		p.Gates = append(p.Gates, g.Name)
	}
	p.Movable = o.movable() && len(p.claims.refs) == 0 // where a claim could be allocated instead is not known
	p.relations(&o)
	p.Nominated, p.Created = o.Status.NominatedNodeName, m.CreationTimestamp
	p.Inits = len(o.Spec.InitContainers) > 0
	p.Result = map[string]EventKind{"Succeeded": EventSucceeded, "Failed": EventFailed}[o.Status.Phase]
	for _, r := range m.OwnerReferences {
		if r.Controller {
			p.ControllerKind, p.Controller = r.Kind, r.Name
		}
	}
	for _, f := range m.ManagedFields {
		if f.Time.After(p.Changed) {
			p.Changed = f.Time
		}
	}
	o.conditions(&p)
	return p, nil
}

// relations reads to what the pod belongs.
func (p *Pod) relations(o *podObject) {
	m := &o.Metadata
	p.Workload = m.Annotations.KueueWorkload
	p.kueue = p.Workload != "" || m.Labels[podgroup.KueueQueue] != "" || slices.ContainsFunc(p.Gates, func(g string) bool { return strings.HasPrefix(g, "kueue.x-k8s.io/") })
	for _, r := range m.OwnerReferences {
		if r.Controller {
			p.owners = append(p.owners, r.UID)
		}
	}
	if uid := m.Labels[podgroup.JobSetUID]; uid != "" {
		p.owners = append(p.owners, uid)
	}
}

// movable reports whether a controller would create the pod again, and not on the same node, and nobody objects.
func (o *podObject) movable() bool {
	if a := o.Metadata.Annotations; a.SafeToEvict == "false" || a.DoNotDisrupt == "true" {
		return false
	}
	for _, r := range o.Metadata.OwnerReferences {
		if r.Controller {
			return r.Kind != "DaemonSet" && r.Kind != "Node"
		}
	}
	return false
}

// conditions reads what the scheduler and the kubelet said, and when.
func (o *podObject) conditions(p *Pod) {
	for _, c := range o.Status.Conditions {
		switch {
		case c.Type == "PodReadyToStartContainers" && c.Status == "True":
			p.Sandboxed = c.LastTransitionTime
		case c.Type == "Initialized" && c.Status == "True":
			p.Initialized = c.LastTransitionTime
		case c.Type == "DisruptionTarget" && c.Status == "True":
			p.Evicted, p.EvictedAt = cmp.Or(disruptions[c.Reason], "other"), c.LastTransitionTime
		case c.Type != "PodScheduled":
		case c.Status == "True":
			p.Scheduled = c.LastTransitionTime
		case p.State.Waits():
			p.Condition, p.Message = c.Reason, strings.ToValidUTF8(c.Message[:min(len(c.Message), maxMessage)], "")
		}
	}
	for _, c := range o.Status.ContainerStatuses {
		if at := c.State.Terminated.FinishedAt; p.State == scheduler.Finished && at.After(p.Ended) {
			p.Ended = at
		}
	}
	p.Started = firstStart(o.Status.ContainerStatuses)
	p.Sandboxed = sandboxed(p.Sandboxed, p.Started, firstStart(o.Status.InitContainerStatuses))
}

// sandboxed returns when the sandbox of a pod was ready, zero if that is not known. Kubelets before 1.36 write the condition
// once they have started what can be started, so that it has the time after the pull of images: it tells something only if
// it came strictly before the first start, of init containers too.
//
// https://github.com/kubernetes/kubernetes/pull/134660
func sandboxed(ready, runs, init time.Time) time.Time {
	if !ready.Before(runs) || !init.IsZero() && !ready.Before(init) {
		return time.Time{}
	}
	return ready
}

func (o *podObject) state() scheduler.State {
	bound, deleted := o.Spec.NodeName != "", o.Metadata.DeletionTimestamp != nil
	switch phase := o.Status.Phase; {
	case phase == "Succeeded" || phase == "Failed":
		return scheduler.Finished
	case bound && deleted:
		return scheduler.Stopping
	case bound && phase == "Running":
		return scheduler.Running
	case bound:
		return scheduler.Starting
	case deleted: // the scheduler skips it
		return scheduler.Finished
	case len(o.Spec.Gates) > 0:
		return scheduler.Held
	}
	return scheduler.Pending
}

// requests returns what the pod takes from its node, as the scheduler computes it. Init containers run one
// after the other before the containers, beside the sidecars that were started before them.
//
// https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers
func (o *podObject) requests(v device.Vendors) (Requests, error) {
	var run, sidecars, start Requests
	for i := range o.Spec.Containers {
		r, err := o.Spec.Containers[i].Resources.requests(v)
		if err != nil {
			return Requests{}, err
		}
		run = run.plus(r)
	}
	for i := range o.Spec.InitContainers {
		c := &o.Spec.InitContainers[i]
		r, err := c.Resources.requests(v)
		if err != nil {
			return Requests{}, err
		}
		if c.RestartPolicy == "Always" {
			run, sidecars = run.plus(r), sidecars.plus(r)
			start = start.most(sidecars)
			continue
		}
		start = start.most(r.plus(sidecars))
	}
	all := run.most(start)
	whole, err := o.Spec.Resources.requests(v)
	if err != nil {
		return Requests{}, err
	}
	if whole.CPU > 0 {
		all.CPU = whole.CPU
	}
	if whole.Memory > 0 {
		all.Memory = whole.Memory
	}
	overhead, err := o.Spec.Overhead.parse(v)
	if err != nil {
		return Requests{}, err
	}
	return all.plus(overhead), nil
}
