package slurm

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Job is a job, a task of a job array, a component of a heterogeneous job, or all pending
// tasks of a job array. Which fields are set depends on the source: the queue has all of
// them, accounting has the past, and a process of the job only has its identity.
type Job struct {
	ID          string
	ArrayJobID  string
	ArrayTaskID string // empty: not a task, or several pending tasks
	HetJobID    string
	Tasks       int64 // number of array tasks that the record covers; otherwise 1
	Name        string
	User        string
	Account     string
	Partition   string // comma-separated if the job may run in any of several
	QOS         string
	Cluster     string
	State       string   // the most specific state: PENDING, RUNNING, COMPLETING, ...
	States      []string // all states in the queue, including flags since 23.11
	Reason      string   // why the job is pending
	NodeList    string
	Nodes, CPUs int64 // per task
	GPUs        int64 // of one task: allocated, or requested while pending
	Priority    int64
	Restarts    int64

	// While a job is pending, Start is the expected start time. While it runs, End is the time
	// at which it reaches its time limit.
	Submit, Eligible, Start, End time.Time
	Suspend                      time.Time     // when the job was last suspended or resumed
	PreSuspend                   time.Duration // run time up to Suspend
	TimeLimit                    time.Duration // 0: no limit

	// Held lists the generic resources by node, if the source has these details.
	Held []Held
	// Undetailed means that the job has generic resources, but the source does not list them
	// by node.
	Undetailed bool
	// Ambiguous means that the text of the job imitates fields of Slurm: only the identity of
	// the job is known. See ParseJobsText.
	Ambiguous bool
}

// Held is the generic resources of a job on some of its nodes.
type Held struct {
	Nodes string // a host list; empty: the node at the same index in NodeList
	GRES  string // see ParseGRES
}

// On returns the generic resources of a job on a node. there is false if the job is not on
// that node. If some resources cannot be parsed, On returns the others and an error.
func (j *Job) On(node string) (list []GRES, there bool, err error) {
	if j.Ambiguous {
		return nil, false, fmt.Errorf("text of job %s imitates fields of Slurm", j.ID)
	}
	at := HostIndex(j.NodeList, node)
	if at < 0 {
		return nil, false, nil
	}
	if j.Undetailed {
		return nil, true, fmt.Errorf("job %s has generic resources without details by node", j.ID)
	}
	for i, h := range j.Held {
		if h.Nodes == "" && i != at || h.Nodes != "" && HostIndex(h.Nodes, node) < 0 {
			continue
		}
		more, bad := ParseGRES(h.GRES)
		list, err = append(list, more...), errors.Join(err, bad)
	}
	return list, true, err
}

// endings are the states of jobs that will not run again.
var endings = []string{
	"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY", "REVOKED", "SPECIAL_EXIT",
}

// Pending reports whether the job is pending. A job that is neither pending nor ended holds
// resources.
func (j *Job) Pending() bool { return j.State == "PENDING" || strings.HasPrefix(j.State, "REQUEUE") }

// Ended reports whether the job has ended.
func (j *Job) Ended() bool { return slices.Contains(endings, j.State) }

// Ran reports whether the job ever had a node. The start time is no indication: a job that was
// canceled while pending has one, too.
func (j *Job) Ran() bool { return j.NodeList != "" && !j.Pending() }

// jobState returns the most specific of a job's states. Up to 23.02 there is only one. Later
// versions add flags, two of which are more specific than the state itself.
func jobState(words []string) string {
	state := ""
	for _, w := range words {
		for w := range strings.SplitSeq(strings.ToLower(w), "+") {
			switch w {
			case "completing", "configuring":
				return strings.ToUpper(w)
			}
			if state == "" {
				state, _, _ = strings.Cut(w, " ") // as in "CANCELLED by 1000"
			}
		}
	}
	if !IsWord(state) {
		return "UNKNOWN"
	}
	return strings.ToUpper(state)
}

// reason returns why a job is pending, without the nodes that some reasons list.
func reason(s string) string {
	s = strings.TrimLeft(Text(s), "(")
	if i := strings.IndexAny(s, ",:()"); i >= 0 {
		s = s[:i]
	}
	return s[:min(len(s), 64)]
}

// CountGPUs returns the number of GPUs in a list of trackable or requested resources:
// gres/gpu=8,gres/gpu:h100=8 are eight. GPUs with a type are only counted if the list has no
// total.
func CountGPUs(tres string) (n int64, ok bool) {
	all, typed, sum := int64(0), int64(0), false
	for one := range strings.SplitSeq(tres, ",") {
		one = strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(one), "gres/"), "gres:")
		if one != "gpu" && !strings.HasPrefix(one, "gpu:") && !strings.HasPrefix(one, "gpu=") { // not gpumem or gpuutil
			continue
		}
		list, err := ParseGRES("gres/" + one)
		if err != nil || len(list) != 1 || list[0].Count > 1<<32 {
			continue
		}
		ok = true
		if count := int64(list[0].Count); list[0].Type == "" {
			all, sum = all+count, true
		} else {
			typed += count
		}
	}
	if sum {
		return all, true
	}
	return typed, ok
}

// tasksOf returns the number of pending tasks of a job array: 3-6%2, 1-9:2, 1,3,... A list that
// Slurm truncated is counted as far as it goes.
func tasksOf(s string) int64 {
	s, _, _ = strings.Cut(strings.Trim(s, "[]"), "%")
	n := int64(0)
	for part := range strings.SplitSeq(s, ",") {
		span, by, stepped := strings.Cut(part, ":")
		low, high, ranged := strings.Cut(span, "-")
		from, err := strconv.ParseUint(low, 10, 32)
		if err != nil {
			continue
		}
		to, step := from, uint64(1)
		if ranged {
			if to, err = strconv.ParseUint(high, 10, 32); err != nil || to < from {
				continue
			}
		}
		if stepped {
			if step, err = strconv.ParseUint(by, 10, 32); err != nil || step == 0 {
				continue
			}
		}
		n += int64((to-from)/step) + 1
	}
	return max(1, n)
}

