package workloadprocessor

import (
	"slices"

	"github.com/gpumeter/gpumeter/internal/workload"
)

// outcome is the result for an item that names something.
type outcome int

const (
	nothing   outcome = iota // the item names nothing
	unmatched                // the named thing is unknown or has no owner
	ambiguous                // several owners
	matched
	outcomeCount
)

// registry knows the owners of devices, processes and containers.
type registry interface {
	device(n *names) owner // owner of the device that n names
	runner(n *names) owner // owner of the process or container that n names
}

var outcomeLabels = [outcomeCount]string{unmatched: "unmatched", ambiguous: "ambiguous", matched: "matched"}

// owner is the owner of something: tags are set if there is exactly one workload.
type owner struct {
	outcome outcome
	tags    []tag
}

// part is a device or a partition of one.
type part struct {
	id       string // UUID
	profile  string // partition profile
	instance string // GPU instance number, if known
	owner
}

// gpu is a physical device.
type gpu struct {
	part
	partitions []part
}

// who returns the owner of the part of g that n names.
func (g *gpu) who(n *names) owner {
	partition := n[rolePartition]
	if partition == "" && n[roleUUID] != "" && n[roleUUID] != g.id {
		// Some senders put the partition's UUID where others put the device's.
		if slices.ContainsFunc(g.partitions, func(p part) bool { return p.id == n[roleUUID] }) {
			partition = n[roleUUID]
		}
	}
	if partition == "" && n[roleInstance] == "" && n[roleProfile] == "" {
		return g.owner
	}
	found := owner{outcome: unmatched}
	seen := false
	for i := range g.partitions {
		p := &g.partitions[i]
		if !p.is(partition, n) {
			continue
		}
		// Two indistinguishable partitions may still have the same owner.
		if seen && (found.outcome != p.outcome || !slices.Equal(found.tags, p.tags)) {
			return owner{outcome: ambiguous}
		}
		found, seen = p.owner, true
	}
	return found
}

// is reports whether n may mean p: by UUID, by instance number if known, otherwise by
// profile.
func (p *part) is(partition string, n *names) bool {
	switch {
	case partition != "":
		return p.id == partition
	case n[roleInstance] != "" && p.instance != "":
		return p.instance == n[roleInstance]
	}
	return n[roleProfile] != "" && p.profile == n[roleProfile]
}

// sole returns the sole holder, as on the agent's series. Unheld parts do not count, parts
// used by an unknown workload do.
func sole(holders []holder) owner {
	var found []holder
	for _, h := range holders {
		if h.kind != workload.Unallocated {
			found = append(found, h)
		}
	}
	switch {
	case len(found) > 1:
		return owner{outcome: ambiguous}
	case len(found) == 0 || found[0].kind == workload.Unattributed || found[0].kind == workload.Other:
		return owner{outcome: unmatched}
	}
	return owner{matched, found[0].tags}
}

// holder is a holder of a device or a partition.
type holder struct {
	kind      string
	partition string // UUID; empty for the whole device
	profile   string // partition profile
	tags      []tag
}
