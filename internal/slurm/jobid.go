package slurm

import (
	"fmt"
	"strings"
)

// JobID identifies a job the way its user refers to it.
type JobID struct {
	Job string // number of the job, the array, or the heterogeneous job
	// Tasks are the array tasks: one number, or a list such as 1-3,7 for pending tasks.
	Tasks string
	// Component is the offset in a heterogeneous job, counted from 0.
	Component string
	Step      string
}

// ParseJobID parses 7, 7.0, 7.batch, 4_2, 4_[1-3%2], 10+1 and 10+1.0. The limit of
// concurrent tasks after % is dropped because it does not identify tasks.
func ParseJobID(s string) (JobID, error) {
	bad := func() (JobID, error) { return JobID{}, fmt.Errorf("%.100q is not a job ID", s) }
	var id JobID
	end := strings.IndexByte(s, ']') + 1 // squeue truncates long task lists: 4_[1,3,...]
	rest, step, stepped := strings.Cut(s[end:], ".")
	rest = s[:end] + rest
	if stepped {
		if !IsWord(step) {
			return bad()
		}
		id.Step = step
	}
	if job, tasks, ok := strings.Cut(rest, "_"); ok {
		id.Job = job
		if id.Tasks, ok = parseTasks(tasks); !ok {
			return bad()
		}
	} else if job, component, ok := strings.Cut(rest, "+"); ok {
		id.Job, id.Component = job, component
		if !IsNumber(component) {
			return bad()
		}
	} else {
		id.Job = rest
	}
	if !IsNumber(id.Job) {
		return bad()
	}
	return id, nil
}

// parseTasks returns an array's task list without brackets and without the % limit.
func parseTasks(s string) (string, bool) {
	if in, ok := strings.CutPrefix(s, "["); ok {
		if s, ok = strings.CutSuffix(in, "]"); !ok {
			return "", false
		}
	}
	s, limit, limited := strings.Cut(s, "%")
	if limited && !IsNumber(limit) {
		return "", false
	}
	s = strings.TrimSuffix(s, ",...")
	if s == "" || strings.Trim(s, "0123456789-,:") != "" {
		return "", false
	}
	return s, true
}
