// Package workload determines which workload uses a device. Sources learn in the background
// what schedulers allocated and which workload a process belongs to; a Resolver matches
// that with the devices of this machine, by identity and never by order.
//
// The package itself reads nothing and needs no privilege; its subpackages are the sources
// (kubernetes, slurm, runtime, process) and their inputs.
package workload

import (
	"maps"
	"slices"
	"time"
)

// Workload is one instance of something that runs: a container of a pod, a job step, a
// container, a process. It is immutable.
type Workload struct {
	// ID identifies the instance uniquely on this machine, also across restarts of the
	// agent: pod/<uid>/<container>, container/<id>, process/<user>/<name>, ...
	ID   string `json:"id"`
	Kind string `json:"kind"` // deployment, job, slurm_job, container, process, ...
	Name string `json:"name"` // what users call it: the deployment's name, not the pod's
	Team string `json:"team,omitempty"`
	// Attributes are further attributes, under OpenTelemetry's names.
	Attributes map[string]string `json:"attributes,omitempty"`
	// Pages are where the pod says that its metrics pages are, the surest first. They describe no instance: Equal
	// leaves them out.
	Pages []Page `json:"-"`
	// Job is what its scheduler placed, nil if that is not known. It describes a moment: Equal leaves it out.
	Job *Job `json:"-"`
}

// Job is what a scheduler placed on this machine, and on others: a pod, or one run of a Slurm job.
type Job struct {
	ID        string // unique in its cluster
	Scheduler string // kubernetes, slurm
	Cluster   string // empty: not known to the source
	Queue     string // its namespace, its partition
	// Created is since when it waited, and Started when it or its first container started, zero if it has not or that is not
	// known. Restarted means that it will never be known.
	Created, Started time.Time
	Restarted        bool
}

// Page is where a workload says that it has a metrics page. Whoever may write that down may not be trusted with
// more: it has no host.
type Page struct {
	Port         uint16 // 0: unknown
	Scheme, Path string // http or https; begins with a slash
}

// Kinds of what has no owner.
const (
	Unallocated  = "unallocated"  // no workload holds it
	Unattributed = "unattributed" // used by an unknown workload
	Other        = "other"        // the workloads beyond the limit, together
)

// Equal reports whether w and o are the same instance with the same description.
func (w Workload) Equal(o Workload) bool {
	return w.ID == o.ID && w.Kind == o.Kind && w.Name == o.Name && w.Team == o.Team && maps.Equal(w.Attributes, o.Attributes)
}

// Ref is a device as a scheduler refers to it.
type Ref struct {
	// Resource is the name under which the device was requested: nvidia.com/gpu, or the
	// name of the driver that serves the claim.
	Resource string `json:"resource"`
	// IDs are the device's names there, most certain first, without replica numbers.
	IDs []string `json:"ids"`
}

// Grant states that a scheduler allocated a device to a workload.
type Grant struct {
	Workload Workload `json:"workload"`
	Device   Ref      `json:"device"`
	// Held of Replicas were allocated, if a device is offered several times over. Both are
	// 1 otherwise.
	Held     int  `json:"held"`
	Replicas int  `json:"replicas"`
	Stale    bool `json:"stale,omitempty"` // the source does not answer; this is its last answer
	// Limit is what of the device the workload may use, if it was allocated so much and no replicas. The zero Limit is none.
	Limit Limit `json:"limit,omitzero"`
}

// Limit is a part of a device, as a claim: see divideLimited.
type Limit struct {
	Memory  uint64  `json:"memory"`            // bytes
	Compute float64 `json:"compute,omitempty"` // part of the compute units; 0: as much as is free
}

// Status is one fact about a source: that it works, or what is missing.
type Status struct {
	Source string `json:"source"` // kubelet, kubernetes_api, cgroup, ...
	Reason Reason `json:"reason"`
	Detail string `json:"detail,omitempty"` // human-readable; no secret, no unbounded list
}

// Reason classifies a Status, the same for every source, because users alert on it.
type Reason string

// The reasons. OK means that nothing is missing; Absent that there is nothing to query,
// which is a normal state.
const (
	OK               Reason = "ok"
	Absent           Reason = "absent"
	Stale            Reason = "stale"             // the source does not answer; its last answer is still used
	Expired          Reason = "expired"           // the source has not answered for so long that its last answer is dropped
	PermissionDenied Reason = "permission_denied" // the source may not be queried, or not completely
	Failed           Reason = "failed"            // the source answers with an error or nonsense
	NoPIDNamespace   Reason = "no_host_pid_namespace"
	ResourceUnknown  Reason = "resource_unknown" // an allocated device is unknown to every reader
	NoMatch          Reason = "no_match"         // a process on a device belongs to no known workload
	NotRequested     Reason = "not_requested"    // a workload uses a device that was not allocated to it
)

// Source knows something about the workloads of this machine. Its methods return
// immediately, from what the source learned in the background, and are safe for concurrent
// use.
type Source interface {
	// Grants returns what schedulers allocated.
	Grants() []Grant
	// Process returns the workload that a process on this machine belongs to.
	Process(pid uint32) (Workload, bool)
	Statuses() []Status
}

// ContainerSource is a Source that also knows containers by id.
type ContainerSource interface {
	Container(id string) (Workload, bool)
}

// sortStatuses gives statuses, and with them time series, a stable order.
func sortStatuses(list []Status) []Status {
	slices.SortStableFunc(list, func(a, b Status) int {
		if c := slices.Compare([]string{a.Source, string(a.Reason)}, []string{b.Source, string(b.Reason)}); c != 0 {
			return c
		}
		return 0
	})
	return list
}

// JobKey identifies what all instances of a workload work for, also after it was requeued or its pod was replaced.
// It is empty for what has no owner, and for processes that are known by their program only.
func (w *Workload) JobKey() string {
	switch w.Kind {
	case "", "process", Unattributed, Unallocated, Other:
		return ""
	}
	key := w.Kind + "\x00" + w.Name
	for _, k := range []string{"k8s.namespace.name", "slurm.cluster", "slurm.job.id", "user.name"} {
		key += "\x00" + w.Attributes[k]
	}
	return key
}
