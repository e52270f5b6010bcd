package slurmctl

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// JobKey is by what jobs are counted.
type JobKey struct{ State, Partition, Account, User string }

// JobCount is how many jobs there are of a key, and what they have or ask for.
type JobCount struct {
	JobKey
	Jobs, GPUs int64
	Held       bool // they have the GPUs, or ask for them: jobs that ended do neither
}

// Other is the user, or the account, of what is over the limit of series.
const Other = "other"

// CountJobs counts jobs by state, partition, account and user. If that is more than limit,
// those with the least become those of the user Other, and then of the account Other: the
// sums stay.
func CountJobs(jobs []slurm.Job, limit int) []JobCount {
	sums := map[JobKey]JobCount{}
	for i := range jobs {
		j := &jobs[i]
		key := JobKey{strings.ToLower(j.State), j.Partition, j.Account, j.User}
		add(sums, JobCount{key, j.Tasks, j.Tasks * j.GPUs, !j.Ended()})
	}
	list := ranked(sums)
	if len(list) <= limit {
		return list
	}
	keep := limit / 2
	folded := map[JobKey]JobCount{}
	for _, c := range list[keep:] {
		c.User = Other
		add(folded, c)
	}
	rest := ranked(folded)
	if len(rest) > limit-keep {
		type queue struct{ state, partition string }
		queues := map[queue]bool{} // each needs a series of its own
		for _, c := range rest {
			queues[queue{c.State, c.Partition}] = true
		}
		half := max(0, limit-keep-len(queues))
		again := map[JobKey]JobCount{}
		for _, c := range rest[half:] {
			c.Account = Other
			add(again, c)
		}
		rest = append(rest[:half:half], ranked(again)...)
	}
	return slices.Concat(list[:keep], rest)
}

func add(sums map[JobKey]JobCount, c JobCount) {
	have := sums[c.JobKey]
	c.Jobs, c.GPUs = c.Jobs+have.Jobs, c.GPUs+have.GPUs
	if c.Held = c.Held || have.Held; !c.Held {
		c.GPUs = 0
	}
	sums[c.JobKey] = c
}

// ranked sorts by GPUs, then jobs, most first.
func ranked(sums map[JobKey]JobCount) []JobCount {
	return slices.SortedFunc(maps.Values(sums), func(a, b JobCount) int {
		return cmp.Or(cmp.Compare(b.GPUs, a.GPUs), cmp.Compare(b.Jobs, a.Jobs), cmp.Compare(a.User, b.User), cmp.Compare(a.Account, b.Account),
			cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.State, b.State))
	})
}

// Load is what the jobs of a state have, or ask for, in a partition.
type Load struct {
	State, Partition string
	CPUs, Nodes      int64
}

// Wait is what waits in a partition for a reason.
type Wait struct {
	Reason, Partition string
	Jobs, GPUs        int64
}

// Queue are the counts of jobs that need no user.
type Queue struct {
	Loads []Load
	Waits []Wait
	// Spread is of running jobs the part on more than one node, by partition.
	Spread map[string]float64
}

// CountQueue counts jobs by partition.
func CountQueue(jobs []slurm.Job) Queue {
	type key struct{ a, b string }
	loads, waits := map[key]*Load{}, map[key]*Wait{}
	running, wide := map[string]float64{}, map[string]float64{}
	for i := range jobs {
		j := &jobs[i]
		if j.Ended() {
			continue
		}
		state := strings.ToLower(j.State)
		l := loads[key{state, j.Partition}]
		if l == nil {
			l = &Load{State: state, Partition: j.Partition}
			loads[key{state, j.Partition}] = l
		}
		l.CPUs += j.Tasks * j.CPUs
		l.Nodes += j.Tasks * j.Nodes
		if j.Pending() {
			w := waits[key{j.Reason, j.Partition}]
			if w == nil {
				w = &Wait{Reason: j.Reason, Partition: j.Partition}
				waits[key{j.Reason, j.Partition}] = w
			}
			w.Jobs += j.Tasks
			w.GPUs += j.Tasks * j.GPUs
			continue
		}
		running[j.Partition]++
		if j.Nodes > 1 {
			wide[j.Partition]++
		}
	}
	q := Queue{Spread: map[string]float64{}}
	for _, l := range loads {
		q.Loads = append(q.Loads, *l)
	}
	for _, w := range waits {
		q.Waits = append(q.Waits, *w)
	}
	slices.SortFunc(q.Loads, func(a, b Load) int {
		return cmp.Or(cmp.Compare(a.State, b.State), cmp.Compare(a.Partition, b.Partition))
	})
	slices.SortFunc(q.Waits, func(a, b Wait) int {
		return cmp.Or(cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Partition, b.Partition))
	})
	for p, n := range running {
		q.Spread[p] = wide[p] / n
	}
	return q
}

