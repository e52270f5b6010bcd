package workloadprocessor

import (
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// lookup is what the gpu extension knows about processes and containers of this node. It
// answers from memory.
type lookup interface {
	Process(pid uint32) (workload.Workload, bool)
	Container(id string) (workload.Workload, bool)
}

// here knows the holders of this node's devices as of the last tick.
type here struct {
	lookup     lookup // nil if processes and containers are unknown
	last       atomic.Pointer[inventory]
	containers recent
}

// inventory holds the devices of one tick by name. It is immutable.
type inventory struct {
	hosts  [2]string // names of this node
	byUUID map[string]*gpu
	byPCI  map[string]*gpu
	index  map[string]*gpu
}

// learn processes ticks until the channel is closed.
func (h *here) learn(ticks <-chan node.Tick) {
	for t := range ticks {
		h.last.Store(newInventory(&t))
	}
}

func newInventory(t *node.Tick) *inventory {
	inv := &inventory{
		hosts:  [2]string{t.Host, t.Resource["k8s.node.name"]},
		byUUID: map[string]*gpu{}, byPCI: map[string]*gpu{}, index: map[string]*gpu{},
	}
	for i := range t.Readings {
		r := &t.Readings[i]
		if r.ID.Parent != "" {
			continue
		}
		g := &gpu{part: part{id: r.ID.UUID, owner: ownerOf(r, r, "")}}
		inv.byUUID[r.ID.UUID] = g
		inv.index[strconv.Itoa(r.ID.Index)] = g
		if r.ID.PCI != "" {
			inv.byPCI[canonicalPCI(r.ID.PCI)] = g
		}
		for j := range t.Readings {
			p := &t.Readings[j]
			if p.ID.Parent == r.ID.UUID && p.ID.Parent != "" {
				g.partitions = append(g.partitions, part{
					id: p.ID.UUID, profile: p.ID.Profile, instance: instanceOf(p), owner: ownerOf(p, r, p.ID.UUID),
				})
				inv.byUUID[p.ID.UUID] = g
			}
		}
	}
	return inv
}

// ownerOf returns the owner of r, which is the device or one of its partitions. The View has
// decided that already; what remains is the reason if there is none.
func ownerOf(r, device *node.Reading, partition string) owner {
	if r.Owner != nil {
		return owner{matched, r.Owner.Identity()}
	}
	var there []holder
	for _, h := range device.Holders {
		if !h.Ended && (h.Partition == partition || partition == "") {
			there = append(there, holder{kind: h.Kind})
		}
	}
	if sole(there).outcome == ambiguous {
		return owner{outcome: ambiguous}
	}
	return owner{outcome: unmatched}
}

// instanceOf returns the GPU instance number of a MIG device, taken from its legacy name:
// MIG-<UUID of the GPU>/<instance>/<compute instance>. dcgm-exporter uses this number.
func instanceOf(r *node.Reading) string {
	for _, alias := range r.Aliases {
		rest, ok := strings.CutPrefix(alias, "MIG-"+r.ID.Parent+"/")
		if instance, _, two := strings.Cut(rest, "/"); ok && two {
			return instance
		}
	}
	return ""
}

// device implements registry. A UUID is globally unique; an index or a PCI address is valid
// only on its own host.
func (h *here) device(n *names) owner {
	inv := h.last.Load()
	if inv == nil {
		return owner{outcome: unmatched}
	}
	var g *gpu
	switch {
	case n[roleUUID] != "":
		g = inv.byUUID[n[roleUUID]]
	case n[rolePartition] != "":
		g = inv.byUUID[n[rolePartition]]
	case n[roleHost] != "" && !inv.is(n[roleHost]):
	case n[rolePCI] != "":
		g = inv.byPCI[canonicalPCI(n[rolePCI])]
	default:
		g = inv.index[n[roleIndex]]
	}
	if g == nil {
		return owner{outcome: unmatched}
	}
	return g.who(n)
}

// runner implements registry. A pid inside a container differs from the host's pid, so it
// counts only together with the name of this node.
func (h *here) runner(n *names) owner {
	if h.lookup == nil {
		return owner{outcome: unmatched}
	}
	if id := n.container(); id != "" {
		if found, ok := h.containers.get(id, h.lookup.Container); ok {
			return found
		}
	}
	inv := h.last.Load()
	if pid := n.pid(); pid != 0 && inv != nil && inv.is(n[roleHost]) {
		if w, ok := h.lookup.Process(pid); ok {
			return owner{matched, w.Identity()}
		}
	}
	return owner{outcome: unmatched}
}

// is reports whether host is this node.
func (inv *inventory) is(host string) bool {
	return host != "" && (host == inv.hosts[0] || host == inv.hosts[1])
}
