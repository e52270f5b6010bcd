package slurmctl

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/scheduler"
	"github.com/gpumeter/gpumeter/internal/slurm"
)

// sentences says a reason in words.
var sentences = map[scheduler.Reason]string{
	scheduler.Gated:       "it is held",
	scheduler.Resources:   "what it asks for is taken",
	scheduler.Priority:    "jobs with a higher priority are first",
	scheduler.Dependency:  "another job has to end first",
	scheduler.Later:       "it starts later",
	scheduler.License:     "no license is free",
	scheduler.Affinity:    "no node has what it asks for",
	scheduler.Unavailable: "nodes that it needs are down, drained or reserved",
	scheduler.Quota:       "a limit of its user, account, QOS or partition is reached",
	scheduler.New:         "the scheduler has not looked at it yet",
	scheduler.Other:       "Slurm has a reason of its own",
}

// Why asks the controller and says in up to three lines why a job waits, in front of which free GPUs, and what Slurm
// says.
func (c *Client) Why(ctx context.Context, id string) ([]string, error) {
	s := c.Snapshot(ctx)
	if !s.Up {
		return nil, s.Err
	}
	return s.Why(id)
}

// Why says why a job waits. id may also be that of a job array, of which the first waiting part counts.
func (s *Snapshot) Why(id string) ([]string, error) {
	j := find(s.Jobs, id)
	if j == nil {
		return nil, fmt.Errorf("job %s is not in the queue", id)
	}
	if !j.Pending() {
		text := fmt.Sprintf("Job %s does not wait: it is %s", j.ID, strings.ToLower(j.State))
		if j.NodeList != "" {
			text += " on " + j.NodeList
		}
		return []string{text + "."}, nil
	}
	lines := []string{fmt.Sprintf("Job %s of %s%s for %s in %s: %s.", j.ID, j.User, s.since(j), asks(j), j.Partition, sentences[reasonOf(j.Reason)])}
	if j.GPUs > 0 {
		lines = append(lines, s.inFront(j))
	}
	return append(lines, s.says(j)), nil
}

func find(jobs []slurm.Job, id string) *slurm.Job {
	var found *slurm.Job
	for i := range jobs {
		j := &jobs[i]
		own := j.ID == id || j.ArrayJobID != "" && (j.ArrayJobID == id || j.ArrayJobID+"_"+j.ArrayTaskID == id)
		if own && (found == nil || j.Pending() && !found.Pending()) {
			found = j
		}
	}
	return found
}

// since returns how long a job has waited, from when it was eligible.
func (s *Snapshot) since(j *slurm.Job) string {
	from := j.Eligible
	if from.IsZero() || from.After(s.Time) {
		from = j.Submit
	}
	if from.IsZero() || from.After(s.Time) {
		return " waits"
	}
	return " has waited " + scheduler.Duration(s.Time.Sub(from))
}

func asks(j *slurm.Job) string {
	var list []string
	if j.GPUs > 0 {
		list = append(list, scheduler.Plural(j.GPUs, "GPU"))
	}
	return scheduler.Enumerate(append(list, scheduler.Plural(j.CPUs, "CPU"))) + " on " + scheduler.Plural(max(1, j.Nodes), "node")
}

// shownNodes is how many nodes are named.
const shownNodes = 3

// inFront says which GPUs of a job's partitions are free, and what the nodes that come closest lack.
func (s *Snapshot) inFront(j *slurm.Job) string {
	type near struct {
		name  string
		free  int64
		lacks []string
	}
	var list []near
	free, all := int64(0), int64(0)
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if !slices.ContainsFunc(strings.Split(j.Partition, ","), func(p string) bool { return slices.Contains(n.Partitions, p) }) {
			continue
		}
		at := near{name: n.Name}
		for _, g := range n.GPUs {
			all += g.Total
			at.free += g.Total - g.Allocated
		}
		free += at.free
		if at.free > 0 {
			at.lacks = n.lacks(j, at.free)
			list = append(list, at)
		}
	}
	if free == 0 {
		return fmt.Sprintf("None of %s in %s is free.", scheduler.Plural(all, "GPU"), j.Partition)
	}
	slices.SortStableFunc(list, func(a, b near) int {
		return cmp.Or(cmp.Compare(len(a.lacks), len(b.lacks)), cmp.Compare(b.free, a.free), cmp.Compare(a.name, b.name))
	})
	var nodes []string
	for _, n := range list[:min(len(list), shownNodes)] {
		if len(n.lacks) == 0 {
			n.lacks = []string{"has room for a node's part of it"}
		}
		nodes = append(nodes, fmt.Sprintf("%s (%d free) %s", n.name, n.free, scheduler.Enumerate(n.lacks)))
	}
	if more := len(list) - shownNodes; more > 0 {
		nodes = append(nodes, scheduler.Plural(int64(more), "more node")+" with free ones")
	}
	return fmt.Sprintf("%d of %s in %s are free: %s.", free, scheduler.Plural(all, "GPU"), j.Partition, strings.Join(nodes, "; "))
}

// lacks says what keeps an equal part of a job from a node with free GPUs. How the job is really divided is not in the queue.
func (n *Node) lacks(j *slurm.Job, free int64) []string {
	var list []string
	if !n.Usable() {
		list = append(list, "is "+n.State)
	}
	parts := max(1, j.Nodes)
	if want := (j.GPUs + parts - 1) / parts; free < want {
		list = append(list, fmt.Sprintf("has %d of %d GPUs free", free, want))
	}
	if want, left := (j.CPUs+parts-1)/parts, max(0, n.CPUs-n.CPUsAllocated); left < want {
		list = append(list, fmt.Sprintf("has %d of %d CPUs free", left, want))
	}
	return list
}

// says repeats what Slurm says.
func (s *Snapshot) says(j *slurm.Job) string {
	text := "Slurm says: " + cmp.Or(j.Reason, "no reason")
	if j.Start.After(s.Time) {
		text += ", expected to start on " + j.Start.Format("2006-01-02 15:04")
	}
	first := int64(0)
	for i := range s.Jobs {
		if o := &s.Jobs[i]; o.Pending() && o.Priority > j.Priority && o.Partition == j.Partition {
			first += o.Tasks
		}
	}
	if first > 0 {
		verb := "have"
		if first == 1 {
			verb = "has"
		}
		text += fmt.Sprintf("; %s of %s %s a higher priority", scheduler.Plural(first, "waiting job"), j.Partition, verb)
	}
	return text + "."
}
