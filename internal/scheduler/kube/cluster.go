package kube

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube/dra"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube/gang"
	"github.com/gpumeter/gpumeter/internal/workload/podgroup"
)

// Limits of what is kept. 10,000 pods and 1,000 nodes are usual; a limit only protects the process.
const (
	maxPods  = 200_000
	maxNodes = 20_000
)

// Pods without accelerators that take less are never in the way of others: only what they take is kept.
const (
	largeCPU    = 1 * milli
	largeMemory = 4 << 30
)

// Cluster is what is known of the pods and nodes of a cluster, which a PodSink and a NodeSink keep current, and of its Kinds.
// Its methods and theirs may be called concurrently.
type Cluster struct {
	vendors   device.Vendors
	teamLabel string
	waits     *Waits // nil: not measured

	mu        sync.Mutex
	pods      pods
	nodes     map[string]*Node
	claims    objects[dra.Claim]
	slices    objects[dra.Slice]
	classes   objects[dra.Class]
	kueue     objects[gang.Workload]
	workload  map[string]string // keys of Workloads by namespace and UID of an owner
	podGroups map[podgroup.System]*objects[gang.PodGroup]
	// catalog is of the slices and classes after so many changes of them.
	catalog   *dra.Catalog
	cataloged [2]int
	owners    map[string]string // UIDs of the pods for which the devices of claims count
	history   history
	synced    struct{ pods, nodes, claims bool }
	refused   struct{ pods, nodes, events int } // beyond a limit, or not understood
	events    []Event                           // that nobody has taken yet; only with waits
}

// pods are the pods by UID. What a pod asks for is immutable once it is here.
type pods struct {
	own  map[string]*Pod  // those that ask for accelerators, or have claims
	rest map[string]taken // the others that are on a node, or in a group
}

// taken is what a pod without accelerators takes from its node.
type taken struct {
	node        string
	cpu, memory int64
	pod         *Pod // only if it takes so much that it may be in the way
	member      member
}

func newPods() pods { return pods{own: map[string]*Pod{}, rest: map[string]taken{}} }

func (p *pods) len() int { return len(p.own) + len(p.rest) }

// seen records what has happened to a pod that asks for accelerators. old is nil if it is new. A pod that is known by its claims
// before all of them were resolved once is as one of the first list: it may be old.
func (c *Cluster) seen(old, p *Pod, now time.Time, listed bool) {
	c.history.seen(old, p, now)
	if c.waits != nil {
		s := sight{old: old, pod: p, devices: p.Whole(c.vendors), now: now, listed: listed, first: !c.synced.pods || p.claims.found && !c.synced.claims}
		if old != nil {
			p.Ungated = old.Ungated
			if len(old.Gates) > 0 && len(p.Gates) == 0 && !listed {
				p.Ungated = s.when()
			}
		}
		if p.kueue && !p.Scheduled.IsZero() {
			w, _ := (&workloads{c.kueue.known(), c.workload}).of(p)
			p.ReservedAt, p.AdmittedAt = w.ReservedAt, w.AdmittedAt
			if old != nil && w.AdmittedAt.IsZero() { // it was evicted
				p.ReservedAt, p.AdmittedAt = old.ReservedAt, old.AdmittedAt
			}
		}
		c.happened(s, c.waits.seen(s))
		if p.Evicted != "" && (old == nil || old.Evicted == "") {
			c.waits.lost(s)
		}
	}
}

// gone records that a pod exists no more.
func (c *Cluster) gone(p *Pod, now time.Time) {
	if !p.accelerated() {
		return
	}
	c.history.gone(p, now)
	if c.waits != nil {
		c.waits.gone(p.UID)
		c.deleted(p, now)
	}
}

func (p *pods) know(uid string) bool {
	_, rest := p.rest[uid]
	return rest || p.own[uid] != nil
}

// NewCluster returns an empty Cluster. teamLabel is the pod label that names the team; empty: none. waits measures how
// long pods wait; nil: nobody does.
func NewCluster(vendors device.Vendors, teamLabel string, waits *Waits) *Cluster {
	c := &Cluster{
		vendors: vendors, teamLabel: teamLabel, waits: waits,
		pods: newPods(), nodes: map[string]*Node{},
	}
	c.further()
	return c
}

