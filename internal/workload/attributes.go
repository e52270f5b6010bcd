package workload

import (
	"slices"
	"strings"
)

// OwnPrefix begins the names of the attributes that nobody else gives.
const OwnPrefix = "gpu.workload."

// The attributes that every workload may have.
const (
	KeyKind = OwnPrefix + "kind"
	KeyName = OwnPrefix + "name"
	KeyTeam = OwnPrefix + "team"
)

// Attribute is one of a workload, as it is on series and records.
type Attribute struct{ Key, Value string }

// Identity returns what w is, without what is not known: kind, name and team, then the rest
// by name. It is the same wherever it is added, so that series of all components join.
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

// SortAttributes sorts by name.
func SortAttributes(list []Attribute) {
	slices.SortFunc(list, func(a, b Attribute) int { return strings.Compare(a.Key, b.Key) })
}

// Meaning is what an attribute says.
type Meaning struct{ Key, Text string }

// Meanings returns the attributes that Identity may have, in the order of their document.
// Labels of pods, which users choose, come on top.
func Meanings() []Meaning {
	return []Meaning{
		{KeyKind, "What the workload is: deployment, job and so on, container, process; unallocated (nobody holds it), unattributed (used, and nobody knows by whom) or other (those beyond a cap)."},
		{KeyName, "Name of the workload that its users know: of the deployment, not of the pod."},
		{KeyTeam, "Who the workload belongs to, by a label or a mapping."},
		{"k8s.namespace.name", "Namespace of the pod."},
		{"k8s.pod.name", "Name of the pod."},
		{"k8s.pod.uid", "UID of the pod."},
		{"k8s.container.name", "Name of the container in the pod."},
		{"k8s.deployment.name", "Name of the deployment, if that is what the pod belongs to; likewise for the next."},
		{"k8s.replicaset.name", "Name of the replica set."},
		{"k8s.statefulset.name", "Name of the stateful set."},
		{"k8s.daemonset.name", "Name of the daemon set."},
		{"k8s.job.name", "Name of the job."},
		{"k8s.cronjob.name", "Name of the cron job."},
		{"slurm.cluster", "Cluster of the Slurm job."},
		{"slurm.job.id", "Number of the Slurm job; of an array, of the task."},
		{"slurm.job.name", "Name of the Slurm job."},
		{"slurm.user", "User of the Slurm job."},
		{"slurm.account", "Account of the Slurm job."},
		{"slurm.partition", "Partition of the Slurm job."},
		{"slurm.qos", "Quality of service of the Slurm job."},
		{"slurm.array.job.id", "Number of the array that the Slurm job is a task of."},
		{"slurm.array.task.id", "Number of the task in its array."},
		{"container.id", "Identifier of a container that is not of a pod."},
		{"container.name", "Name of a container that is not of a pod."},
		{"container.image.name", "Image of a container that is not of a pod."},
		{"user.name", "User of a process that is in no container."},
	}
}
