package slurm

import (
	"bytes"
	"strings"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// Place is where in Slurm a process runs.
type Place struct {
	Job  string // job id; of a component, if the job is heterogeneous
	Step string // 0, 1, ..., batch, extern, interactive; empty: the job as a whole
	Task string // 0, 1, ...; empty: the step as a whole
	// Node is the node's name if several slurmd share the machine. The control group
	// contains it only then.
	Node string
}

// ParseCgroup returns the place of a process with this /proc/PID/cgroup, and whether it has
// one. The hierarchies of version 1 differ in detail (freezer knows the step, devices the
// task, too), so the deepest path decides:
//
//	/slurm/uid_1000/job_7/step_0/task_0
//	/slurm_gn1/uid_1000/job_7/step_batch/task_0
//	/system.slice/slurmstepd.scope/job_7/step_0/user/task_0
//	/system.slice/gn1_slurmstepd.scope/job_7/step_extern/user/task_special
//
// A container that a job started is below these paths and is part of the job.
func ParseCgroup(file []byte) (Place, bool) {
	var best Place
	depth := 0
	for line := range bytes.Lines(file) {
		// hierarchy:controllers:path; the path may contain colons
		fields := bytes.SplitN(bytes.TrimRight(line, "\r\n"), []byte(":"), 3)
		if len(fields) != 3 {
			continue
		}
		if p, at := parsePath(strings.TrimSuffix(string(fields[2]), " (deleted)")); at > depth {
			best, depth = p, at
		}
	}
	return best, depth > 0
}

// parsePath returns the place that a control group represents, and how many of job, step
// and task it names. Slurm's own root must precede the job: an unrelated directory called
// job_7 does not count.
func parsePath(path string) (p Place, depth int) {
	names := strings.Split(path, "/")
	for i, name := range names {
		node, ok := root(name)
		if !ok {
			continue
		}
		rest := names[i+1:]
		if len(rest) > 0 && strings.HasPrefix(rest[0], "uid_") { // version 1
			rest = rest[1:]
		}
		if len(rest) == 0 {
			continue
		}
		job, ok := strings.CutPrefix(rest[0], "job_")
		if !ok || !slurm.IsNumber(job) {
			continue
		}
		p, depth = Place{Job: job, Node: node}, 1
		if len(rest) < 2 {
			return p, depth
		}
		step, ok := strings.CutPrefix(rest[1], "step_")
		if !ok || !slurm.IsWord(step) {
			return p, depth
		}
		p.Step, depth = step, 2
		rest = rest[2:]
		if len(rest) > 0 && (rest[0] == "user" || rest[0] == "slurm") { // version 2: the job's processes, or Slurm's own
			rest = rest[1:]
		}
		if len(rest) == 0 {
			return p, depth
		}
		if task, ok := strings.CutPrefix(rest[0], "task_"); ok && slurm.IsWord(task) {
			p.Task, depth = task, 3
		}
		return p, depth
	}
	return Place{}, 0
}

// root reports whether a control group is Slurm's root for jobs, and for which node, if the
// name tells.
func root(name string) (node string, ok bool) {
	switch {
	case name == "slurm" || name == "slurmstepd.scope":
		return "", true
	case strings.HasPrefix(name, "slurm_"): // version 1
		return name[len("slurm_"):], len(name) > len("slurm_")
	}
	node, ok = strings.CutSuffix(name, "_slurmstepd.scope") // version 2
	return node, ok && node != ""
}
