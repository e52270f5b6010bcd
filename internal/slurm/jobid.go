package slurm

import (
	"fmt"
	"strings"
)

// JobID is a job as its user calls it.
type JobID struct {
	Job string // of the job, of the array, or of the heterogeneous job
	// Tasks are those of an array: one number, or a list as 1-3,7 of those that wait.
	Tasks string
	// Component is the place in a heterogeneous job, from 0.
	Component string
	Step      string
}

// ParseJobID parses 7, 7.0, 7.batch, 4_2, 4_[1-3%2], 10+1 and 10+1.0. The most tasks
// that may run at once, after %, is left out: it is no part of who they are.
func ParseJobID(s string) (JobID, error) {
	bad := func() (JobID, error) { return JobID{}, fmt.Errorf("%.100q is no job", s) }
	var id JobID
	end := strings.IndexByte(s, ']') + 1 // squeue cuts long lists of tasks: 4_[1,3,...]
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

// parseTasks returns the tasks of an array without brackets and without %.
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
