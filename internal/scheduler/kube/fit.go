package kube

import (
	"fmt"
	"iter"
	"slices"
	"strconv"

	"github.com/gpumeter/gpumeter/internal/scheduler"
)

// Toleration lets a pod onto a node with a taint.
type Toleration struct {
	Key      string `json:"key"`      // empty with Exists: every key
	Operator string `json:"operator"` // Exists, or Equal
	Value    string `json:"value"`
	Effect   string `json:"effect"` // empty: every effect
}

func (t *Toleration) tolerates(taint Taint) bool {
	switch {
	case t.Effect != "" && t.Effect != taint.Effect, t.Key != "" && t.Key != taint.Key, t.Key == "" && t.Operator != "Exists":
		return false
	}
	return t.Operator == "Exists" || t.Value == taint.Value
}

// Term is a list of rules on the labels and the name of a node, all of which must hold.
type Term struct {
	Labels []Rule `json:"matchExpressions"`
	Fields []Rule `json:"matchFields"`
}

// Rule is a rule on one label.
type Rule struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values"`
}

// matches reports whether a term matches a node. An empty term matches none.
func (t *Term) matches(n *Node) bool {
	for i := range t.Labels {
		value, ok := n.Labels[t.Labels[i].Key]
		if !t.Labels[i].holds(value, ok) {
			return false
		}
	}
	for i := range t.Fields {
		if t.Fields[i].Key != "metadata.name" || !t.Fields[i].holds(n.Name, true) {
			return false
		}
	}
	return len(t.Labels)+len(t.Fields) > 0
}

func (r *Rule) holds(value string, there bool) bool {
	switch r.Operator {
	case "In":
		return there && slices.Contains(r.Values, value)
	case "NotIn":
		return !there || !slices.Contains(r.Values, value)
	case "Exists":
		return there
	case "DoesNotExist":
		return !there
	case "Gt", "Lt":
		if len(r.Values) != 1 {
			return false
		}
		have, err1 := strconv.ParseInt(value, 10, 64)
		want, err2 := strconv.ParseInt(r.Values[0], 10, 64)
		return err1 == nil && err2 == nil && (r.Operator == "Gt" && have > want || r.Operator == "Lt" && have < want)
	}
	return false
}

// Obstacle is what keeps a pod from a node.
type Obstacle struct {
	Reason scheduler.Reason
	Name   string // of the resource or the taint
	// Left and Want are what the node has left of a resource, and what the pod asks for.
	Left, Want int64
}

// String returns an obstacle in words that follow the name of the node: has 4 of 8 CPUs free.
func (o Obstacle) String() string {
	switch o.Reason {
	case scheduler.Unavailable, scheduler.Affinity:
		return o.Name
	case scheduler.Taint:
		return "has the taint " + o.Name
	case scheduler.CPU:
		return fmt.Sprintf("has %s of %s CPUs free", cpus(o.Left), cpus(o.Want))
	case scheduler.Memory:
		return fmt.Sprintf("has %s of %s of memory free", size(o.Left), size(o.Want))
	case scheduler.Slots:
		return fmt.Sprintf("has its maximum of %d pods", o.Want)
	}
	return fmt.Sprintf("has %d of %d %s free", o.Left, o.Want, o.Name)
}

// Obstacles returns what keeps a pod with this demand from a node: nothing if it fits. It knows resources,
// taints, selectors and affinity to nodes. Volumes, ports, affinity to other pods and the plugins
// of a scheduler are only in the scheduler's own words.
func (d *Demand) Obstacles(n *Node) iter.Seq[Obstacle] {
	return func(yield func(Obstacle) bool) {
		switch {
		case !n.Ready && !yield(Obstacle{Reason: scheduler.Unavailable, Name: "is not ready"}):
			return
		case n.Ready && n.Cordoned && !yield(Obstacle{Reason: scheduler.Unavailable, Name: "is cordoned"}):
			return
		}
		// Cordoned nodes and those that are not ready have taints of their own.
		if t, ok := d.untolerated(n); ok && n.Open() && !yield(Obstacle{Reason: scheduler.Taint, Name: t.String()}) {
			return
		}
		if !d.selects(n) && !yield(Obstacle{Reason: scheduler.Affinity, Name: "does not match the selector or affinity"}) {
			return
		}
		for name, want := range d.Devices {
			if left := n.Left.Devices[name]; left < want && !yield(Obstacle{scheduler.Device, name, left, want}) {
				return
			}
		}
		if d.CPU > 0 && n.Left.CPU < d.CPU && !yield(Obstacle{scheduler.CPU, "", n.Left.CPU, d.CPU}) {
			return
		}
		if d.Memory > 0 && n.Left.Memory < d.Memory && !yield(Obstacle{scheduler.Memory, "", n.Left.Memory, d.Memory}) {
			return
		}
		if n.Running >= n.Pods {
			yield(Obstacle{Reason: scheduler.Slots, Want: n.Pods})
		}
	}
}

// fits reports whether nothing keeps a pod with this demand from a node.
func (d *Demand) fits(n *Node) bool {
	for range d.Obstacles(n) {
		return false
	}
	return true
}

// untolerated returns the first taint of a node that a pod with this demand does not tolerate.
func (d *Demand) untolerated(n *Node) (Taint, bool) {
	for _, t := range n.Taints {
		if !slices.ContainsFunc(d.Tolerations, func(o Toleration) bool { return o.tolerates(t) }) {
			return t, true
		}
	}
	return Taint{}, false
}

func (d *Demand) selects(n *Node) bool {
	if d.At != "" && d.At != n.Name {
		return false
	}
	for key, want := range d.Selector {
		if have, ok := n.Labels[key]; !ok || have != want {
			return false
		}
	}
	return d.Affinity == nil || slices.ContainsFunc(d.Affinity, func(t Term) bool { return t.matches(n) })
}

// offers reports whether a node has devices of every kind that the pod asks for, free or not.
func (d *Demand) offers(n *Node) bool {
	for name := range d.Devices {
		if n.Allocatable.Devices[name] == 0 {
			return false
		}
	}
	return true
}

// cpus returns thousandths of a CPU as a number of CPUs.
func cpus(milli int64) string {
	return strconv.FormatFloat(float64(milli)/1000, 'f', -1, 64)
}

// size returns a number of bytes in a readable unit.
func size(n int64) string {
	const gib = 1 << 30
	if n < gib {
		return strconv.FormatFloat(float64(n*10/(1<<20))/10, 'f', -1, 64) + " MiB"
	}
	return strconv.FormatFloat(float64(n/(gib/10))/10, 'f', -1, 64) + " GiB"
}
