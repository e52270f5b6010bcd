package slurm

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ParseJobsText parses the output of scontrol --verbose show job, with and without --details,
// and calls each for every job. The jobs are valid only if ParseJobsText returns nil.
//
// scontrol quotes nothing, and a user chooses the name, the account, the network, the comment
// and the paths of a job, all of which may contain line breaks: text that looks like fields
// of this job, or like other jobs, is part of an honest answer. Two rules keep such text from
// being believed:
//
//   - --verbose makes scontrol write the number of jobs first. User text can add what looks
//     like a job but cannot hide one, so an answer with more jobs than that is rejected.
//   - Slurm writes its own lines in a fixed order and each of them once. A job in which one of
//     them occurs twice, or elsewhere, is Ambiguous.
func ParseJobsText(r io.Reader, each func(Job) error) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 64<<10), 8<<20)
	jobs, announced := 0, -1
	var lines []string
	odd := "" // the number of a job that is not believed
	flush := func() error {
		if len(lines) == 0 {
			return nil
		}
		j, ok := textJob(lines)
		lines = lines[:0]
		if !ok {
			return errors.New("unexpected output of scontrol")
		}
		if j.Ambiguous && odd == "" {
			odd = j.ID
		}
		return each(j)
	}
	empty := true
	for sc.Scan() {
		line := sc.Text()
		if announced < 0 {
			if announced = recordCount(line); announced < 0 && strings.TrimSpace(line) != "" {
				return errors.New("unexpected output of scontrol: no number of jobs")
			}
			continue
		}
		if empty && strings.HasPrefix(line, "JobId=") {
			if err := flush(); err != nil {
				return err
			}
			jobs++
		} else if jobs == 0 && announced > 0 && strings.TrimSpace(line) != "" {
			return errors.New("unexpected output of scontrol")
		}
		if empty = strings.TrimSpace(line) == ""; jobs > 0 && !empty {
			lines = append(lines, line)
		}
	}
	if err := sc.Err(); err != nil {
		return err
	}
	if err := flush(); err != nil {
		return err
	}
	if jobs > announced && announced >= 0 {
		return fmt.Errorf("scontrol wrote %d records of %d jobs: the text of a job imitates another job, such as job %s", jobs, announced, odd)
	}
	return nil
}

// recordCount returns the number of jobs in the first line of scontrol --verbose:
//
//	last_update_time=2026-11-15T22:50:30, records=2
//
// It returns -1 for any other line.
func recordCount(line string) int {
	_, count, ok := strings.Cut(line, ", records=")
	n, err := strconv.ParseUint(count, 10, 31)
	if !ok || err != nil || !strings.HasPrefix(line, "last_update_time=") {
		return -1
	}
	return int(n)
}

// jobLines are the first keys of the lines that are read, in Slurm's order, and that every
// version from 22.05 to 26.05 writes exactly once for every job.
var jobLines = []string{
	"UserId", "Priority", "JobState", "Requeue", "RunTime", "SubmitTime", "StartTime", "SuspendTime",
	"Partition", "ReqNodeList", "NodeList", "NumNodes", "Socks/Node", "MinCPUsNode",
}

// record is the lines of one job.
type record struct {
	head  string         // the fields before the name
	name  string         // as far as it is on the first line
	lines []string       // all lines
	at    map[string]int // the index of each of jobLines
}

// locate finds Slurm's own lines in a record. ok is false if the lines are not those of a
// job, and plain is false if user text may have taken the place of some.
func locate(lines []string) (r record, plain, ok bool) {
	r = record{lines: lines, at: map[string]int{}}
	if r.head, r.name, ok = strings.Cut(lines[0], " JobName="); !ok {
		return record{}, false, false
	}
	next := 0
	plain = true
	for i, line := range lines[1:] {
		line, own := strings.CutPrefix(line, "   ")
		key, _, isField := strings.Cut(line, "=")
		k := slices.Index(jobLines, key)
		if !own || !isField || k < 0 {
			continue
		}
		if k != next {
			plain = false
		}
		r.at[key] = i + 1
		next = k + 1
	}
	return r, plain && next == len(jobLines), true
}

// fields returns the fields of a line that has no user text, or none before the named field.
func (r record) fields(key string) map[string]string {
	out := map[string]string{}
	Fields(out, r.lines[r.at[key]])
	return out
}

// between returns the lines between two of jobLines.
func (r record) between(after, before string) []string {
	return r.lines[r.at[after]+1 : r.at[before]]
}

// fullName returns the name, which may continue on further lines. Slurm's own lines between
// the name and UserId are the identifier of 26.05 and the members of a heterogeneous job.
func (r record) fullName() string {
	more := r.lines[1:r.at["UserId"]]
	for _, own := range []string{"   HetJobIdSet=", "   SLUID="} {
		if n := len(more); n > 0 && strings.HasPrefix(more[n-1], own) {
			more = more[:n-1]
		}
	}
	return strings.Join(append([]string{r.name}, more...), " ")
}

