package slurm

import (
	"bytes"
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/natural"
	"github.com/gpumeter/gpumeter/internal/slurm"
)

const (
	maxSteps = 512 // steps examined per job
	maxPIDs  = 64  // processes examined per step
	// A process of a step may not exist yet, or may exit before it is read.
	tries = 30
	// The kernel may block a reader of a hung process's environment. patience is how long a
	// read is waited for, and maxReading how many may be in progress.
	patience   = 500 * time.Millisecond
	maxReading = 8
)

// node reads the control groups and the processes of the jobs on this machine.
type node struct {
	root string // "/" or where the host's file system is mounted
	name string // node name in Slurm; control groups of other nodes are ignored

	environ func(pid uint32) (environ, error)
	reading chan struct{}

	last  here
	other map[string]nodeJob // jobs without a visible control group
}

// here is the result of a scan. It is immutable.
type here struct {
	jobs    map[string]nodeJob
	other   map[string]nodeJob // jobs of which only a process was seen
	denied  error              // why the environment of a process could not be read
	refused int                // jobs and steps beyond the limits
}

// nodeJob is a job with control groups on this node, by step.
type nodeJob map[string]nodeStep

// nodeStep is a step, and the environment of one of its processes, with the GPUs of all its
// tasks.
type nodeStep struct {
	env   environ
	ok    bool
	tried int
}

func newNode(root, name string) *node {
	n := &node{root: root, name: name, reading: make(chan struct{}, maxReading)}
	proc := filepath.Join(root, "proc")
	n.environ = func(pid uint32) (environ, error) { return readEnviron(proc, pid) }
	return n
}

// controllers are the hierarchies of version 1; those that contain all jobs come first.
var controllers = []string{"freezer", "devices", "memory", "cpuset", "cpu,cpuacct", "cpuacct", "pids"}

// roots returns the control groups that contain Slurm's jobs.
func (n *node) roots() []string {
	fs := filepath.Join(n.root, "sys/fs/cgroup")
	for _, pattern := range []string{"*.slice/*slurmstepd.scope", "unified/*.slice/*slurmstepd.scope"} {
		if found := n.glob(filepath.Join(fs, pattern)); len(found) > 0 {
			return found
		}
	}
	for _, c := range controllers {
		if found := n.glob(filepath.Join(fs, c, "slurm*")); len(found) > 0 {
			return found
		}
	}
	return nil
}

func (n *node) glob(pattern string) []string {
	found, _ := filepath.Glob(pattern) // the only error is a bad pattern
	return slices.DeleteFunc(found, func(path string) bool {
		of, ok := root(filepath.Base(path))
		return !ok || of != "" && n.name != "" && of != n.name
	})
}

// scan lists the jobs and steps, and reads the environment of new ones. It also returns the
// jobs that are gone.
func (n *node) scan() (found here, gone []string) {
	before := n.last.jobs
	n.last = here{jobs: map[string]nodeJob{}, denied: n.last.denied}
	for _, r := range n.roots() {
		for _, path := range n.jobDirs(r) {
			id := strings.TrimPrefix(filepath.Base(path), "job_")
			if !slurm.IsNumber(id) {
				continue
			}
			if len(n.last.jobs) >= maxJobs {
				n.last.refused++
				continue
			}
			n.last.jobs[id] = n.steps(id, path, before[id])
		}
	}
	if len(n.last.jobs) == 0 {
		n.last.denied = nil
	}
	for id := range before {
		if n.last.jobs[id] == nil {
			gone = append(gone, id)
		}
	}
	return n.last, gone
}

// look reads the environment of processes that were found on a device and whose jobs have
// no visible control group, as with host jobs seen from a container. It returns the
// processes that still exist.
func (n *node) look(found map[Place]uint32) (jobs map[string]nodeJob, left map[Place]uint32) {
	before := n.other
	n.other, left = map[string]nodeJob{}, map[Place]uint32{}
	for p, pid := range found {
		if n.last.jobs[p.Job] != nil || len(n.other) >= maxJobs {
			continue
		}
		if _, err := os.Stat(filepath.Join(n.root, "proc", strconv.FormatUint(uint64(pid), 10))); err != nil {
			continue
		}
		left[p] = pid
		s := before[p.Job][p.Step]
		if !s.ok && s.tried < tries {
			s.tried++
			env, err := n.patient(pid)
			s.env, s.ok = env, err == nil && env.JobID == p.Job
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				n.last.denied = err
			}
		}
		if !s.ok {
			s.env = environ{} // may belong to another job
		}
		if n.other[p.Job] == nil {
			n.other[p.Job] = nodeJob{}
		}
		n.other[p.Job][p.Step] = s
	}
	return n.other, left
}

