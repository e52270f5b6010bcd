package kube

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/scheduler"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube/gang"
	"github.com/gpumeter/gpumeter/internal/workload/podgroup"
)

// MemberState is the state of a pod of a group.
type MemberState string

// The states of members.
const (
	Missing MemberState = "missing" // the group needs it, and it does not exist
	Waiting MemberState = "waiting" // it has no place
	Placed  MemberState = "placed"  // it has a place and does not run yet, or not anymore
	Running MemberState = "running"
	Done    MemberState = "done" // it ran and succeeded
)

// GroupKey names a group.
type GroupKey struct {
	System          podgroup.System
	Namespace, Name string
}

func (k GroupKey) compare(o GroupKey) int {
	return cmp.Or(cmp.Compare(k.Namespace, o.Namespace), cmp.Compare(k.System, o.System), cmp.Compare(k.Name, o.Name))
}

// member is a pod of a group.
type member struct {
	group   GroupKey
	minimum int // that the pod says; 0: it does not
	state   MemberState
}

// belongs returns the group of a pod, the zero member if it has none or does not count in it: it failed, and another takes
// its place.
func (o *podObject) belongs(state scheduler.State) member {
	g := o.marks().Gang()
	if g.Name == "" {
		return member{}
	}
	m := member{GroupKey{g.System, o.Metadata.Namespace, g.Name}, g.Minimum, Placed}
	switch {
	case state == scheduler.Running:
		m.state = Running
	case state.Waits():
		m.state = Waiting
	case state == scheduler.Finished && o.Status.Phase == "Succeeded":
		m.state = Done
	case state == scheduler.Finished:
		return member{}
	}
	return m
}

func (o *podObject) marks() *podgroup.Marks {
	return &podgroup.Marks{UID: o.Metadata.UID, Labels: o.Metadata.Labels, Annotations: &o.Metadata.Annotations.Annotations, Spec: &o.Spec.Spec}
}

// Group is pods that belong together, at least one of which asks for accelerators.
type Group struct {
	GroupKey
	Needed  int // members that must have a place before any may run
	Members map[MemberState]int
	Message string // why it is not placed, in the words of its scheduler
}

// Has returns how many of the members have a place, or had one.
func (g *Group) Has() int { return g.Members[Placed] + g.Members[Running] + g.Members[Done] }

// State returns the state of the group: that of the member by which it is complete.
func (g *Group) State() MemberState {
	switch {
	case g.Has() < g.Needed:
		return Waiting
	case g.Members[Running]+g.Members[Done] < g.Needed:
		return Placed
	}
	return Running
}

// groupsOf returns the groups that are not over and need more than one member. Where only an object of the system says how
// many are needed, and that is not known, the group is left out.
func (c *Cluster) groupsOf() []*Group {
	all, accelerated := map[GroupKey]*Group{}, map[GroupKey]bool{}
	add := func(m member, ours bool) {
		if m.group.Name == "" {
			return
		}
		g := all[m.group]
		if g == nil {
			g = &Group{GroupKey: m.group, Members: map[MemberState]int{}}
			all[m.group] = g
		}
		g.Needed = max(g.Needed, m.minimum)
		g.Members[m.state]++
		accelerated[m.group] = accelerated[m.group] || ours
	}
	for _, p := range c.pods.own {
		add(p.member, p.accelerated())
	}
	for _, t := range c.pods.rest {
		add(t.member, false)
	}
	var list []*Group
	for key, g := range all {
		if object, ok := c.podGroups[key.System].known()[key.Namespace+"/"+key.Name]; ok {
			g.Needed, g.Message = cmp.Or(object.Minimum, g.Needed), object.Message
		}
		present := g.Has() + g.Members[Waiting]
		if g.Needed == 0 && !key.System.Together() {
			g.Needed = present
		}
		if missing := g.Needed - present; missing > 0 {
			g.Members[Missing] = missing
		}
		if accelerated[key] && g.Needed > 1 && present > g.Members[Done] {
			list = append(list, g)
		}
	}
	slices.SortFunc(list, func(a, b *Group) int { return a.compare(b.GroupKey) })
	return list
}

// workloads finds the Workloads of Kueue.
type workloads struct {
	byName  map[string]gang.Workload
	byOwner map[string]string // names by namespace and UID of an owner
}

func (c *Cluster) workloadsNow() workloads {
	return workloads{c.kueue.copied(), maps.Clone(c.workload)}
}

