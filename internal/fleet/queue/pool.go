package queue

import (
	"cmp"
	"fmt"
	"slices"
)

// Pool is the whole devices of one model in one cluster, and what waits for them.
type Pool struct {
	Model                               string // as the scheduler names it; empty: it names none
	All, Allocated, Free, Drained, Down float64
	Stranded                            []Count // free devices that nobody can use, by cause
	Placeable                           []Count // jobs that fit at once, by size
	// Pending devices are those that jobs wait for which can only run here, and which wait for devices, not for people.
	Pending float64
	// Blocked devices are free although jobs wait for so many: what they lack is something else, such as the place. Those of jobs
	// for any model are in the pools with the most free devices.
	Blocked float64
}

// States of devices, as the scheduler says them.
const (
	stateAllocated = "allocated"
	stateFree      = "free"
	stateDrained   = "drained"
	stateDown      = "down"
)

// decided are the reasons of jobs that wait although nobody would place them, with or without free devices.
var decided = []string{"held", "dependency", "begin_time", "license"}

// nowhere are the reasons of jobs that no node may run, with or without free devices: those of a model may be the wrong ones, but
// they are what the job waits for. A job for any model waits for none of those that are there.
var nowhere = []string{"affinity", "taint"}

// Decided reports whether a job waits because somebody decided so, for a reason that has nothing to do with devices.
func Decided(reason string) bool { return slices.Contains(decided, reason) }

// Pools returns the devices of a cluster by model, the largest pool first.
func (c *Cluster) Pools() []Pool {
	pools := map[string]*Pool{}
	of := func(model string) *Pool {
		p := pools[model]
		if p == nil {
			p = &Pool{Model: model}
			pools[model] = p
		}
		return p
	}
	for _, n := range c.Devices {
		p := of(n.Model)
		p.All += n.N
		switch n.State {
		case stateAllocated:
			p.Allocated += n.N
		case stateFree:
			p.Free += n.N
		case stateDrained:
			p.Drained += n.N
		case stateDown:
			p.Down += n.N
		}
	}
	for _, list := range []struct {
		of  []Count
		add func(*Pool, Count)
	}{
		{c.Stranded, func(p *Pool, n Count) { p.Stranded = append(p.Stranded, n) }},
		{c.Placeable, func(p *Pool, n Count) { p.Placeable = append(p.Placeable, n) }},
	} {
		for _, n := range list.of {
			if p := pools[n.Model]; p != nil {
				list.add(p, n)
			}
		}
	}
	anywhere := 0.0
	for _, n := range c.Pending {
		if Decided(n.Reason) {
			continue
		}
		switch p := pools[n.Model]; {
		case n.Model == "" && slices.Contains(nowhere, n.Reason):
		case p != nil && (n.Model != "" || len(pools) == 1):
			p.Pending += n.N
		case n.Model == "": // devices of a model that the cluster does not have block no others
			anywhere += n.N
		}
	}
	out := make([]Pool, 0, len(pools))
	for _, p := range pools {
		p.Blocked = min(p.Free, p.Pending)
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b Pool) int {
		return cmp.Or(cmp.Compare(b.Free-b.Blocked, a.Free-a.Blocked), cmp.Compare(b.Free, a.Free), cmp.Compare(a.Model, b.Model))
	})
	for i := range out {
		part := min(anywhere, out[i].Free-out[i].Blocked)
		out[i].Blocked += part
		anywhere -= part
	}
	slices.SortFunc(out, func(a, b Pool) int { return cmp.Or(cmp.Compare(b.All, a.All), cmp.Compare(a.Model, b.Model)) })
	return out
}

// Totals are what waits in all clusters.
type Totals struct {
	Jobs, Devices float64 // that wait, and that they ask for
	Blocked       float64 // devices that are free meanwhile
}

// TotalsOf adds up clusters.
func TotalsOf(clusters []Cluster) Totals {
	var t Totals
	all := func(Key) bool { return true }
	for i := range clusters {
		t.Jobs += Sum(clusters[i].PendingJobs, all)
		t.Devices += Sum(clusters[i].Pending, all)
		for _, p := range clusters[i].Pools() {
			t.Blocked += p.Blocked
		}
	}
	return t
}

// String returns the totals in words, empty if nothing waits.
func (t Totals) String() string {
	if t.Jobs == 0 {
		return ""
	}
	s := plural(t.Jobs, "job waits", "jobs wait") + " for " + plural(t.Devices, "GPU", "GPUs")
	if t.Blocked > 0 {
		s += fmt.Sprintf(", %.0f free meanwhile", t.Blocked)
	}
	return s
}

func plural(n float64, one, many string) string {
	if n == 1 {
		many = one
	}
	return fmt.Sprintf("%.0f %s", n, many)
}