// put adds or replaces a pod.
func (p *pods) put(pod *Pod) {
	delete(p.own, pod.UID)
	delete(p.rest, pod.UID)
	switch {
	case len(pod.Devices) > 0, len(pod.claims.refs) > 0:
		p.own[pod.UID] = pod
	case pod.State.Has():
		t := taken{node: pod.Node, cpu: pod.CPU, memory: pod.Memory, member: pod.member}
		if pod.CPU >= largeCPU || pod.Memory >= largeMemory {
			t.pod = pod
		}
		p.rest[pod.UID] = t
	case pod.member.group.Name != "":
		p.rest[pod.UID] = taken{member: pod.member}
	}
}

// Snapshot is a cluster at one moment.
type Snapshot struct {
	Time    time.Time
	Vendors device.Vendors
	// Pods that ask for accelerators, and Nodes that offer some, sorted by name. Nil: they were never listed.
	Pods  []*Pod
	Nodes []*Node
	// Others are pods without accelerators that take much CPU or memory from one of the Nodes, sorted by name.
	Others []*Pod
	// Demands are what the pods of now and of the last day ask for.
	Demands []Weighted
	// Refused counts the objects beyond a limit and those that could not be understood.
	Refused int
	// Untold counts the events that were too many before somebody took them, so far.
	Untold int
	// Claims and Claimed count claims of accelerators, and the devices of claims. Nil: they are not known.
	Claims, Claimed map[dra.Group]int64

	// Groups are groups of pods that are not over, sorted by name.
	Groups []*Group

	claims    map[string]dra.Claim
	catalog   *dra.Catalog
	workloads workloads
	// unclear are pods whose claims are not known, or are not for accelerators.
	unclear []*Pod
}

// Pod returns a pod that asks for accelerators, as far as that is known, or nil.
func (s *Snapshot) Pod(namespace, name string) *Pod {
	// Of two pods of a name, one has ended and the other is newer.
	var found *Pod
	for _, p := range slices.Concat(s.Pods, s.unclear) {
		if !p.accelerated() && s.clear(p) {
			continue
		}
		if p.Namespace == namespace && p.Name == name && (found == nil || p.Created.After(found.Created)) {
			found = p
		}
	}
	return found
}

func byName(a, b *Pod) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
}

// Snapshot returns the cluster as it is known now.
func (c *Cluster) Snapshot(now time.Time) *Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resolveAll(now)
	s := &Snapshot{
		Time: now, Vendors: c.vendors, Demands: c.history.list(now), catalog: c.catalogNow(), claims: c.claims.copied(),
		Refused:   c.refused.pods + c.refused.nodes + c.history.refused + c.refusedKinds(),
		workloads: c.workloadsNow(), Groups: c.groupsOf(), Untold: c.refused.events,
	}
	if s.catalog != nil {
		s.Claims, s.Claimed = s.catalog.Count(s.claims)
	}
	if c.synced.pods {
		s.Pods = make([]*Pod, 0, len(c.pods.own))
		for _, p := range c.pods.own {
			if p.accelerated() {
				s.Pods = append(s.Pods, p)
			} else {
				s.unclear = append(s.unclear, p)
			}
		}
		slices.SortFunc(s.Pods, byName)
	}
	if !c.synced.nodes {
		return s
	}
	nodes, used := make(map[string]*Node, len(c.nodes)), make(map[string]Requests, len(c.nodes))
	for name, n := range c.nodes {
		node := *n
		nodes[name] = &node
	}
	take := func(node string, r Requests) {
		if n := nodes[node]; n != nil {
			used[node] = used[node].plus(r)
			n.Running++
		}
	}
	for _, p := range c.pods.own {
		if p.State.Has() {
			take(p.Node, p.Requests)
		}
	}
	for _, t := range c.pods.rest {
		take(t.node, Requests{CPU: t.cpu, Memory: t.memory})
		if t.pod != nil && nodes[t.node] != nil {
			s.Others = append(s.Others, t.pod)
		}
	}
	slices.SortFunc(s.Others, byName)
	var claimable map[string]*dra.Node
	if s.catalog != nil {
		claimable = s.catalog.Nodes(s.claims)
	}
	for name, n := range nodes {
		n.Left = n.Allocatable.minus(used[name])
		n.whole, n.free = n.Allocatable.Whole(c.vendors), n.Left.Whole(c.vendors)
		if d := claimable[name]; d != nil {
			s.addClaimable(n, d)
		}
		if !n.offers() {
			delete(nodes, name)
		}
	}
	s.Others = slices.DeleteFunc(s.Others, func(p *Pod) bool { return nodes[p.Node] == nil })
	s.Nodes = slices.SortedFunc(maps.Values(nodes), func(a, b *Node) int { return cmp.Compare(a.Name, b.Name) })
	if s.Nodes == nil {
		s.Nodes = []*Node{}
	}
	return s
}