// of returns the Workload of a pod: that which the pod names, or which has the pod or its owner as owner.
func (w *workloads) of(p *Pod) (gang.Workload, bool) {
	keys := []string{w.byOwner[p.Namespace+"/"+p.UID]}
	if p.Workload != "" {
		keys = append(keys, p.Namespace+"/"+p.Workload)
	}
	if p.member.group.System == podgroup.Kueue {
		keys = append(keys, p.Namespace+"/"+p.member.group.Name)
	}
	for _, owner := range p.owners {
		keys = append(keys, w.byOwner[p.Namespace+"/"+owner])
	}
	for _, key := range keys {
		if found, ok := w.byName[key]; ok {
			return found, true
		}
	}
	return gang.Workload{}, false
}

// held returns why a gated pod waits: as its Workload says, if it has one, or because its group is not complete.
func (s *Snapshot) held(p *Pod) scheduler.Reason {
	if w, ok := s.workloads.of(p); ok && !w.Admitted {
		switch w.Reason {
		case "WaitingForQuota", "ExceedsMaxQuota":
			return scheduler.Quota
		case "WaitingForPreemptedWorkloads":
			return scheduler.Preempting
		case "NoMatchingFlavor", "TopologyPlacementFailed":
			return scheduler.Affinity
		case "Pending": // before 0.19, for everything
			if r := reasonOf(w.Message, s.Vendors); r == scheduler.Quota || r == scheduler.Affinity {
				return r
			}
		}
		return scheduler.Gated
	}
	if g := s.group(p); g != nil && g.System == podgroup.Kueue && g.Members[Missing] > 0 {
		return scheduler.Gang
	}
	return scheduler.Gated
}

// group returns the group of a pod, or nil.
func (s *Snapshot) group(p *Pod) *Group {
	i, ok := slices.BinarySearchFunc(s.Groups, p.member.group, func(g *Group, key GroupKey) int { return g.compare(key) })
	if !ok {
		return nil
	}
	return s.Groups[i]
}

// waitsForOthers reports whether a pod gets a place only together with others that have none so far.
func (s *Snapshot) waitsForOthers(p *Pod) bool {
	g := s.group(p)
	return g != nil && g.System.Together() && g.State() == Waiting
}

// saysGroup says what the group of a pod needs, and what the queueing system says, empty if there is neither.
func (s *Snapshot) saysGroup(p *Pod) []string {
	var lines []string
	if g := s.group(p); g != nil {
		line := fmt.Sprintf("Its group %s (%s) needs %d pods: %s, %s a place.", g.Name, g.System, g.Needed,
			exist(g.Needed-g.Members[Missing], g.Members[Missing]), have(g.Has()))
		if n := s.waitingDevices(g); g.State() == Waiting && n > 0 && s.Nodes != nil {
			verb, free := "are", s.freeDevices()
			if free == 1 {
				verb = "is"
			}
			line += fmt.Sprintf(" Those that wait ask for %s, and %d %s free.", scheduler.Plural(n, "GPU"), free, verb)
		}
		if g.Message != "" {
			line += " " + titles[g.System] + " says: " + strings.TrimSuffix(g.Message, ".") + "."
		}
		lines = append(lines, line)
	}
	if w, ok := s.workloads.of(p); ok && w.Message != "" {
		lines = append(lines, fmt.Sprintf("Kueue says of workload %s: %s.", w.Name, strings.TrimSuffix(w.Message, ".")))
	}
	return lines
}

var titles = map[podgroup.System]string{
	podgroup.Kubernetes: "Its scheduler", podgroup.Volcano: "Volcano", podgroup.KAI: "KAI", podgroup.Coscheduling: "Its scheduler",
}

func exist(present, missing int) string {
	switch {
	case missing == 0:
		return "all exist"
	case present == 1:
		return "1 exists"
	}
	return fmt.Sprintf("%d exist", present)
}

func have(n int) string {
	switch n {
	case 0:
		return "none has"
	case 1:
		return "1 has"
	}
	return fmt.Sprintf("%d have", n)
}

// waitingDevices returns how many whole devices the waiting members of a group ask for.
func (s *Snapshot) waitingDevices(g *Group) int64 {
	n := int64(0)
	for _, p := range s.Pods {
		if p.member.group == g.GroupKey && p.State.Waits() {
			n = sum(n, p.Whole(s.Vendors))
		}
	}
	return n
}

// freeDevices returns how many whole devices are free on nodes that take pods.
func (s *Snapshot) freeDevices() int64 {
	n := int64(0)
	for _, node := range s.Nodes {
		if node.Open() {
			n += node.free
		}
	}
	return n
}
