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

// parseText parses the output of scontrol show job -d, with and without -o, and returns the
// jobs that hold resources on a node.
//
// The name of a job, its comment and its paths are arbitrary user input, and scontrol
// quotes nothing: "my job name=x JobState=PENDING" is a valid name. The name extends to the
// end of its line; with -o it ends at UserId. Of the rest, only the fields before the
// command are read, which contain no user input.
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
		// A name may contain a line break, followed by anything that looks like another
		// job.
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
		return nil, errors.New("the output contains no jobs")
	}
	return jobs, nil
}

// free are the first fields of a job that contain text from its user or an administrator.
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
			case "UserId": // Slurm's own fields start here; anything that looked like one before was part of the name
				fields = maps.Clone(first)
				fields[key], nodes, job.GRES, job.unreadable = value, "", nil, nil
			case "Nodes":
				nodes = value
			case "GRES": // applies only to the nodes just listed
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
	if slurm.IsNumber(fields["ArrayTaskId"]) { // a list is for pending tasks
		job.ArrayTaskID = fields["ArrayTaskId"]
	}
	job.Account, job.Partition, job.QOS = slurm.Text(fields["Account"]), slurm.Text(fields["Partition"]), slurm.Text(fields["QOS"])
	job.States = []string{fields["JobState"]}
	if !slurm.IsNumber(job.ID) || !job.holds() || slurm.HostIndex(fields["NodeList"], node) < 0 {
		return Job{}, false
	}
	return job, true
}

// oneLined reports whether a line is a complete job, as scontrol -o writes it.
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

func hasPrefix(s string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}
