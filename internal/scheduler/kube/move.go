package kube

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/scheduler"
)

// Move is a pod that would make room for another if it ran on another node.
type Move struct {
	Pod *Pod
	To  string
}

// Plan is the smallest set of moves after which a waiting pod fits on a node, as far as resources, taints and labels
// go. It is advice: nothing is moved. A pod that is moved is ended and created again by its controller.
type Plan struct {
	Node  string
	Moves []Move
}

const (
	// maxMoves bounds the moves of a plan: nobody carries out a longer one.
	maxMoves = 3
	// maxSets bounds the sets of pods that are tried for one plan.
	maxSets = 20_000
	// maxTargets is how many nodes are remembered for the pods of one demand.
	maxTargets = 8
)

// Planner finds moves in one Snapshot. It remembers where pods could go, so that several plans cost little more than one.
type Planner struct {
	now     time.Time
	nodes   map[string]*Node
	movable map[string][]*Pod // by node
	targets map[string][]*Node
	plans   map[string]*Plan // nil: none
}

// NewPlanner returns a Planner.
func NewPlanner(s *Snapshot) *Planner {
	p := &Planner{
		now: s.Time, nodes: map[string]*Node{}, movable: map[string][]*Pod{}, targets: map[string][]*Node{}, plans: map[string]*Plan{},
	}
	for _, n := range s.Nodes {
		p.nodes[n.Name] = n
	}
	for _, list := range [][]*Pod{s.Pods, s.Others} {
		for _, pod := range list {
			if pod.Movable && pod.State.Has() && pod.State != scheduler.Stopping && p.nodes[pod.Node] != nil {
				p.movable[pod.Node] = append(p.movable[pod.Node], pod)
			}
		}
	}
	for _, list := range p.movable {
		slices.SortStableFunc(list, func(a, b *Pod) int { return cmp.Compare(total(b.Devices), total(a.Devices)) })
	}
	return p
}

// Plan returns the smallest plan for a demand: the fewest moves, of those the fewest devices, then the least time since the
// moved pods started. ok is false if the demand fits already, or if no plan is found.
func (p *Planner) Plan(d *Demand) (plan Plan, ok bool) {
	found := once(p.plans, d.key(), func() *Plan { return p.search(d) })
	if found == nil {
		return Plan{}, false
	}
	return *found, true
}

func (p *Planner) search(d *Demand) *Plan {
	var places []*Node // where it would fit if they were empty
	for _, n := range p.nodes {
		empty := *n
		empty.Left, empty.Running = n.Allocatable, 0
		switch {
		case d.fits(n):
			return nil
		case d.offers(n) && d.fits(&empty):
			places = append(places, n)
		}
	}
	slices.SortFunc(places, func(a, b *Node) int {
		return cmp.Or(cmp.Compare(d.lacks(a), d.lacks(b)), cmp.Compare(a.Name, b.Name))
	})
	s := search{planner: p, demand: d}
	for s.size = 1; s.size <= maxMoves && s.best == nil; s.size++ {
		s.tried = 0
		for _, n := range places {
			if d.lacks(n) > p.most(n.Name, s.size) {
				continue
			}
			s.place = n
			s.extend(nil, p.movable[n.Name], nil)
		}
	}
	return s.best
}

// lacks returns how many devices a node has too few of.
func (d *Demand) lacks(n *Node) int64 {
	all := int64(0)
	for name, want := range d.Devices {
		all += max(0, want-n.Left.Devices[name])
	}
	return all
}

// most returns how many devices so many pods of a node have at most. Its pods are ordered by their devices.
func (p *Planner) most(node string, pods int) int64 {
	all := int64(0)
	for _, pod := range p.movable[node][:min(pods, len(p.movable[node]))] {
		all = sum(all, total(pod.Devices))
	}
	return all
}

// search looks for sets of size pods of one node.
type search struct {
	planner *Planner
	demand  *Demand
	size    int
	place   *Node
	tried   int
	best    *Plan
	cost    [2]int64 // of best: devices, seconds since the pods started
}

// extend adds one of the rest to the moves until there are enough. changed are the nodes as the moves leave them.
func (s *search) extend(moves []Move, rest []*Pod, changed map[string]*Node) {
	for i, pod := range rest {
		if s.tried++; s.tried > maxSets {
			return
		}
		freed := *s.node(changed, s.place)
		freed.Left, freed.Running = freed.Left.plus(pod.Requests), freed.Running-1
		last := len(moves)+1 == s.size
		if last && !s.demand.fits(&freed) {
			continue
		}
		to := s.target(pod, changed)
		if to == nil {
			continue
		}
		taken := *to
		taken.Left, taken.Running = to.Left.minus(pod.Requests), to.Running+1
		next := append(slices.Clone(moves), Move{pod, to.Name})
		if last {
			s.offer(next)
			continue
		}
		after := map[string]*Node{freed.Name: &freed, taken.Name: &taken}
		for name, n := range changed {
			if after[name] == nil {
				after[name] = n
			}
		}
		s.extend(next, rest[i+1:], after)
	}
}

func (s *search) node(changed map[string]*Node, n *Node) *Node {
	if c := changed[n.Name]; c != nil {
		return c
	}
	return n
}

// target returns the node to which a pod can move: the one on which it leaves the fewest devices.
func (s *search) target(pod *Pod, changed map[string]*Node) *Node {
	for _, n := range s.planner.targetsOf(pod) {
		if at := s.node(changed, n); n != s.place && pod.fits(at) {
			return at
		}
	}
	return nil
}

func (p *Planner) targetsOf(pod *Pod) []*Node {
	return once(p.targets, pod.key(), func() []*Node {
		var list []*Node
		for _, n := range p.nodes {
			if pod.fits(n) {
				list = append(list, n)
			}
		}
		slices.SortFunc(list, func(a, b *Node) int {
			return cmp.Or(cmp.Compare(total(a.Left.Devices), total(b.Left.Devices)), cmp.Compare(a.Name, b.Name))
		})
		return slices.Clip(list[:min(len(list), maxTargets)])
	})
}

func total(devices map[string]int64) int64 {
	n := int64(0)
	for _, v := range devices {
		n = sum(n, v)
	}
	return n
}

// offer takes moves as the best if they are better.
func (s *search) offer(moves []Move) {
	var cost [2]int64
	for _, m := range moves {
		cost[0] = sum(cost[0], total(m.Pod.Devices))
		if t := cmp.Or(m.Pod.Started, m.Pod.Created); !t.IsZero() {
			cost[1] = sum(cost[1], max(0, int64(s.planner.now.Sub(t)/time.Second)))
		}
	}
	if s.best == nil || slices.Compare(cost[:], s.cost[:]) < 0 {
		s.best, s.cost = &Plan{s.place.Name, moves}, cost
	}
}

// String returns a plan in words that follow "it would fit": on gn3 if ml/a moved to gn1.
func (p Plan) String() string {
	list := make([]string, 0, len(p.Moves))
	for _, m := range p.Moves {
		list = append(list, fmt.Sprintf("%s (%s) moved to %s", m.Pod.FullName(), m.Pod.asks(), m.To))
	}
	return fmt.Sprintf("on %s if %s", p.Node, strings.Join(list, " and "))
}
