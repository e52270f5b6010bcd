package hub

import (
	"cmp"
	"fmt"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/hub/share"
)

// nodeOf returns the node of a series.
func nodeOf(l labels.Labels) share.Node {
	return share.Node{Cluster: l.Get(fleet.LabelCluster), Name: cmp.Or(l.Get(fleet.LabelHost), l.Get(fleet.LabelNode))}
}

// errNodeFull is returned for a new series of a node beyond its share.
type errNodeFull struct {
	node  share.Node
	limit int
}

func (e errNodeFull) Error() string {
	return fmt.Sprintf("%s: limit of %d series per node reached: find out which labels change all the time, or raise --max-series-per-node", e.node, e.limit)
}

// evicted counts events that were deleted before others because their node has too many.
func (s *Store) evicted(node share.Node, n int, alone bool) {
	s.refused.Add(NodeEventLimit, n)
	if !alone {
		s.nodes.Refused(node, share.Events, n, s.opt.Now())
	}
}

// Over returns the nodes that have exceeded their share of series or events lately.
func (s *Store) Over(at time.Time) []share.Over { return s.nodes.Over(at) }

// NodeSeries returns the series that a node may have.
func (s *Store) NodeSeries() int { return s.opt.NodeSeries }

// overShare returns a line per share that nodes exceed. Node names need a token: they are in the
// findings of the fleet rules.
func (h *handler) overShare() string {
	s, ok := h.store.(*Store)
	if !ok {
		return ""
	}
	nodes := map[string]int{}
	for _, o := range s.Over(s.opt.Now()) {
		nodes[o.What]++
	}
	text := ""
	for _, what := range []string{share.Series, share.Events} {
		if n := nodes[what]; n > 0 {
			text += fmt.Sprintf("nodes that exceed their share of %s: %d\n", what, n)
		}
	}
	return text
}