// jobDirs returns the control groups of jobs below Slurm's root.
func (n *node) jobDirs(root string) []string {
	var out []string
	for _, pattern := range []string{"job_*", "uid_*/job_*"} {
		found, _ := filepath.Glob(filepath.Join(root, pattern))
		out = append(out, found...)
	}
	return out
}

// steps returns the steps of a job, reusing what was read before.
func (n *node) steps(job, path string, before nodeJob) nodeJob {
	out := nodeJob{}
	entries, err := os.ReadDir(path)
	if err != nil { // the job ended meanwhile
		return out
	}
	for _, e := range entries {
		step, ok := strings.CutPrefix(e.Name(), "step_")
		if !ok || !slurm.IsWord(step) {
			continue
		}
		if len(out) >= maxSteps {
			n.last.refused++
			continue
		}
		s := before[step]
		// The process that waits in the extern step does not have the job's environment.
		if (!s.ok || s.env.missing(step) > 0) && s.tried < tries && step != "extern" {
			s.tried++
			if env, ok := n.read(job, step, filepath.Join(path, e.Name())); ok {
				s.env, s.ok = env.with(s.env), true // a task may have ended
			}
		}
		out[step] = s
	}
	return out
}

// read returns the environment of the first process in a step that claims to belong to the
// job: a job started from within another may have inherited that job's environment. If that
// process does not name all GPUs of the step, those of the other processes are added.
func (n *node) read(job, step, path string) (found environ, ok bool) {
	var files []string
	for _, pattern := range []string{"cgroup.procs", "task_*/cgroup.procs", "user/cgroup.procs", "user/task_*/cgroup.procs"} {
		found, _ := filepath.Glob(filepath.Join(path, pattern))
		files = append(files, found...)
	}
	var pids []uint32
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for line := range bytes.Lines(b) {
			if pid, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 10, 32); err == nil && pid != 0 && len(pids) < maxPIDs {
				pids = append(pids, uint32(pid))
			}
		}
	}
	slices.Sort(pids) // the first is the one that Slurm started
	for _, pid := range pids {
		env, err := n.patient(pid)
		switch {
		case err == nil && env.JobID == job:
			n.last.denied = nil
			if !ok {
				found, ok = env, true
			}
			if found = found.with(env); found.missing(step) == 0 {
				return found, true
			}
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			n.last.denied = err
		}
	}
	return found, ok
}

var errSlow = errors.New("cannot read the environment of a process: the read hangs")

// patient reads an environment and gives up after patience.
func (n *node) patient(pid uint32) (environ, error) {
	select {
	case n.reading <- struct{}{}:
	default:
		return environ{}, errSlow
	}
	type result struct {
		env environ
		err error
	}
	done := make(chan result, 1)
	go func() {
		env, err := n.environ(pid)
		<-n.reading
		done <- result{env, err}
	}()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case r := <-done:
		return r.env, r.err
	case <-late.C:
		return environ{}, errSlow
	}
}

// job returns what the processes of a job say about it, the batch script first.
func (j nodeJob) job(id string) Job {
	out := Job{Job: slurm.Job{ID: id}}
	for _, step := range j.order() {
		out = out.or(j[step].env.job(id))
	}
	return out
}

// gpus returns the devices of a job according to its processes: those of the job from its
// script, else the union of its steps' devices. missing is how many more the job has at
// least.
func (j nodeJob) gpus() (index []int, shards uint64, missing int) {
	for _, step := range j.order() {
		s := j[step]
		list, ok := s.env.gpus(step)
		if !ok {
			continue
		}
		index = append(index, list...)
		n, _ := strconv.ParseUint(s.env.Shards, 10, 32) // absent means none
		shards = max(shards, n)
		missing = max(missing, s.env.missing(step))
		if !slurm.IsNumber(step) {
			break
		}
	}
	slices.Sort(index)
	return slices.Compact(index), shards, missing
}

// unnamed reports whether the job has more GPUs than its processes name.
func (j nodeJob) unnamed() bool {
	_, _, missing := j.gpus()
	return missing > 0
}

// order returns the steps of a job: batch, interactive, 0, 1, ...
func (j nodeJob) order() []string {
	return slices.SortedFunc(maps.Keys(j), func(a, b string) int {
		return cmp.Or(cmp.Compare(btoi(slurm.IsNumber(a)), btoi(slurm.IsNumber(b))), natural.Compare(a, b))
	})
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
