// Package workload says whose work is on a device. Sources learn in the background what
// schedulers gave to whom and what processes belong to; a Resolver joins that with the
// devices of this machine, by their identity, never by their order.
package workload

import (
	"maps"
	"slices"
)

// Workload is one instance of something that runs: a container of a pod, a step of a
// job, a container, a process. Nobody changes one after it was made.
type Workload struct {
	// ID tells the instance from every other on this machine, also after a restart of
	// the agent: pod/<uid>/<container>, container/<id>, process/<user>/<name>, ...
	ID   string `json:"id"`
	Kind string `json:"kind"` // deployment, job, slurm_job, container, process, ...
	Name string `json:"name"` // what its users call it: of the deployment, not of the pod
	Team string `json:"team,omitempty"`
	// Attributes are what else is known, under the names of OpenTelemetry.
	Attributes map[string]string `json:"attributes,omitempty"`
}

// The kinds of what has no owner.
const (
	Unallocated  = "unallocated"  // nobody holds it
	Unattributed = "unattributed" // somebody uses it, and nobody can say who
	Other        = "other"        // the workloads beyond a cap, together
)

// Equal reports whether w and o are the same instance described in the same way.
func (w Workload) Equal(o Workload) bool {
	return w.ID == o.ID && w.Kind == o.Kind && w.Name == o.Name && w.Team == o.Team && maps.Equal(w.Attributes, o.Attributes)
}

// Ref is a device as a scheduler calls it.
type Ref struct {
	// Resource is the name under which it was asked for: nvidia.com/gpu, or the name of
	// the driver that serves the claim.
	Resource string `json:"resource"`
	// IDs are its names there, the most certain first, without the number of a replica.
	IDs []string `json:"ids"`
}

// Grant says that a scheduler gave a device to a workload.
type Grant struct {
	Workload Workload `json:"workload"`
	Device   Ref      `json:"device"`
	// Held of Replicas were given to it, where a device is offered several times over.
	// Both are 1 where it is not.
	Held     int  `json:"held"`
	Replicas int  `json:"replicas"`
	Stale    bool `json:"stale,omitempty"` // the source is down since, this is what it said last
}

// Status is one thing to know about a source: how well it does, or what it misses.
type Status struct {
	Source string `json:"source"` // kubelet, kubernetes_api, cgroup, ...
	Reason Reason `json:"reason"`
	Detail string `json:"detail,omitempty"` // for people; no secret, no unbounded list
}

// Reason is a word for a Status, the same for every source, because people alert on it.
type Reason string

// The reasons. OK says that nothing is missing; Absent that there is nothing to ask,
// which is a normal state.
const (
	OK               Reason = "ok"
	Absent           Reason = "absent"
	Stale            Reason = "stale"             // it does not answer; what it said last is still used
	Expired          Reason = "expired"           // it has not answered for so long that its answers are dropped
	PermissionDenied Reason = "permission_denied" // it may not be asked, or not about everything
	Failed           Reason = "failed"            // it answers nonsense or an error
	NoPIDNamespace   Reason = "no_host_pid_namespace"
	ResourceUnknown  Reason = "resource_unknown" // a device was given out that no reader knows
	NoMatch          Reason = "no_match"         // a process is on a device that nobody can name
	NotRequested     Reason = "not_requested"    // a workload uses a device that it was not given
)

// Source knows something of the workloads of this machine. Its methods answer at once,
// from what it learned in the background, and may be called concurrently.
type Source interface {
	// Grants returns what schedulers gave to whom.
	Grants() []Grant
	// Process returns the workload that a process of this machine belongs to.
	Process(pid uint32) (Workload, bool)
	Statuses() []Status
}

// ContainerSource is a Source that knows containers by their id, too.
type ContainerSource interface {
	Container(id string) (Workload, bool)
}

// sortStatuses makes the order of statuses, and with it of series, a stable one.
func sortStatuses(list []Status) []Status {
	slices.SortStableFunc(list, func(a, b Status) int {
		if c := slices.Compare([]string{a.Source, string(a.Reason)}, []string{b.Source, string(b.Reason)}); c != 0 {
			return c
		}
		return 0
	})
	return list
}