type jsonJob struct {
	ID          Number `json:"job_id"`
	ArrayJob    Number `json:"array_job_id"`
	ArrayTask   Number `json:"array_task_id"`
	ArrayTasks  Line   `json:"array_task_string"`
	Het         Number `json:"het_job_id"`
	Name        Line   `json:"name"`
	User        Line   `json:"user_name"`
	UserID      Number `json:"user_id"`
	Account     Line   `json:"account"`
	Cluster     Line   `json:"cluster"`
	Partition   Line   `json:"partition"`
	QOS         Line   `json:"qos"`
	State       Words  `json:"job_state"`
	Reason      Line   `json:"state_reason"`
	NodeList    Line   `json:"nodes"`
	Nodes       Number `json:"node_count"`
	CPUs        Number `json:"cpus"`
	NumTasks    Number `json:"tasks"`
	Priority    Number `json:"priority"`
	Restarts    Number `json:"restart_cnt"`
	Submit      Number `json:"submit_time"`
	Eligible    Number `json:"eligible_time"`
	Start       Number `json:"start_time"`
	End         Number `json:"end_time"`
	Suspend     Number `json:"suspend_time"`
	PreSuspend  Number `json:"pre_sus_time"`
	TimeLimit   Number `json:"time_limit"` // minutes
	TRESAlloc   Line   `json:"tres_alloc_str"`
	TRESReq     Line   `json:"tres_req_str"`
	TRESPerJob  Line   `json:"tres_per_job"`
	TRESPerNode Line   `json:"tres_per_node"`
	TRESPerTask Line   `json:"tres_per_task"`
	GRES        []Line `json:"gres_detail"` // one per node
}

// ParseJobsJSON parses the output of squeue --json, scontrol --json and slurmrestd, versions
// 22.05 and later, and calls each for every job. gres_detail has one entry per node, in the
// order of the node list.
func ParseJobsJSON(r io.Reader, each func(Job) error) error {
	return DecodeList(r, "jobs", func(j jsonJob) error { return each(j.job()) })
}

func (j *jsonJob) job() Job {
	out := Job{
		ID: j.ID.String(), ArrayJobID: j.ArrayJob.Positive(), HetJobID: j.Het.Positive(), Tasks: 1,
		Name: string(j.Name), User: string(j.User), Account: string(j.Account), Partition: string(j.Partition), QOS: string(j.QOS),
		State: jobState(j.State), States: j.State, Cluster: string(j.Cluster), Reason: reason(string(j.Reason)), NodeList: string(j.NodeList),
		Nodes: j.Nodes.Int(), CPUs: j.CPUs.Int(), Priority: j.Priority.Int(), Restarts: j.Restarts.Int(),
		Submit: j.Submit.Time(), Eligible: j.Eligible.Time(), Start: j.Start.Time(), End: j.End.Time(), Suspend: j.Suspend.Time(),
		PreSuspend: time.Duration(j.PreSuspend.Int()) * time.Second, TimeLimit: time.Duration(j.TimeLimit.Int()) * time.Minute,
	}
	if out.User == "" {
		out.User = j.UserID.String() // the host of slurmrestd does not know the user
	}
	if out.ArrayJobID != "" {
		out.ArrayTaskID = j.ArrayTask.String()
	}
	if j.ArrayTasks != "" && out.Pending() {
		out.Tasks, out.ArrayTaskID = tasksOf(string(j.ArrayTasks)), ""
	}
	tres := string(j.TRESAlloc)
	if out.Pending() {
		tres = string(j.TRESReq)
	}
	if n, ok := CountGPUs(tres); ok {
		out.GPUs = n
	} else if len(j.GRES) > 0 && !out.Pending() {
		for _, node := range j.GRES {
			n, _ := CountGPUs(detailless(string(node)))
			out.GPUs += n
		}
	} else {
		out.GPUs = asked(string(j.TRESPerJob), string(j.TRESPerNode), string(j.TRESPerTask), j.Nodes.Int(), j.NumTasks.Int())
	}
	for _, gres := range j.GRES {
		out.Held = append(out.Held, Held{GRES: string(gres)})
	}
	out.Undetailed = len(j.GRES) == 0 && strings.Contains(string(j.TRESAlloc), "gres/")
	out.settle()
	return out
}

// settle removes values that Slurm makes up: the end of a job without a time limit, and the
// resources of a job that never started.
func (j *Job) settle() {
	if !j.Ended() && j.TimeLimit == 0 {
		j.End = time.Time{}
	}
	if j.Ended() && !j.Ran() {
		j.CPUs, j.GPUs = 0, 0
	}
}

// asked returns the number of GPUs that a job requests, from the options of its user. Slurm
// reports a total only if AccountingStorageTRES contains gres/gpu.
func asked(perJob, perNode, perTask string, nodes, tasks int64) int64 {
	if n, ok := CountGPUs(perJob); ok {
		return n
	}
	if n, ok := CountGPUs(perNode); ok {
		return n * max(1, nodes)
	}
	n, _ := CountGPUs(perTask)
	return n * max(1, tasks)
}

// detailless returns GRES without the parenthesized details, which may contain commas.
func detailless(s string) string {
	var b strings.Builder
	depth := 0
	for _, r := range s {
		switch r {
		case '(':
			depth++
		case ')':
			depth = max(0, depth-1)
		default:
			if depth == 0 {
				b.WriteRune(r)
			}
		}
	}
	return b.String()
}
