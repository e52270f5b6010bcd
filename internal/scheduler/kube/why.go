package kube

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/scheduler"
)

// sentences says a reason in words, after "because".
var sentences = map[scheduler.Reason]string{
	scheduler.Gated:       "its scheduling gates are closed",
	scheduler.Device:      "no node where it may run has that many free",
	scheduler.CPU:         "the nodes with enough of them free have too little CPU",
	scheduler.Memory:      "the nodes with enough of them free have too little memory",
	scheduler.Slots:       "the nodes with enough of them free run their maximum of pods",
	scheduler.Storage:     "the nodes with enough of them free have too little storage",
	scheduler.Ports:       "the nodes with enough of them free use its ports already",
	scheduler.Resources:   "the nodes with enough of them free lack another resource",
	scheduler.Taint:       "it does not tolerate the taints of the nodes that have them",
	scheduler.Affinity:    "its selector, affinity or spread excludes the nodes that have them",
	scheduler.Unavailable: "the nodes with enough of them free are cordoned or not ready",
	scheduler.Volume:      "a volume is missing, or in another place",
	scheduler.Claim:       "a claim of devices cannot be allocated",
	scheduler.Gang:        "it waits for the others of its group",
	scheduler.Quota:       "a quota is reached",
	scheduler.Preempting:  "pods were evicted for it and have not ended yet",
	scheduler.New:         "the scheduler has not looked at it yet",
	scheduler.Other:       "the scheduler says so",
}

// Why says in lines why a pod waits, in front of which free devices, which claims and group it has, and what the scheduler
// says.
func (s *Snapshot) Why(p *Pod) []string {
	if !p.State.Waits() {
		return slices.Concat([]string{s.waited(p)}, s.admitted(p), p.took())
	}
	reason := s.Reason(p)
	first := p.FullName() + " waits"
	if d := s.Time.Sub(p.Created); !p.Created.IsZero() && d >= 0 {
		first = fmt.Sprintf("%s has waited %s", p.FullName(), scheduler.Duration(d))
	}
	because := sentences[reason]
	if reason == scheduler.Device && s.Nodes != nil && !slices.ContainsFunc(s.Nodes, p.offers) {
		because = "no node has any"
	}
	if reason == scheduler.New && p.Condition != "" {
		because = "it fits now, and the scheduler has not looked at it since"
	}
	lines := []string{fmt.Sprintf("%s for %s: %s.", first, p.asks(), because)}
	if s.Nodes != nil && len(p.Devices) > 0 {
		line := s.inFront(p)
		if p.State == scheduler.Pending && p.Nominated == "" {
			if plan, ok := NewPlanner(s).Plan(&p.Demand); ok {
				line += " It would fit " + plan.String() + "."
			}
		}
		lines = append(lines, line)
	}
	if line := s.saysClaims(p); line != "" {
		lines = append(lines, line)
	}
	lines = append(lines, s.saysGroup(p)...)
	return append(lines, s.says(p))
}

// waited says what became of a pod that does not wait.
func (s *Snapshot) waited(p *Pod) string {
	text := fmt.Sprintf("%s does not wait: it is %s", p.FullName(), p.State)
	if p.Node != "" {
		text += " on " + p.Node
	}
	var took []string
	if d := p.Scheduled.Sub(p.Created); !p.Scheduled.IsZero() && d >= 0 {
		took = append(took, "scheduled after "+scheduler.Duration(d))
	}
	if d := p.Started.Sub(p.Scheduled); !p.Started.IsZero() && d >= 0 {
		took = append(took, "started "+scheduler.Duration(d)+" later")
	}
	if len(took) > 0 {
		text += ", was " + strings.Join(took, " and ")
	}
	return text + "."
}

// admitted says in up to one line how long Kueue held a pod that does not wait.
func (s *Snapshot) admitted(p *Pod) []string {
	w, ok := s.workloads.of(p)
	if !ok || w.AdmittedAt.IsZero() || w.Created.IsZero() || w.EvictedBefore {
		return nil
	}
	text := "Kueue admitted its workload " + w.Name + " after " + scheduler.Duration(max(0, w.AdmittedAt.Sub(w.Created)))
	if !w.ReservedAt.IsZero() && w.ReservedAt.Before(w.AdmittedAt) {
		text += ", " + scheduler.Duration(max(0, w.ReservedAt.Sub(w.Created))) + " of which it waited for quota"
	}
	return []string{text + "."}
}

