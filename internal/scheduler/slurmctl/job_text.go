package slurmctl

import (
	"bufio"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// freeText are the first fields of a job or a node whose text a person wrote, which may
// look like any other field: nothing of a job is read from there on, of a node no such line.
var freeText = []string{"Command=", "WorkDir=", "Comment=", "AdminComment=", "SystemComment=", "Extra=", "StdErr=", "BatchScript=", "OS=", "Reason="}

// records calls each with the lines of each record of what scontrol show writes. One
// begins with first. That of a job also comes after an empty line: a name may have a line
// break, and then whatever looks like another job.
func records(r io.Reader, first string, each func(lines []string)) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 64<<10), 8<<20)
	var lines []string
	empty, said := true, ""
	flush := func() {
		if len(lines) > 0 {
			each(lines)
		}
		lines = lines[:0]
	}
	seen := false
	for sc.Scan() {
		line := sc.Text()
		if said == "" {
			said = line
		}
		if (empty || first != "JobId=") && strings.HasPrefix(line, first) {
			flush()
			seen = true
		}
		if empty = strings.TrimSpace(line) == ""; !empty && (len(lines) > 0 || strings.HasPrefix(line, first)) {
			lines = append(lines, line)
		}
	}
	flush()
	if err := sc.Err(); err != nil {
		return err
	}
	if said = strings.TrimSpace(said); !seen && said != "" && !strings.HasPrefix(said, "No ") { // No jobs in the system
		return errors.New("the answer is none that scontrol writes")
	}
	return nil
}

// fieldsOf reads Key=Value of lines. The first of a name counts.
func fieldsOf(fields map[string]string, line string) {
	for word := range strings.FieldsSeq(line) {
		if key, value, ok := strings.Cut(word, "="); ok {
			if _, twice := fields[key]; !twice {
				fields[key] = value
			}
		}
	}
}

func startsWith(line string, prefixes []string) bool {
	line = strings.TrimSpace(line)
	for _, p := range prefixes {
		if strings.HasPrefix(line, p) {
			return true
		}
	}
	return false
}

func (l *jobList) text(r io.Reader) error {
	l.list = []Job{}
	return records(r, "JobId=", func(lines []string) {
		if j, ok := textJob(lines); ok {
			l.list = append(l.list, j)
		}
	})
}

// textJob reads a job of its lines. Its name ends the first, or goes on in the next ones if
// it has line breaks, up to UserId.
func textJob(lines []string) (Job, bool) {
	head, name, ok := strings.Cut(lines[0], " JobName=")
	if !ok {
		return Job{}, false
	}
	fields := map[string]string{}
	fieldsOf(fields, head)
	at := 1
	for at < len(lines) && !strings.HasPrefix(lines[at], "   UserId=") {
		if !strings.HasPrefix(lines[at], "   HetJobIdSet=") {
			name += " " + lines[at]
		}
		at++
	}
	if at == len(lines) {
		return Job{}, false
	}
	for _, line := range lines[at:] {
		if startsWith(line, freeText) {
			break
		}
		fieldsOf(fields, line)
	}
	get := func(key string) string { return slurm.Text(fields[key]) }
	j := Job{
		ID: get("JobId"), ArrayJobID: get("ArrayJobId"), HetJobID: get("HetJobId"), Tasks: 1,
		Name: slurm.Text(name), Account: get("Account"), Partition: get("Partition"), QOS: get("QOS"),
		State: jobState([]string{fields["JobState"]}), Reason: reason(fields["Reason"]), NodeList: get("NodeList"),
		Nodes: count(fields["NumNodes"]), CPUs: count(fields["NumCPUs"]), Priority: count(fields["Priority"]), Restarts: count(fields["Restarts"]),
		Submit: clock(fields["SubmitTime"]), Eligible: clock(fields["EligibleTime"]), Start: clock(fields["StartTime"]), End: clock(fields["EndTime"]),
		Suspend: clock(fields["SuspendTime"]), PreSuspend: time.Duration(count(fields["SecsPreSuspend"])) * time.Second, TimeLimit: span(fields["TimeLimit"]),
	}
	j.User, _, _ = strings.Cut(get("UserId"), "(")
	if !slurm.IsNumber(j.ID) {
		return Job{}, false
	}
	if task := get("ArrayTaskId"); slurm.IsNumber(task) {
		j.ArrayTaskID = task
	} else if task != "" && j.Pending() {
		j.Tasks = tasksOf(task)
	}
	// TRES is what it has or, while it waits, asks for, up to 23.02.
	tres := fields["TRES"]
	if alloc := get("AllocTRES"); alloc != "" && !j.Pending() {
		tres = alloc
	} else if req := get("ReqTRES"); req != "" && j.Pending() {
		tres = req
	}
	var tracked bool
	if j.GPUs, tracked = gpusOf(tres); !tracked {
		// These come last: what looks like them in a comment is before them.
		per := map[string]string{}
		for _, line := range lines[at:] {
			if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && strings.HasPrefix(key, "TresPer") {
				per[key] = value
			}
		}
		j.GPUs = asked(per["TresPerJob"], per["TresPerNode"], per["TresPerTask"], j.Nodes, count(fields["NumTasks"]))
	}
	j.settle()
	return j, true
}

// count returns the number of 2, 1-2 (at least one) and 4K, else 0.
func count(s string) int64 {
	s, _, _ = strings.Cut(s, "-")
	n, err := slurm.ParseCount(s)
	if err != nil || n > 1<<53 || n == 0xfffffffe || n == 0xffffffff {
		return 0
	}
	return int64(n)
}

// clock returns the time of 2026-11-15T02:17:02, in the zone of this machine: Slurm's tools
// write no other.
func clock(s string) time.Time {
	t, err := time.ParseInLocation("2006-01-02T15:04:05", s, time.Local)
	if err != nil || t.Unix() <= 0 {
		return time.Time{}
	}
	return t
}

// span returns the duration of 365-00:00:00, 01:00:00 and 05:00, 0 else.
func span(s string) time.Duration {
	days, rest, ok := strings.Cut(s, "-")
	if !ok {
		days, rest = "0", s
	}
	n, err := strconv.ParseUint(days, 10, 16)
	if err != nil {
		return 0
	}
	total := time.Duration(0)
	for part := range strings.SplitSeq(rest, ":") {
		v, err := strconv.ParseUint(part, 10, 16)
		if err != nil {
			return 0
		}
		total = total*60 + time.Duration(v)*time.Second
	}
	return total + time.Duration(n)*24*time.Hour
}
