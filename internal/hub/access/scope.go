package access

import (
	"strings"

	"github.com/gpumeter/gpumeter/internal/fleet"
)

// Scope is a part of the fleet's data: what carries all of its names. The zero value is
// everything.
type Scope struct{ Team, Namespace, Cluster string }

// All reports whether the scope is everything.
func (s Scope) All() bool { return s == Scope{} }

// names lists the fields with their label and their attribute.
func (s Scope) names() [3][3]string {
	return [3][3]string{
		{fleet.LabelTeam, "gpu.workload.team", s.Team},
		{fleet.LabelNamespace, "k8s.namespace.name", s.Namespace},
		{fleet.LabelCluster, "k8s.cluster.name", s.Cluster},
	}
}

// Labels returns the labels of every series in the scope.
func (s Scope) Labels() map[string]string {
	out := map[string]string{}
	for _, n := range s.names() {
		if n[2] != "" {
			out[n[0]] = n[2]
		}
	}
	return out
}

// Attributes returns the attributes of every event in the scope.
func (s Scope) Attributes() map[string]string {
	out := map[string]string{}
	for _, n := range s.names() {
		if n[2] != "" {
			out[n[1]] = n[2]
		}
	}
	return out
}

// Has reports whether labels are in the scope.
func (s Scope) Has(labels map[string]string) bool {
	for _, n := range s.names() {
		if n[2] != "" && labels[n[0]] != n[2] {
			return false
		}
	}
	return true
}

// String returns the scope for display: a team, or a namespace with its cluster. It is empty for
// everything.
func (s Scope) String() string {
	var parts []string
	for _, text := range []string{s.Team, s.Cluster, s.Namespace} {
		if text != "" {
			parts = append(parts, text)
		}
	}
	return strings.Join(parts, "/")
}