// asks returns what a pod asks for.
func (p *Pod) asks() string {
	var list []string
	for _, name := range p.names() {
		list = append(list, fmt.Sprintf("%d %s", p.Devices[name], name))
	}
	if len(p.claims.refs) > 0 && len(p.Devices) == 0 {
		list = append(list, "its claims")
	}
	if p.CPU > 0 {
		list = append(list, cpus(p.CPU)+" CPU"+map[bool]string{true: "s"}[p.CPU != milli])
	}
	if p.Memory > 0 {
		list = append(list, size(p.Memory)+" of memory")
	}
	return scheduler.Enumerate(list)
}

// shownNodes is how many nodes are named.
const shownNodes = 3

// inFront says which devices of the kind are free, and what keeps the pod from the nodes that come closest.
func (s *Snapshot) inFront(p *Pod) string {
	type near struct {
		node      *Node
		free      int64
		obstacles []Obstacle
	}
	var list []near
	free, all := int64(0), int64(0)
	for _, n := range s.Nodes {
		if !p.offers(n) {
			continue
		}
		at := near{node: n, obstacles: slices.Collect(p.Obstacles(n))}
		slices.SortStableFunc(at.obstacles, func(a, b Obstacle) int {
			if a.Reason != b.Reason {
				return 0
			}
			return cmp.Compare(a.Name, b.Name) // of several kinds of devices
		})
		for _, name := range p.names() {
			all += n.Allocatable.Devices[name]
			at.free += n.Left.Devices[name]
		}
		free += at.free
		list = append(list, at)
	}
	what := strings.Join(p.names(), ", ")
	if free == 0 {
		return fmt.Sprintf("None of %d %s is free.", all, what)
	}
	list = slices.DeleteFunc(list, func(n near) bool { return n.free == 0 })
	slices.SortStableFunc(list, func(a, b near) int {
		return cmp.Or(cmp.Compare(len(a.obstacles), len(b.obstacles)), cmp.Compare(b.free, a.free))
	})
	var nodes []string
	for _, n := range list[:min(len(list), shownNodes)] {
		texts := make([]string, 0, len(n.obstacles))
		for _, o := range n.obstacles {
			texts = append(texts, o.String())
		}
		if len(texts) == 0 {
			texts = []string{"fits by its resources, taints and labels"}
		}
		nodes = append(nodes, fmt.Sprintf("%s (%d free) %s", n.node.Name, n.free, scheduler.Enumerate(texts)))
	}
	if more := len(list) - shownNodes; more > 0 {
		nodes = append(nodes, fmt.Sprintf("%d more nodes have free ones", more))
	}
	verb := "are"
	if free == 1 {
		verb = "is"
	}
	return fmt.Sprintf("%d of %d %s %s free: %s.", free, all, what, verb, strings.Join(nodes, "; "))
}

// says repeats the scheduler's words.
func (s *Snapshot) says(p *Pod) string {
	switch {
	case len(p.Gates) > 0:
		return "Gates: " + strings.Join(p.Gates, ", ") + ". The scheduler ignores the pod until whoever set them removes them."
	case p.Condition == "":
		return "The scheduler has said nothing about it."
	}
	v := parseMessage(p.Message, s.Vendors)
	text := "The scheduler says: " + counts(v.Causes)
	if len(v.Causes) == 0 {
		text = "The scheduler says: " + cmp.Or(strings.TrimSpace(p.Message), p.Condition)
	}
	if len(v.Preemption) > 0 {
		text += ". Eviction of others: " + counts(v.Preemption)
	}
	if p.Nominated != "" {
		text += ". It made room on " + p.Nominated
	}
	return text + "."
}

func counts(list []Count) string {
	texts := make([]string, 0, len(list))
	for _, c := range list {
		switch c.Nodes {
		case 0:
			texts = append(texts, c.Text)
		case 1:
			texts = append(texts, "1 node: "+c.Text)
		default:
			texts = append(texts, fmt.Sprintf("%d nodes: %s", c.Nodes, c.Text))
		}
	}
	return strings.Join(texts, "; ")
}
