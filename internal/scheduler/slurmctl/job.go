package slurmctl

import (
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// Job is a row of the queue: a job, an array task, a component of a heterogeneous job, or
// all pending tasks of an array.
type Job struct {
	ID          string
	ArrayJobID  string
	ArrayTaskID string // empty if there is none, or if the row stands for several pending tasks
	HetJobID    string
	Tasks       int64 // array tasks that this row stands for; otherwise 1
	Name        string
	User        string
	Account     string
	Partition   string // comma-separated if the job may run in several
	QOS         string
	State       string // lower case: pending, running, completing
	Reason      string // why the job is pending
	NodeList    string
	Nodes, CPUs int64 // per task
	GPUs        int64 // per task: held, or requested while pending
	Priority    int64
	Restarts    int64

	// Start of a pending job is the scheduler's estimate. End of a running job is when its
	// time limit expires.
	Submit, Eligible, Start, End time.Time
	Suspend                      time.Time     // when the job was last suspended or resumed
	PreSuspend                   time.Duration // run time up to Suspend
	TimeLimit                    time.Duration // 0: no limit
}

// endings are the states of jobs that will not run again.
var endings = []string{
	"completed", "cancelled", "failed", "timeout", "node_fail", "preempted", "boot_fail", "deadline", "out_of_memory", "revoked", "special_exit",
}

// Pending reports whether the job waits. A job that is neither pending nor ended holds
// resources.
func (j *Job) Pending() bool { return j.State == "pending" || strings.HasPrefix(j.State, "requeue") }

// Ended reports whether the job is over.
func (j *Job) Ended() bool { return slices.Contains(endings, j.State) }

// Ran reports whether the job ever had a node. A start time does not say so: a job canceled
// while pending has one too.
func (j *Job) Ran() bool { return j.NodeList != "" && !j.Pending() }

// jobState derives one state from the words that Slurm reports. Up to 23.02 there is one
// word; later versions add flags, two of which are more specific than the base state.
func jobState(words []string) string {
	state := ""
	for _, w := range words {
		for w := range strings.SplitSeq(strings.ToLower(w), "+") {
			switch w {
			case "completing", "configuring":
				return w
			}
			if state == "" {
				state, _, _ = strings.Cut(w, " ") // as in "CANCELLED by 1000"
			}
		}
	}
	if !slurm.IsWord(state) {
		return "unknown"
	}
	return state
}

// reason returns why a job is pending, without the node names that some reasons include.
func reason(s string) string {
	s = strings.TrimLeft(slurm.Text(s), "(")
	if i := strings.IndexAny(s, ",:()"); i >= 0 {
		s = s[:i]
	}
	return s[:min(len(s), 64)]
}

// gpusOf counts the GPUs in a TRES string: gres/gpu=8,gres/gpu:h100=8 is eight. Typed
// entries count only if there is no untyped total.
func gpusOf(tres string) (n int64, ok bool) {
	all, typed, sum := int64(0), int64(0), false
	for one := range strings.SplitSeq(tres, ",") {
		one = strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(one), "gres/"), "gres:")
		if one != "gpu" && !strings.HasPrefix(one, "gpu:") && !strings.HasPrefix(one, "gpu=") { // gpumem and gpuutil are other resources
			continue
		}
		list, err := slurm.ParseGRES("gres/" + one)
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

// tasksOf counts the pending tasks of an array: 3-6%2, 1-9:2, 1,3,... A list that Slurm
// truncated counts as far as it goes.
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

// jobList collects the jobs of an answer.
type jobList struct {
	list    []Job
	cluster string
}

type jsonJob struct {
	ID          slurm.Number `json:"job_id"`
	ArrayJob    slurm.Number `json:"array_job_id"`
	ArrayTask   slurm.Number `json:"array_task_id"`
	ArrayTasks  slurm.Line   `json:"array_task_string"`
	Het         slurm.Number `json:"het_job_id"`
	Name        slurm.Line   `json:"name"`
	User        slurm.Line   `json:"user_name"`
	UserID      slurm.Number `json:"user_id"`
	Account     slurm.Line   `json:"account"`
	Cluster     slurm.Line   `json:"cluster"`
	Partition   slurm.Line   `json:"partition"`
	QOS         slurm.Line   `json:"qos"`
	State       slurm.Words  `json:"job_state"`
	Reason      slurm.Line   `json:"state_reason"`
	NodeList    slurm.Line   `json:"nodes"`
	Nodes       slurm.Number `json:"node_count"`
	CPUs        slurm.Number `json:"cpus"`
	NumTasks    slurm.Number `json:"tasks"`
	Priority    slurm.Number `json:"priority"`
	Restarts    slurm.Number `json:"restart_cnt"`
	Submit      slurm.Number `json:"submit_time"`
	Eligible    slurm.Number `json:"eligible_time"`
	Start       slurm.Number `json:"start_time"`
	End         slurm.Number `json:"end_time"`
	Suspend     slurm.Number `json:"suspend_time"`
	PreSuspend  slurm.Number `json:"pre_sus_time"`
	TimeLimit   slurm.Number `json:"time_limit"` // minutes
	TRESAlloc   slurm.Line   `json:"tres_alloc_str"`
	TRESReq     slurm.Line   `json:"tres_req_str"`
	TRESPerJob  slurm.Line   `json:"tres_per_job"`
	TRESPerNode slurm.Line   `json:"tres_per_node"`
	TRESPerTask slurm.Line   `json:"tres_per_task"`
	GRES        []slurm.Line `json:"gres_detail"` // one entry per node
}

func (l *jobList) json(r io.Reader) error {
	l.list = []Job{}
	return slurm.DecodeList(r, "jobs", func(j jsonJob) error {
		if l.cluster == "" {
			l.cluster = string(j.Cluster)
		}
		l.list = append(l.list, j.job())
		return nil
	})
}

func (j *jsonJob) job() Job {
	out := Job{
		ID: j.ID.String(), ArrayJobID: j.ArrayJob.Positive(), HetJobID: j.Het.Positive(), Tasks: 1,
		Name: string(j.Name), User: string(j.User), Account: string(j.Account), Partition: string(j.Partition), QOS: string(j.QOS),
		State: jobState(j.State), Reason: reason(string(j.Reason)), NodeList: string(j.NodeList),
		Nodes: number(j.Nodes), CPUs: number(j.CPUs), Priority: number(j.Priority), Restarts: number(j.Restarts),
		Submit: moment(j.Submit), Eligible: moment(j.Eligible), Start: moment(j.Start), End: moment(j.End), Suspend: moment(j.Suspend),
		PreSuspend: time.Duration(number(j.PreSuspend)) * time.Second, TimeLimit: time.Duration(number(j.TimeLimit)) * time.Minute,
	}
	if out.User == "" {
		out.User = j.UserID.String() // the user ID has no name on the host of slurmrestd
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
	if n, ok := gpusOf(tres); ok {
		out.GPUs = n
	} else if len(j.GRES) > 0 && !out.Pending() {
		for _, node := range j.GRES {
			n, _ := gpusOf(detailless(string(node)))
			out.GPUs += n
		}
	} else {
		out.GPUs = asked(string(j.TRESPerJob), string(j.TRESPerNode), string(j.TRESPerTask), number(j.Nodes), number(j.NumTasks))
	}
	out.settle()
	return out
}

// settle discards values that Slurm invents: the end of a job that has not ended, and the
// allocation of a job that never started.
func (j *Job) settle() {
	if !j.Ended() && j.TimeLimit == 0 {
		j.End = time.Time{}
	}
	if j.Ended() && !j.Ran() {
		j.CPUs, j.GPUs = 0, 0
	}
}

// asked returns how many GPUs a job requests, computed from the submit options. Slurm
// reports a total only if gres/gpu is in AccountingStorageTRES.
func asked(perJob, perNode, perTask string, nodes, tasks int64) int64 {
	if n, ok := gpusOf(perJob); ok {
		return n
	}
	if n, ok := gpusOf(perNode); ok {
		return n * max(1, nodes)
	}
	n, _ := gpusOf(perTask)
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

// number returns the number if it is set, else 0. The two highest values of 32 and 64 bits
// are Slurm's sentinels for no value and for no limit.
func number(n slurm.Number) int64 {
	v, ok := n.Get()
	if !ok || v == 0xfffffffe || v == 0xffffffff || v > 1<<62 {
		return 0
	}
	return int64(v)
}

// moment converts Unix seconds to a time; unset and 0 yield the zero time.
func moment(n slurm.Number) time.Time {
	if s := number(n); s > 0 && s < 1<<40 {
		return time.Unix(s, 0)
	}
	return time.Time{}
}
