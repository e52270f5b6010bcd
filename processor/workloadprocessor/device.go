package workloadprocessor

import (
	"slices"

	"github.com/gpumeter/gpumeter/internal/workload"
)

// outcome is what became of an item that named something.
type outcome int

const (
	nothing   outcome = iota // it names nothing
	unmatched                // it names something that nobody knows, or that nobody has
	ambiguous                // several have it
	matched
	outcomeCount
)

// registry knows who has what.
type registry interface {
	device(n *names) owner // that n names
	runner(n *names) owner // of the process or container that n names
}

var outcomeLabels = [outcomeCount]string{unmatched: "unmatched", ambiguous: "ambiguous", matched: "matched"}

// owner says who has something: tags are set if one workload alone does.
type owner struct {
	outcome outcome
	tags    []tag
}

// part is a device or a partition of one.
type part struct {
	id       string // UUID
	profile  string // of a partition
	instance string // number of the GPU instance, if that is known
	owner
}

// gpu is a physical device.
type gpu struct {
	part
	partitions []part
}

// who returns whose the part of g is that n names.
func (g *gpu) who(n *names) owner {
	partition := n[rolePartition]
	if partition == "" && n[roleUUID] != "" && n[roleUUID] != g.id {
		// Some have the UUID of the partition where others have that of the device.
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
		// Two that cannot be told apart may still be the same workload's.
		if seen && (found.outcome != p.outcome || !slices.Equal(found.tags, p.tags)) {
			return owner{outcome: ambiguous}
		}
		found, seen = p.owner, true
	}
	return found
}

// is reports whether n may mean p: by its UUID, by its number where that is known, by its
// profile otherwise.
func (p *part) is(partition string, n *names) bool {
	switch {
	case partition != "":
		return p.id == partition
	case n[roleInstance] != "" && p.instance != "":
		return p.instance == n[roleInstance]
	}
	return n[roleProfile] != "" && p.profile == n[roleProfile]
}

// sole returns who has something that these have: the one of them, as on series of the
// agent. What nobody holds does not count, what somebody unknown uses does.
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

// holder is one who has a part of a device.
type holder struct {
	kind      string
	partition string // UUID; empty: it has the device
	profile   string // of the partition
	tags      []tag
}
