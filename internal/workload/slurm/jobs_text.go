package slurm

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// parseText reads what scontrol show job -d writes, with and without -o, and returns the
// jobs that hold something on a node.
//
// The name of a job, its comment and its paths are whatever its user wrote, and scontrol
// quotes nothing: "my job name=x JobState=PENDING" is a name. The name ends its line;
// with -o it ends at UserId. Of the rest only what comes before the command is read, up
// to which no text of a user is printed.
func parseText(r io.Reader, node string) (jobs []Job, err error) {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 64<<10), 8<<20)
	var record []string
	records := 0
	flush := func() error {
		if len(record) == 0 {
			return nil
		}
		records++
		if j, ok := parseRecord(record, node); ok {
			if len(jobs) >= maxJobs {
				return fmt.Errorf("more than %d jobs on a node", maxJobs)
			}
			jobs = append(jobs, j)
		}
		record = record[:0]
		return nil
	}
	empty := true
	var first string
	for sc.Scan() {
		line := sc.Text()
		if first == "" {
			first = line
		}
		// A name may have a line break, and then whatever looks like another job.
		if strings.HasPrefix(line, "JobId=") && (empty || len(record) == 1 && oneLined(record[0])) {
			if err := flush(); err != nil {
				return jobs, err
			}
		}
		empty = strings.TrimSpace(line) == ""
		if len(record) > 0 || strings.HasPrefix(line, "JobId=") {
			record = append(record, line)
		}
	}
	if err := flush(); err != nil {
		return jobs, err
	}
	if err := sc.Err(); err != nil {
		return jobs, err
	}
	if records == 0 && first != "" && !strings.Contains(first, "No jobs in the system") {
		return nil, errors.New("the answer has no jobs")
	}
	return jobs, nil
}

// free are the first fields of a job that have text of its user, or of an administrator.
var free = []string{"Command=", "WorkDir=", "Comment=", "AdminComment=", "SystemComment=", "Extra=", "StdErr=", "BatchScript="}

func parseRecord(lines []string, node string) (Job, bool) {
	head, rest, ok := strings.Cut(lines[0], " JobName=")
	if !ok {
		return Job{}, false
	}
	name := rest
	body := lines[1:]
	if before, after, ok := cutUser(rest); ok && len(strings.TrimSpace(strings.Join(body, ""))) == 0 { // -o
		name, body = before, []string{after}
		for _, f := range free {
			if before, _, ok := strings.Cut(body[0], " "+f); ok {
				body[0] = before
			}
		}
	}
	fields, first := map[string]string{}, map[string]string{}
	job := Job{Name: slurm.Text(name)}
	var nodes string
	take := func(words string) {
		for word := range strings.FieldsSeq(words) {
			key, value, ok := strings.Cut(word, "=")
			if !ok {
				continue
			}
			switch key {
			case "UserId": // here Slurm's own words begin, and what looked so before was the name
				fields = maps.Clone(first)
				fields[key], nodes, job.GRES, job.unreadable = value, "", nil, nil
			case "Nodes":
				nodes = value
			case "GRES": // of the nodes before it, and of no other
				if slurm.HostIndex(nodes, node) >= 0 {
					gres, err := slurm.ParseGRES(value)
					job.GRES = append(job.GRES, gres...)
					job.unreadable = errors.Join(job.unreadable, err)
				}
			default:
				if _, twice := fields[key]; !twice {
					fields[key] = value
				}
			}
		}
	}
	take(head)
	first = fields
	for _, line := range body {
		line = strings.TrimSpace(line)
		if hasPrefix(line, free) {
			break
		}
		take(line)
	}
	job.ID = fields["JobId"]
	job.User, _, _ = strings.Cut(fields["UserId"], "(")
	job.ArrayJobID, job.HetJobID = fields["ArrayJobId"], fields["HetJobId"]
	if slurm.IsNumber(fields["ArrayTaskId"]) { // a list is of those that wait
		job.ArrayTaskID = fields["ArrayTaskId"]
	}
	job.Account, job.Partition, job.QOS = slurm.Text(fields["Account"]), slurm.Text(fields["Partition"]), slurm.Text(fields["QOS"])
	job.States = []string{fields["JobState"]}
	if !slurm.IsNumber(job.ID) || !job.holds() || slurm.HostIndex(fields["NodeList"], node) < 0 {
		return Job{}, false
	}
	return job, true
}

// oneLined reports whether a line is all of a job, as scontrol writes it with -o.
func oneLined(line string) bool {
	_, rest, _ := strings.Cut(line, " JobName=")
	_, _, ok := cutUser(rest)
	return ok
}

// cutUser finds where the name of a job ends in one line.
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

func hasPrefix(s string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}