// account returns the account and the QOS of a job. Without accounting a user may enter any
// text as account: both are empty if the line can be read in two ways.
func (r record) account() (account, qos string) {
	_, rest, _ := strings.Cut(r.lines[r.at["Priority"]], " Account=")
	account, rest, ok := strings.Cut(rest, " QOS=")
	if !ok || strings.Contains(rest, " QOS=") {
		return "", ""
	}
	qos, _, _ = strings.Cut(rest, " ") // WCKey may follow
	return Text(account), Text(qos)
}

// textJob parses the lines of one job.
func textJob(lines []string) (Job, bool) {
	r, plain, ok := locate(lines)
	if !ok {
		return Job{}, false
	}
	head := map[string]string{}
	Fields(head, r.head)
	j := Job{ID: Text(head["JobId"]), ArrayJobID: Text(head["ArrayJobId"]), HetJobID: Text(head["HetJobId"]), Tasks: 1, State: "UNKNOWN", Ambiguous: !plain}
	if !IsNumber(j.ID) {
		return Job{}, false
	}
	task := Text(head["ArrayTaskId"])
	if IsNumber(task) {
		j.ArrayTaskID = task
	}
	if !plain {
		return j, true
	}
	user, _, _ := strings.Cut(r.fields("UserId")["UserId"], "(")
	j.Name, j.User = Text(r.fullName()), Text(user)
	j.Account, j.QOS = r.account()
	state, times, nodes := r.fields("JobState"), r.fields("StartTime"), r.fields("NumNodes")
	j.State, j.States, j.Reason = jobState([]string{state["JobState"]}), []string{state["JobState"]}, reason(state["Reason"])
	j.Priority, j.Restarts = Count(r.fields("Priority")["Priority"]), Count(r.fields("Requeue")["Restarts"])
	j.TimeLimit, _ = ParseSpan(r.fields("RunTime")["TimeLimit"])
	submit, suspend := r.fields("SubmitTime"), r.fields("SuspendTime")
	j.Submit, j.Eligible = clock(submit["SubmitTime"]), clock(submit["EligibleTime"])
	j.Start, j.End = clock(times["StartTime"]), clock(times["EndTime"])
	j.Suspend, j.PreSuspend = clock(suspend["SuspendTime"]), time.Duration(Count(suspend["SecsPreSuspend"]))*time.Second
	j.Partition, j.NodeList = Text(r.fields("Partition")["Partition"]), Text(r.fields("NodeList")["NodeList"])
	j.Nodes, j.CPUs = Count(nodes["NumNodes"]), Count(nodes["NumCPUs"])
	if task != "" && j.ArrayTaskID == "" && j.Pending() {
		j.Tasks = tasksOf(task)
	}
	for _, line := range r.between("Socks/Node", "MinCPUsNode") {
		j.Held = append(j.Held, heldOn(line)...)
	}
	j.GPUs = r.gpus(j.Pending(), j.Nodes, Count(nodes["NumTasks"]))
	j.settle()
	return j, true
}

// gpus returns the number of GPUs that a job holds or, while pending, requests.
func (r record) gpus(pending bool, nodes, tasks int64) int64 {
	tres := map[string]string{}
	for _, line := range r.between("NumNodes", "Socks/Node") {
		Fields(tres, line)
	}
	total := tres["TRES"] // up to 23.02
	if alloc := Text(tres["AllocTRES"]); alloc != "" && !pending {
		total = alloc
	} else if req := Text(tres["ReqTRES"]); req != "" && pending {
		total = req
	}
	if n, tracked := CountGPUs(total); tracked {
		return n
	}
	// The user's own request. The last occurrence counts: a comment or a path that looks like
	// these fields precedes them.
	per := map[string]string{}
	for _, line := range r.lines[r.at["MinCPUsNode"]:] {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && strings.HasPrefix(key, "TresPer") {
			per[key] = value
		}
	}
	return asked(per["TresPerJob"], per["TresPerNode"], per["TresPerTask"], nodes, tasks)
}

// heldOn parses the details in a line: Nodes=gn[1-2] CPU_IDs=0-3 Mem=8 GRES=gpu:1(IDX:0).
func heldOn(line string) (list []Held) {
	nodes := ""
	for word := range strings.FieldsSeq(line) {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "Nodes":
			nodes = value
		case "GRES": // applies only to the nodes just listed
			if nodes != "" {
				list = append(list, Held{Nodes: nodes, GRES: value})
			}
		}
	}
	return list
}
