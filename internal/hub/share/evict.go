package share

import (
	"maps"
	"math"
)

// Kind is one kind of event of one node.
type Kind struct {
	Node Node
	Name string // event name
}

// Evict returns how many bytes each kind of event must give up, oldest first, to free need
// bytes of a log of limit bytes. sizes are the bytes in the log. It returns nil if no node has so
// much more than others that it should give up its events before everybody's oldest.
//
// Nodes above a share of an eighth of the log give up first, in proportion to their excess. If
// that is not enough the share is halved, down to 1/1024. A node gives up its most frequent kinds
// first, in the same way.
func Evict(sizes map[Kind]int64, need, limit int64) map[Kind]int64 {
	nodes := map[Node]int64{}
	for k, n := range sizes {
		nodes[k.Node] += n
	}
	plan := excess(nodes, need, limit/8, limit/1024)
	if plan == nil {
		return nil
	}
	kinds := map[Node]map[Kind]int64{}
	for k, n := range sizes {
		if plan[k.Node] == 0 {
			continue
		}
		if kinds[k.Node] == nil {
			kinds[k.Node] = map[Kind]int64{}
		}
		kinds[k.Node][k] = n
	}
	out := map[Kind]int64{}
	for node, give := range plan {
		more := excess(kinds[node], give, nodes[node]/2, nodes[node]/64)
		if more == nil { // many kinds of similar size
			more = excess(kinds[node], give, 0, 0)
		}
		maps.Copy(out, more)
	}
	return out
}

// excess distributes need over the keys whose size is above a share, in proportion to their
// excess. The share is the largest one in from, from/2, from/4 ... to that frees enough; nil if
// there is none.
func excess[K comparable](sizes map[K]int64, need, from, to int64) map[K]int64 {
	for share := from; share >= to; share /= 2 {
		total := int64(0)
		for _, n := range sizes {
			total += max(0, n-share)
		}
		if total >= need {
			out := map[K]int64{}
			for k, n := range sizes {
				if n > share {
					out[k] = int64(math.Ceil(float64(need) * float64(n-share) / float64(total)))
				}
			}
			return out
		}
		if share == 0 {
			break
		}
	}
	return nil
}
