package scheduler

import (
	"cmp"
	"maps"
	"slices"
)

// Group is what jobs have in common that are counted together.
type Group struct {
	Queue  string // partition, namespace
	Team   string // account, team label; may be empty
	Model  string // of the devices; empty: any, or not known
	State  State
	Reason Reason // of jobs that wait; otherwise empty
}

// Count is a number of jobs that ask for devices, and of the whole devices that they have or ask for.
type Count struct {
	Group
	Jobs, Devices int64
}

// other replaces the team or the queue of jobs beyond a limit.
const other = "other"

// Counts counts jobs by group.
type Counts map[Group]Count

// Add adds jobs.
func (c Counts) Add(g Group, jobs, devices int64) {
	have := c[g]
	c[g] = Count{g, have.Jobs + jobs, have.Devices + devices}
}

// By returns sums: key keeps or skips a group, and clears what is summed over.
func (c Counts) By(key func(*Group) bool) []Count {
	sums := Counts{}
	for g, n := range c {
		if key(&g) {
			sums.Add(g, n.Jobs, n.Devices)
		}
	}
	return sums.ranked()
}

// ranked returns the counts with the most devices, then the most jobs, first.
func (c Counts) ranked() []Count {
	return slices.SortedFunc(maps.Values(c), func(a, b Count) int {
		return cmp.Or(cmp.Compare(b.Devices, a.Devices), cmp.Compare(b.Jobs, a.Jobs), cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Team, b.Team),
			cmp.Compare(a.Model, b.Model), cmp.Compare(a.State, b.State), cmp.Compare(a.Reason, b.Reason))
	})
}

// Fold returns about limit counts. Beyond that the smallest are combined as the team other, and if that does not
// suffice, the smallest of those as the queue other, so that sums stay correct.
func (c Counts) Fold(limit int) Counts {
	if len(c) <= limit {
		return c
	}
	out, rest := Counts{}, Counts{}
	for i, n := range c.ranked() {
		if i < limit/2 {
			out.Add(n.Group, n.Jobs, n.Devices)
			continue
		}
		n.Team = other
		rest.Add(n.Group, n.Jobs, n.Devices)
	}
	room := limit - limit/2
	for i, n := range rest.ranked() {
		if len(rest) > room && i >= room-1 {
			n.Queue = other
		}
		out.Add(n.Group, n.Jobs, n.Devices)
	}
	return out
}
