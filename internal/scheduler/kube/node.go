package kube

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gpumeter/gpumeter/internal/device"
)

// Node is a node of the cluster.
type Node struct {
	Name   string
	Labels map[string]string
	Taints []Taint
	// Cordoned nodes take no new pods, and nodes that are not Ready cannot run any.
	Cordoned, Ready bool
	Model           string // of its devices, from a label; empty if no label says it
	Allocatable     Requests
	Pods            int64 // maximum
	// Broken is the number of whole devices that the node has but does not offer: the device plugin found
	// them unhealthy, or they have a taint.
	Broken int64
	// plugins are the vendors whose devices a device plugin offers.
	plugins []string

	// Left is what its pods leave, and Running how many there are.
	Left    Requests
	Running int64
	// whole and free count whole devices: of device plugins and, where there is none, those for claims.
	whole, free int64
}

// Open reports whether the node takes new pods.
func (n *Node) Open() bool { return n.Ready && !n.Cordoned }

// offers reports whether the node has accelerators.
func (n *Node) offers() bool { return len(n.Allocatable.Devices) > 0 || n.Broken > 0 }

// Taint keeps pods without a matching toleration off a node.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Effect string `json:"effect"`
}

// String returns the taint as kubectl writes it.
func (t Taint) String() string {
	if t.Value == "" {
		return t.Key + ":" + t.Effect
	}
	return t.Key + "=" + t.Value + ":" + t.Effect
}

// nodeObject is the part of a node that is decoded.
type nodeObject struct {
	Metadata struct {
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		Unschedulable bool    `json:"unschedulable"`
		Taints        []Taint `json:"taints"`
	} `json:"spec"`
	Status struct {
		Capacity    quantities `json:"capacity"`
		Allocatable quantities `json:"allocatable"`
		Conditions  []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
	} `json:"status"`
}

// parseNode reads a node of the API.
func parseNode(b []byte, v device.Vendors) (Node, error) {
	var o nodeObject
	if err := json.Unmarshal(b, &o); err != nil {
		return Node{}, fmt.Errorf("node cannot be parsed: %w", err)
	}
	if o.Metadata.Name == "" {
		return Node{}, errors.New("node cannot be parsed: no name")
	}
	n := Node{Name: o.Metadata.Name, Labels: o.Metadata.Labels, Cordoned: o.Spec.Unschedulable}
	bad := func(err error) (Node, error) { return Node{}, fmt.Errorf("node %s: %w", n.Name, err) }
	capacity, err := o.Status.Capacity.parse(v)
	if err != nil {
		return bad(err)
	}
	if n.Allocatable, err = o.Status.Allocatable.parse(v); err != nil {
		return bad(err)
	}
	n.Left = n.Allocatable
	for name := range capacity.Devices {
		n.plugins = append(n.plugins, v.Of(name))
	}
	n.Broken = max(0, capacity.Whole(v)-n.Allocatable.Whole(v))
	if q := o.Status.Allocatable["pods"]; q != "" {
		if n.Pods, err = q.in(ones); err != nil {
			return bad(err)
		}
	}
	for _, t := range o.Spec.Taints {
		if t.Effect != "PreferNoSchedule" {
			n.Taints = append(n.Taints, t)
		}
	}
	for _, c := range o.Status.Conditions {
		n.Ready = n.Ready || c.Type == "Ready" && c.Status == "True"
	}
	for _, key := range v.ModelLabels() {
		if n.Model == "" {
			n.Model = n.Labels[key]
		}
	}
	return n, nil
}