// Sizes are the requests, in GPUs of one node, for which it is said how many fit.
var Sizes = []int64{1, 2, 4, 8}

// Unallocated is the state of what no job has where it is not known whether it could be had.
const Unallocated = "unallocated"

// Pool is what a set of nodes has. CPUs and GPUs are by state: allocated, idle, down, drained.
type Pool struct {
	Nodes map[string]int64 // by state
	CPUs  map[string]int64
	GPUs  map[GPUKey]int64
	// Free are the idle GPUs of each node that takes jobs, Stranded those of them that no job
	// can have: all CPUs or all memory of their node are taken.
	Free     []int64
	Stranded int64
}

// GPUKey is by what GPUs are counted.
type GPUKey struct{ State, Type string }

func newPool() *Pool {
	return &Pool{Nodes: map[string]int64{}, CPUs: map[string]int64{}, GPUs: map[GPUKey]int64{}}
}

// Placeable returns how many jobs of size GPUs on one node could start at once.
func (p *Pool) Placeable(size int64) int64 {
	n := int64(0)
	for _, free := range p.Free {
		n += free / size
	}
	return n
}

// Fragmentation returns the part of the free GPUs that jobs of size GPUs cannot have: 0
// fits perfectly. ok is false if none is free.
func (p *Pool) Fragmentation(size int64) (v float64, ok bool) {
	all := int64(0)
	for _, free := range p.Free {
		all += free
	}
	if all == 0 {
		return 0, false
	}
	return 1 - float64(size*p.Placeable(size))/float64(all), true
}

// CountNodes counts what the cluster has, each device once, and what each partition has:
// there a node of two counts in both. down are partitions that start no jobs.
func CountNodes(nodes []Node, down map[string]bool) (all *Pool, parts map[string]*Pool) {
	all, parts = newPool(), map[string]*Pool{}
	for i := range nodes {
		n := &nodes[i]
		all.add(n, n.Usable())
		for _, name := range n.Partitions {
			if parts[name] == nil {
				parts[name] = newPool()
			}
			parts[name].add(n, n.Usable() && !down[name])
		}
	}
	return all, parts
}

func (p *Pool) add(n *Node, usable bool) {
	p.Nodes[n.State]++
	rest := n.rest()
	if rest == "" {
		return
	}
	p.CPUs["allocated"] += n.CPUsAllocated
	p.CPUs[rest] += max(0, n.CPUs-n.CPUsAllocated)
	free := int64(0)
	for _, g := range n.GPUs {
		p.GPUs[GPUKey{"allocated", g.Type}] += g.Allocated
		p.GPUs[GPUKey{rest, g.Type}] += g.Total - g.Allocated
		free += g.Total - g.Allocated
	}
	if free == 0 || !usable {
		return
	}
	p.Free = append(p.Free, free)
	if n.CPUsAllocated >= n.CPUs || n.Memory > 0 && n.MemoryAllocated >= n.Memory {
		p.Stranded += free
	}
}

// Down returns the partitions that start no jobs.
func Down(list []Partition) map[string]bool {
	out := map[string]bool{}
	for _, p := range list {
		if p.State != "up" {
			out[p.Name] = true
		}
	}
	return out
}
