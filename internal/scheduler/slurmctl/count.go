package slurmctl

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/scheduler"
	"github.com/gpumeter/gpumeter/internal/slurm"
)

// JobKey is the label set by which jobs are counted.
type JobKey struct{ State, Partition, Account, User string }

// JobCount is the number of jobs with a key and the resources they hold or request.
type JobCount struct {
	JobKey
	Jobs, GPUs int64
	Held       bool // the jobs hold or request the GPUs; jobs that ended do neither
}

// Other replaces the user or the account of jobs beyond the series limit.
const Other = "other"

// CountJobs counts jobs by state, partition, account and user. Beyond limit, the smallest
// groups are folded into the user Other and then into the account Other, so sums are
// preserved.
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
		queues := map[queue]bool{} // each needs its own series
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

// ranked sorts by GPUs, then by jobs, in descending order.
func ranked(sums map[JobKey]JobCount) []JobCount {
	return slices.SortedFunc(maps.Values(sums), func(a, b JobCount) int {
		return cmp.Or(cmp.Compare(b.GPUs, a.GPUs), cmp.Compare(b.Jobs, a.Jobs), cmp.Compare(a.User, b.User), cmp.Compare(a.Account, b.Account),
			cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.State, b.State))
	})
}

// Load is what the jobs of one state hold, or request, in a partition.
type Load struct {
	State, Partition string
	CPUs, Nodes      int64
}

// Wait counts the jobs that are pending in a partition for one reason.
type Wait struct {
	Reason, Partition string
	Jobs, GPUs        int64
}

// Queue holds the job counts that do not depend on the user.
type Queue struct {
	Loads []Load
	Waits []Wait
	// Spread is the fraction of running jobs on more than one node, by partition.
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

// Sizes are the request sizes, in GPUs on one node, for which placeable jobs are counted.
var Sizes = []int64{1, 2, 4, 8}

// Unallocated is the state of resources that no job holds where it is unknown whether a
// job could use them.
const Unallocated = "unallocated"

// Pool holds the resources of a set of nodes. CPUs and GPUs are counted by state:
// allocated, idle, down, drained.
type Pool struct {
	Nodes map[string]int64 // by state
	CPUs  map[string]int64
	GPUs  map[GPUKey]int64
	// Free lists the idle GPUs of each node that accepts jobs. Stranded counts those of them
	// that no job can use because all CPUs or all memory of the node are taken.
	Free     scheduler.Free
	Stranded int64
}

// GPUKey is the label set by which GPUs are counted.
type GPUKey struct{ State, Type string }

func newPool() *Pool {
	return &Pool{Nodes: map[string]int64{}, CPUs: map[string]int64{}, GPUs: map[GPUKey]int64{}}
}

// CountNodes counts the resources of the cluster, each device once, and of each partition,
// where a node in two partitions counts in both. down lists the partitions that start no
// jobs.
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

// Down returns the set of partitions that start no jobs.
func Down(list []Partition) map[string]bool {
	out := map[string]bool{}
	for _, p := range list {
		if p.State != "up" {
			out[p.Name] = true
		}
	}
	return out
}
