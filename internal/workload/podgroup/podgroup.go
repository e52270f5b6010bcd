// Package podgroup reads from a pod in which queue it is and which pods belong together. Queueing systems and
// operators write that into labels, annotations and the spec, each in its own place.
//
// Whoever creates a pod may write the same. So what is read here names a pod and explains why it waits; it gives
// nobody a device.
package podgroup

import (
	"cmp"
	"encoding/json"
	"strconv"
	"strings"
)

// Annotations are the decoded annotations. Embed it to decode it together with others.
type Annotations struct {
	VolcanoQueue       string `json:"volcano.sh/queue-name"`            // of the pods of a Volcano job
	VolcanoSchedulingQ string `json:"scheduling.volcano.sh/queue-name"` // of others
	YuniKornQueue      string `json:"yunikorn.apache.org/queue"`
	YuniKornApp        string `json:"yunikorn.apache.org/app-id"`
	YuniKornGroup      string `json:"yunikorn.apache.org/task-group-name"`
	YuniKornGroups     string `json:"yunikorn.apache.org/task-groups"` // JSON, on the first pod or on all
	YuniKornHolder     string `json:"yunikorn.apache.org/placeholder"` // true on pods that hold places for others

	VolcanoGroup    string `json:"scheduling.k8s.io/group-name"`
	VolcanoGroupOld string `json:"scheduling.volcano.sh/group-name"`
	VolcanoMinimum  string `json:"scheduling.volcano.sh/group-min-member"`
	KAIGroup        string `json:"pod-group-name"`
	KueueTotal      string `json:"kueue.x-k8s.io/pod-group-total-count"`
	KueueWorkload   string `json:"kueue.x-k8s.io/workload"`
	KoordinatorGang string `json:"gang.scheduling.koordinator.sh/name"`
	KoordinatorMin  string `json:"gang.scheduling.koordinator.sh/min-available"`
	LWSSize         string `json:"leaderworkerset.sigs.k8s.io/size"`
}

// Spec is the decoded part of the spec. Embed it, too.
type Spec struct {
	SchedulerName string `json:"schedulerName"`
	// SchedulingGroup names a PodGroup of Kubernetes itself; WorkloadRef was its form in 1.35.
	SchedulingGroup struct {
		PodGroupName string `json:"podGroupName"`
	} `json:"schedulingGroup"`
	WorkloadRef struct {
		Name       string `json:"name"`
		PodGroup   string `json:"podGroup"`
		ReplicaKey string `json:"podGroupReplicaKey"`
	} `json:"workloadRef"`
}

// Labels that name a queue.
const (
	KueueQueue    = "kueue.x-k8s.io/queue-name"
	volcanoQueue  = "volcano.sh/queue-name"
	kaiQueue      = "kai.scheduler/queue"
	runaiQueue    = "runai/queue" // KAI before it had this name
	koordQuota    = "quota.scheduling.koordinator.sh/name"
	yunikornQueue = "yunikorn.apache.org/queue"
	// Anybody may call a label so: it is YuniKorn's on pods that YuniKorn schedules.
	plainQueue = "queue"
	yunikorn   = "yunikorn"
)

// Labels that name an application of YuniKorn.
const (
	yunikornApp = "yunikorn.apache.org/app-id"
	plainApp    = "applicationId"
)

// Labels that name a group, and what is counted in it.
const (
	kueueGroup   = "kueue.x-k8s.io/pod-group-name"
	coscheduling = "scheduling.x-k8s.io/pod-group"
	oldGroup     = "pod-group.scheduling.sigs.k8s.io" // coscheduling before 0.23, and Koordinator
	oldGroupName = "pod-group.scheduling.sigs.k8s.io/name"
	oldMinimum   = "pod-group.scheduling.sigs.k8s.io/min-available"
	lwsName      = "leaderworkerset.sigs.k8s.io/name"
	lwsIndex     = "leaderworkerset.sigs.k8s.io/group-index"
	jobSetName   = "jobset.sigs.k8s.io/jobset-name"
	// JobSetUID is the UID of the JobSet of a pod.
	JobSetUID = "jobset.sigs.k8s.io/jobset-uid"
)

// Marks is where a pod, or the owner of pods, says to which queue and group it belongs.
type Marks struct {
	UID         string
	Labels      map[string]string
	Annotations *Annotations
	Spec        *Spec
}

// maxName bounds a name. Those of objects have up to 253 bytes; an annotation may be as long as it likes.
const maxName = 253

func name(list ...string) string {
	if s := cmp.Or(list...); len(s) <= maxName {
		return s
	}
	return ""
}

// Queue returns the queue, empty if none is named.
func (m *Marks) Queue() string {
	own := ""
	if m.Spec.SchedulerName == yunikorn {
		own = m.Labels[plainQueue]
	}
	return name(
		m.Labels[KueueQueue],
		m.Annotations.VolcanoQueue, m.Labels[volcanoQueue], m.Annotations.VolcanoSchedulingQ,
		m.Labels[kaiQueue], m.Labels[runaiQueue],
		m.Labels[yunikornQueue], m.Annotations.YuniKornQueue, own,
		m.Labels[koordQuota],
	)
}

