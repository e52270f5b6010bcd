package workload

import (
	"slices"
	"strings"
)

// OwnPrefix is the prefix of gpumeter's own attributes, as opposed to OpenTelemetry's.
const OwnPrefix = "gpu.workload."

// Attributes that any workload may have.
const (
	KeyKind = OwnPrefix + "kind"
	KeyName = OwnPrefix + "name"
	KeyTeam = OwnPrefix + "team"
	// KeyQueue is an attribute in the map: few workloads have one.
	KeyQueue = OwnPrefix + "queue"
)

// Attribute is one attribute of a workload, as exported on time series and log records.
type Attribute struct{ Key, Value string }

// Identity returns the known attributes of w: kind, name and team, then the rest sorted by
// key. Every component uses it, so that their series join.
func (w *Workload) Identity() []Attribute {
	list := make([]Attribute, 0, 3+len(w.Attributes))
	for _, a := range []Attribute{{KeyKind, w.Kind}, {KeyName, w.Name}, {KeyTeam, w.Team}} {
		if a.Value != "" {
			list = append(list, a)
		}
	}
	own := len(list)
	for key, value := range w.Attributes {
		if value != "" {
			list = append(list, Attribute{key, value})
		}
	}
	SortAttributes(list[own:])
	return list
}

// SortAttributes sorts by key.
func SortAttributes(list []Attribute) {
	slices.SortFunc(list, func(a, b Attribute) int { return strings.Compare(a.Key, b.Key) })
}

// Meaning documents an attribute.
type Meaning struct{ Key, Text string }

// Meanings returns the attributes that Identity may return, in the order of the
// documentation. Pod labels, which users choose, are additional.
func Meanings() []Meaning {
	return []Meaning{
		{KeyKind, "What the workload is: deployment, job and so on, container, process; unallocated (no workload holds it), unattributed (used by an unknown workload) or other (workloads beyond the limit)."},
		{KeyName, "Name that users know the workload by: the deployment's, not the pod's."},
		{KeyTeam, "Team that the workload belongs to, from a label or a mapping."},
		{KeyQueue, "Queue in which a queueing system such as Kueue, Volcano, KAI, YuniKorn or Koordinator has the pod, or the partition of the Slurm job. Absent if there is none."},
		{"k8s.namespace.name", "Namespace of the pod."},
		{"k8s.pod.name", "Name of the pod."},
		{"k8s.pod.uid", "UID of the pod."},
		{"k8s.container.name", "Name of the container in the pod."},
		{"k8s.deployment.name", "Name of the deployment, if the pod belongs to one; likewise for the following."},
		{"k8s.replicaset.name", "Name of the replica set."},
		{"k8s.statefulset.name", "Name of the stateful set."},
		{"k8s.daemonset.name", "Name of the daemon set."},
		{"k8s.job.name", "Name of the job."},
		{"k8s.cronjob.name", "Name of the cron job."},
		{"slurm.cluster", "Cluster of the Slurm job."},
		{"slurm.job.id", "ID of the Slurm job; for an array, of the task."},
		{"slurm.job.name", "Name of the Slurm job."},
		{"slurm.user", "User of the Slurm job."},
		{"slurm.account", "Account of the Slurm job."},
		{"slurm.partition", "Partition of the Slurm job."},
		{"slurm.qos", "Quality of service of the Slurm job."},
		{"slurm.array.job.id", "ID of the job array that the Slurm job is a task of."},
		{"slurm.array.task.id", "ID of the task in its array."},
		{"container.id", "Identifier of a container outside Kubernetes."},
		{"container.name", "Name of a container outside Kubernetes."},
		{"container.image.name", "Image of a container outside Kubernetes."},
		{"user.name", "User of a process outside any container."},
	}
}
