// Package share gives each node of a fleet its share of a hub: of the series in memory, and of
// the event log. What exceeds the share is refused or deleted at the expense of that node alone.
package share

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"
)

// Node identifies a node. The zero Node is everything that names no node.
type Node struct{ Cluster, Name string }

// String returns the name of a node, for messages.
func (n Node) String() string {
	switch {
	case n == Node{}:
		return "series and events without a node"
	case n.Cluster == "":
		return "node " + n.Name
	}
	return "node " + n.Name + " of cluster " + n.Cluster
}

// Things of which a node has a share.
const (
	Series = "series"
	Events = "events"
)

// Over is a node that exceeds its share.
type Over struct {
	Node        Node
	What        string // Series or Events
	Count       uint64 // samples refused or events deleted since First
	First, Last time.Time
}

const (
	// remembered is how long after the last refusal a node counts as over its share.
	remembered = 10 * time.Minute
	maxOver    = 1000 // nodes
)

// Nodes counts the series of nodes and remembers which nodes exceed a share. It is safe for
// concurrent use.
type Nodes struct {
	limit int

	mu     sync.Mutex
	series map[Node]int
	over   map[overKey]*Over
}

type overKey struct {
	node Node
	what string
}

// NewNodes returns Nodes of which each may have limit series.
func NewNodes(limit int) *Nodes {
	return &Nodes{limit: limit, series: map[Node]int{}, over: map[overKey]*Over{}}
}

// Limit returns the series that a node may have.
func (n *Nodes) Limit() int { return n.limit }

// Full reports whether a node has all series that it may have.
func (n *Nodes) Full(node Node) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.series[node] >= n.limit
}

// Add counts a new series, or a deleted one if by is -1.
func (n *Nodes) Add(node Node, by int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.series[node]; !ok { // do not retain the whole label set
		node = Node{strings.Clone(node.Cluster), strings.Clone(node.Name)}
	}
	if n.series[node] += by; n.series[node] <= 0 {
		delete(n.series, node)
	}
}

// Refused records that a node exceeded its share by count samples or events.
func (n *Nodes) Refused(node Node, what string, count int, at time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	o := n.over[overKey{node, what}]
	if o == nil {
		n.forget(at)
		if len(n.over) >= maxOver {
			return
		}
		node = Node{strings.Clone(node.Cluster), strings.Clone(node.Name)}
		o = &Over{Node: node, What: what, First: at}
		n.over[overKey{node, what}] = o
	}
	o.Count += uint64(count)
	o.Last = at
}

// Over returns the nodes that exceeded a share lately, ordered by node and share.
func (n *Nodes) Over(at time.Time) []Over {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forget(at)
	out := make([]Over, 0, len(n.over))
	for _, o := range n.over {
		out = append(out, *o)
	}
	slices.SortFunc(out, func(a, b Over) int {
		return cmp.Or(cmp.Compare(a.Node.Cluster, b.Node.Cluster), cmp.Compare(a.Node.Name, b.Node.Name), cmp.Compare(a.What, b.What))
	})
	return out
}

func (n *Nodes) forget(at time.Time) {
	for k, o := range n.over {
		if at.Sub(o.Last) > remembered {
			delete(n.over, k)
		}
	}
}

// DefaultSeries returns the default share of a node of a hub for limit series: a quarter, at
// least 50,000, but never so much that less than a quarter remains for others. docs/hub.md has
// the calculation.
func DefaultSeries(limit int) int {
	return max(1, limit/4, min(50_000, limit*3/4))
}
