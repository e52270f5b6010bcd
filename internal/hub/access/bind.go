package access

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Binding is what a write token speaks for. An empty list does not restrict.
type Binding struct{ Nodes, Clusters []string }

// Bindings permit what any of them permits. An empty list permits everything.
type Bindings []Binding

// Machine is what a sample or an event says about its origin, as it is stored.
type Machine struct{ Host, Node, Cluster string }

// String returns the machine for the sender.
func (m Machine) String() string {
	return fmt.Sprintf("host.name %.100q, k8s.node.name %.100q, k8s.cluster.name %.100q", m.Host, m.Node, m.Cluster)
}

// Permit reports whether data of a machine may be written. Both names of a node must be bound,
// because each is the node to some reader. Data that names no node is nobody's, and refused.
func (b Bindings) Permit(m Machine) bool {
	return len(b) == 0 || slices.ContainsFunc(b, func(x Binding) bool { return x.permits(m) })
}

func (b *Binding) permits(m Machine) bool {
	if len(b.Nodes) > 0 {
		if m.Host == "" && m.Node == "" {
			return false
		}
		for _, name := range []string{m.Host, m.Node} {
			if name != "" && !slices.Contains(b.Nodes, name) {
				return false
			}
		}
	}
	return len(b.Clusters) == 0 || slices.Contains(b.Clusters, m.Cluster)
}

// String returns what the bindings permit, for the sender.
func (b Bindings) String() string {
	var all []string
	for _, x := range b {
		var words []string
		for _, n := range x.Nodes {
			words = append(words, "node="+n)
		}
		for _, c := range x.Clusters {
			words = append(words, "cluster="+c)
		}
		all = append(all, strings.Join(words, " "))
	}
	return strings.Join(all, ", or ")
}

type boundKey struct{}

// WithBindings returns a context for requests of a sender that is bound. The store reads it, so
// that no way of writing can forget it.
func WithBindings(ctx context.Context, b Bindings) context.Context {
	if len(b) == 0 {
		return ctx
	}
	return context.WithValue(ctx, boundKey{}, b)
}

// BindingsOf returns the bindings of the sender of a request; nil: not bound.
func BindingsOf(ctx context.Context) Bindings {
	b, _ := ctx.Value(boundKey{}).(Bindings)
	return b
}