// System is what ties a group of pods together.
type System string

// The systems.
const (
	Kubernetes      System = "kubernetes" // the Workload API
	Kueue           System = "kueue"
	Volcano         System = "volcano"
	KAI             System = "kai"
	YuniKorn        System = "yunikorn"     // the task groups of an application
	Coscheduling    System = "coscheduling" // of scheduler-plugins, and Koordinator's
	LeaderWorkerSet System = "leaderworkerset"
	JobSet          System = "jobset"
)

// Group is pods that belong together.
type Group struct {
	System System
	Name   string // unique in the namespace, among the groups of the system
	// Minimum is how many of them must have a place before any may run. 0: an object of the system says it, or nobody.
	Minimum int
}

// Together reports whether the scheduler places a group as a whole or not at all. The others are created or
// released as a whole, and their pods are placed one by one.
func (s System) Together() bool {
	return s == Kubernetes || s == Volcano || s == KAI || s == YuniKorn || s == Coscheduling
}

// Group returns the group that people have made, or a system for several pods; the zero Group if there is none.
func (m *Marks) Group() Group {
	a := m.Annotations
	for _, g := range []Group{
		{Kubernetes, m.Spec.SchedulingGroup.PodGroupName, 0},
		{Kubernetes, m.workloadRef(), 0},
		{Volcano, cmp.Or(a.VolcanoGroup, a.VolcanoGroupOld), count(a.VolcanoMinimum)},
		{KAI, a.KAIGroup, 0},
		m.application(),
		{Coscheduling, a.KoordinatorGang, count(a.KoordinatorMin)},
		{Coscheduling, cmp.Or(m.Labels[coscheduling], m.Labels[oldGroup], m.Labels[oldGroupName]), count(m.Labels[oldMinimum])},
		{Kueue, m.Labels[kueueGroup], count(a.KueueTotal)},
	} {
		if g.Name = name(g.Name); g.Name != "" && !m.alone(g.Name) {
			return g
		}
	}
	return Group{}
}

// alone reports whether a group was made for this pod only: KAI and Volcano make one for each pod without an owner, and
// name it after the UID.
func (m *Marks) alone(group string) bool { return m.UID != "" && strings.HasSuffix(group, m.UID) }

// maxTaskGroups bounds the text of the task groups of an application, in bytes.
const maxTaskGroups = 64 << 10

// application returns the application of a pod with a task group: YuniKorn places all its task groups together. Pods that hold
// places for others are no members.
func (m *Marks) application() Group {
	a := m.Annotations
	if a.YuniKornGroup == "" || a.YuniKornHolder == "true" {
		return Group{}
	}
	g := Group{System: YuniKorn, Name: cmp.Or(m.Labels[yunikornApp], a.YuniKornApp, m.Labels[plainApp])}
	var groups []struct {
		Minimum int `json:"minMember"`
	}
	if len(a.YuniKornGroups) > maxTaskGroups || json.Unmarshal([]byte(a.YuniKornGroups), &groups) != nil {
		return g // another pod says how many
	}
	for _, one := range groups {
		if g.Minimum += one.Minimum; one.Minimum < 0 || g.Minimum > maxMembers {
			g.Minimum = 0
			break
		}
	}
	return g
}

// workloadRef returns the name of a group of a Workload of Kubernetes 1.35.
func (m *Marks) workloadRef() string {
	r := &m.Spec.WorkloadRef
	if r.Name == "" {
		return ""
	}
	return strings.TrimRight(r.Name+"/"+r.PodGroup+"/"+r.ReplicaKey, "/")
}

// Gang returns the pods that have to run at the same time: the Group, the group of a leader of a LeaderWorkerSet, or the
// JobSet.
func (m *Marks) Gang() Group {
	if g := m.Group(); g.Name != "" {
		return g
	}
	if set, index := m.Labels[lwsName], m.Labels[lwsIndex]; set != "" && index != "" && name(set+"-"+index) != "" {
		return Group{LeaderWorkerSet, set + "-" + index, count(m.Annotations.LWSSize)}
	}
	if set := name(m.Labels[jobSetName]); set != "" {
		return Group{System: JobSet, Name: set}
	}
	return Group{}
}

// Set returns the kind and the name of the set that a pod says to belong to, by a label of the operator that made it:
// empty if there is none. direct is the name of the pod's controller, which the operators derive from that of the set.
func (m *Marks) Set(kind, direct string) (setKind, setName string) {
	of := func(label string) (string, bool) {
		set := m.Labels[label]
		return set, set != "" && (direct == set || strings.HasPrefix(direct, set+"-"))
	}
	switch kind {
	case "Job":
		if set, ok := of(jobSetName); ok {
			return "jobset", set
		}
	case "StatefulSet":
		if set, ok := of(lwsName); ok {
			return "leaderworkerset", set
		}
	}
	return "", ""
}

// maxMembers bounds the size of a group.
const maxMembers = 1_000_000

// count parses a number of members; 0 if it is none.
func count(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > maxMembers {
		return 0
	}
	return n
}
