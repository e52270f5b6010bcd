package slurmctl

import (
	"strings"

	"github.com/gpumeter/gpumeter/internal/scheduler"
	"github.com/gpumeter/gpumeter/internal/slurm"
)

// Counts counts the jobs with GPUs in the words of all schedulers. The type of their GPUs is not in all answers.
func Counts(jobs []slurm.Job) scheduler.Counts {
	c := scheduler.Counts{}
	for i := range jobs {
		j := &jobs[i]
		if j.GPUs == 0 {
			continue
		}
		c.Add(groupOf(j), j.Tasks, j.Tasks*j.GPUs)
	}
	return c
}

func groupOf(j *slurm.Job) scheduler.Group {
	g := scheduler.Group{Queue: j.Partition, Team: j.Account, State: stateOf(j)}
	if g.State.Waits() {
		g.Reason = reasonOf(j.Reason)
	}
	return g
}

// Waiting returns the jobs that wait for GPUs. A job waits from the moment at which it may start.
func Waiting(jobs []slurm.Job) []scheduler.Waiting {
	var list []scheduler.Waiting
	for i := range jobs {
		j := &jobs[i]
		if g := groupOf(j); j.GPUs > 0 && g.State.Waits() {
			since := j.Submit
			if j.Eligible.After(since) {
				since = j.Eligible
			}
			list = append(list, scheduler.Waiting{Group: g, ID: j.ID, Name: j.Name, Devices: j.Tasks * j.GPUs, Since: since})
		}
	}
	return list
}

func stateOf(j *slurm.Job) scheduler.State {
	switch {
	case j.Pending() && reasonOf(j.Reason) == scheduler.Gated:
		return scheduler.Held
	case j.Pending():
		return scheduler.Pending
	case j.Ended():
		return scheduler.Finished
	}
	switch j.State {
	case "CONFIGURING":
		return scheduler.Starting
	case "COMPLETING", "STAGE_OUT":
		return scheduler.Stopping
	case "SUSPENDED", "STOPPED":
		return scheduler.Suspended
	}
	return scheduler.Running
}

// reasons are the reasons of Slurm by their beginning; the first that matches counts. See "JOB REASON CODES" in squeue(1).
var reasons = []struct {
	begin  string
	reason scheduler.Reason
}{
	{"None", scheduler.New},
	{"Cleaning", scheduler.New},
	{"Resources", scheduler.Resources},
	{"Priority", scheduler.Priority},
	{"JobHeld", scheduler.Gated},
	{"Dependency", scheduler.Dependency},
	{"BeginTime", scheduler.Later},
	{"Reservation", scheduler.Later}, // waits for its reservation
	{"Licenses", scheduler.License},
	{"BadConstraints", scheduler.Affinity},
	{"ReqNodeNotAvail", scheduler.Unavailable},
	{"Nodes_required_for_job_are_DOWN", scheduler.Unavailable},
	{"Nodes required for job are DOWN", scheduler.Unavailable},
	{"NodeDown", scheduler.Unavailable},
	{"PartitionDown", scheduler.Unavailable},
	{"PartitionInactive", scheduler.Unavailable},
	{"Partition", scheduler.Quota}, // PartitionNodeLimit, PartitionTimeLimit
	{"Assoc", scheduler.Quota},
	{"QOS", scheduler.Quota},
	{"Max", scheduler.Quota}, // MaxGRESPerAccount
	{"JobArrayTaskLimit", scheduler.Quota},
	{"InvalidAccount", scheduler.Quota},
}

func reasonOf(text string) scheduler.Reason {
	if text == "" {
		return scheduler.New
	}
	for _, r := range reasons {
		if strings.HasPrefix(text, r.begin) {
			return r.reason
		}
	}
	return scheduler.Other
}

// Room returns the GPUs in the words of all schedulers, each once.
func Room(nodes []Node) scheduler.Room {
	r := scheduler.Room{Pools: map[string]*scheduler.Pool{}}
	for i := range nodes {
		n := &nodes[i]
		rest := n.rest()
		if rest == "" {
			continue
		}
		for _, g := range n.GPUs {
			pool := r.Pools[g.Type]
			if pool == nil {
				pool = scheduler.NewPool(scheduler.NotReady, scheduler.Cordoned, scheduler.LacksCPU, scheduler.LacksMemory)
				r.Pools[g.Type] = pool
			}
			free := g.Total - g.Allocated
			pool.Devices[scheduler.Allocated] += g.Allocated
			state, cause := n.left(rest)
			pool.Devices[state] += free
			if cause != "" && free > 0 {
				pool.Stranded[cause] += free
			}
			if n.Usable() {
				pool.Free = append(pool.Free, free)
			}
		}
	}
	return r
}

// left returns the state of the GPUs that no job has, and why no job can get them, if so. rest is their state in
// Slurm's words.
func (n *Node) left(rest string) (scheduler.DeviceState, scheduler.Cause) {
	switch {
	case rest == "down":
		return scheduler.Down, scheduler.NotReady
	case rest == "drained", !n.Usable(): // reserved nodes take only the jobs of the reservation
		return scheduler.Drained, scheduler.Cordoned
	case n.CPUsAllocated >= n.CPUs:
		return scheduler.Idle, scheduler.LacksCPU
	case n.Memory > 0 && n.MemoryAllocated >= n.Memory:
		return scheduler.Idle, scheduler.LacksMemory
	}
	return scheduler.Idle, ""
}
