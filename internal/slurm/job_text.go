package slurm

import (
	"io"
	"slices"
	"strings"
	"time"
)

// ParseJobsText parses the output of scontrol show job, with and without --details and
// --oneliner, and calls each for every job.
//
// The name of a job, its comment and its paths are arbitrary user input, and scontrol quotes
// nothing: "my job name=x JobState=PENDING" is a valid name. With --oneliner the name ends at
// UserId. Otherwise the name extends to the end of its line or over further lines, up to the
// last UserId. Of the rest, only the fields before the command are read, which contain no user
// input.
func ParseJobsText(r io.Reader, each func(Job) error) error {
	var failed error
	err := Records(r, "JobId=", func(lines []string) {
		if j, ok := textJob(lines); ok && failed == nil {
			failed = each(j)
		}
	})
	if failed != nil {
		return failed
	}
	return err
}

// textJob parses the lines of one job.
func textJob(lines []string) (Job, bool) {
	head, name, body, ok := cutName(lines)
	if !ok {
		return Job{}, false
	}
	fields := map[string]string{}
	Fields(fields, head)
	var held []Held
	for _, line := range body {
		if FreeText(line) {
			break
		}
		held = append(held, heldOn(line)...)
		Fields(fields, line)
	}
	get := func(key string) string { return Text(fields[key]) }
	limit, _ := ParseSpan(fields["TimeLimit"])
	j := Job{
		ID: get("JobId"), ArrayJobID: get("ArrayJobId"), HetJobID: get("HetJobId"), Tasks: 1,
		Name: Text(name), Account: get("Account"), Partition: get("Partition"), QOS: get("QOS"),
		State: jobState([]string{fields["JobState"]}), States: []string{fields["JobState"]}, Reason: reason(fields["Reason"]), NodeList: get("NodeList"),
		Nodes: Count(fields["NumNodes"]), CPUs: Count(fields["NumCPUs"]), Priority: Count(fields["Priority"]), Restarts: Count(fields["Restarts"]),
		Submit: clock(fields["SubmitTime"]), Eligible: clock(fields["EligibleTime"]), Start: clock(fields["StartTime"]), End: clock(fields["EndTime"]),
		Suspend: clock(fields["SuspendTime"]), PreSuspend: time.Duration(Count(fields["SecsPreSuspend"])) * time.Second, TimeLimit: limit,
		Held: held,
	}
	j.User, _, _ = strings.Cut(get("UserId"), "(")
	if !IsNumber(j.ID) {
		return Job{}, false
	}
	if task := get("ArrayTaskId"); IsNumber(task) {
		j.ArrayTaskID = task
	} else if task != "" && j.Pending() {
		j.Tasks = tasksOf(task)
	}
	// Up to 23.02, TRES is what the job holds or, while pending, requests.
	tres := fields["TRES"]
	if alloc := get("AllocTRES"); alloc != "" && !j.Pending() {
		tres = alloc
	} else if req := get("ReqTRES"); req != "" && j.Pending() {
		tres = req
	}
	var tracked bool
	if j.GPUs, tracked = CountGPUs(tres); !tracked {
		// The last occurrence counts: a comment that looks like these fields precedes them.
		per := map[string]string{}
		for _, line := range body {
			if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && strings.HasPrefix(key, "TresPer") {
				per[key] = value
			}
		}
		j.GPUs = asked(per["TresPerJob"], per["TresPerNode"], per["TresPerTask"], j.Nodes, Count(fields["NumTasks"]))
	}
	j.settle()
	return j, true
}

// cutName finds the name of a job, which is between the first fields and UserId. Slurm's own
// fields resume there; anything that looked like one before was part of the name.
func cutName(lines []string) (head, name string, body []string, ok bool) {
	head, rest, ok := strings.Cut(lines[0], " JobName=")
	if !ok {
		return "", "", nil, false
	}
	if before, after, one := cutUser(rest); one && len(lines) == 1 {
		for _, field := range freeText {
			if i := strings.Index(after, " "+field); i >= 0 && field != "Reason=" && field != "OS=" {
				after = after[:i]
			}
		}
		return head, before, []string{after}, true
	}
	at := 0
	for i, line := range lines {
		if at > 0 && FreeText(line) {
			break
		}
		if strings.HasPrefix(line, "   UserId=") {
			at = i
		}
	}
	if at == 0 {
		return "", "", nil, false
	}
	words := append([]string{rest}, lines[1:at]...)
	words = slices.DeleteFunc(words, func(line string) bool { return strings.HasPrefix(line, "   HetJobIdSet=") })
	return head, strings.Join(words, " "), lines[at:], true
}

// oneLined reports whether a line is a complete job, as scontrol --oneliner writes it.
func oneLined(line string) bool {
	_, rest, _ := strings.Cut(line, " JobName=")
	_, _, ok := cutUser(rest)
	return ok
}

// cutUser finds the end of the job name in a single-line record.
func cutUser(s string) (name, rest string, ok bool) {
	for at := 0; ; {
		i := strings.Index(s[at:], " UserId=")
		if i < 0 {
			return "", "", false
		}
		i += at
		word, after, _ := strings.Cut(s[i+1:], " ")
		if strings.HasSuffix(word, ")") && strings.HasPrefix(after, "GroupId=") {
			name = s[:i]
			if j := strings.LastIndex(name, " HetJobIdSet="); j >= 0 && !strings.Contains(name[j+1:], " ") {
				name = name[:j]
			}
			return name, s[i:], true
		}
		at = i + 1
	}
}

// heldOn parses the details in a line: Nodes=gn[1-2] CPU_IDs=0-3 Mem=8 GRES=gpu:1(IDX:0). With
// --oneliner, one line has the details of all nodes.
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
