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

// freeText are the first fields of a record whose text a person wrote and which may look
// like any other field. A job is read only up to the first of them; lines of a node that
// start with one are skipped.
var freeText = []string{"Command=", "WorkDir=", "Comment=", "AdminComment=", "SystemComment=", "Extra=", "StdErr=", "BatchScript=", "OS=", "Reason="}

// records calls each with the lines of every record in the output of scontrol show. A
// record begins with first; a job's record also follows an empty line, because a job name
// may contain a line break followed by text that looks like another job.
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
	if said = strings.TrimSpace(said); !seen && said != "" && !strings.HasPrefix(said, "No ") { // as in "No jobs in the system"
		return errors.New("unexpected output of scontrol")
	}
	return nil
}

// fieldsOf adds the Key=Value pairs of a line. The first occurrence of a key counts.
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

// textJob parses the lines of a job. The job name ends the first line or, if it has line
// breaks, continues up to UserId.
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
	// Up to 23.02, TRES is what the job holds or, while pending, requests.
	tres := fields["TRES"]
	if alloc := get("AllocTRES"); alloc != "" && !j.Pending() {
		tres = alloc
	} else if req := get("ReqTRES"); req != "" && j.Pending() {
		tres = req
	}
	var tracked bool
	if j.GPUs, tracked = gpusOf(tres); !tracked {
		// These fields come last, so text in a comment that looks like them precedes them.
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

// count returns the number in 2, 1-2 (at least one) or 4K, otherwise 0.
func count(s string) int64 {
	s, _, _ = strings.Cut(s, "-")
	n, err := slurm.ParseCount(s)
	if err != nil || n > 1<<53 || n == 0xfffffffe || n == 0xffffffff {
		return 0
	}
	return int64(n)
}

// clock parses 2026-11-15T02:17:02 in the local time zone: Slurm's tools write local time.
func clock(s string) time.Time {
	t, err := time.ParseInLocation("2006-01-02T15:04:05", s, time.Local)
	if err != nil || t.Unix() <= 0 {
		return time.Time{}
	}
	return t
}

// span parses the durations 365-00:00:00, 01:00:00 and 05:00; anything else is 0.
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
