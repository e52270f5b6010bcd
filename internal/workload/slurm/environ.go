package slurm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

const (
	maxEnviron = 1 << 20 // maximum bytes read from /proc/PID/environ; Slurm's variables may be at the end
	maxValue   = 1024    // maximum bytes kept of a variable: longer than any name in Slurm
)

// environ is what is kept of a process's environment. Everything else may be a secret and
// is discarded at once.
type environ struct {
	JobID, StepID             string
	StepGPUs, JobGPUs         string
	ArrayJobID, ArrayTaskID   string
	User, Account, Partition  string
	Name, QOS, Cluster, HetID string
	Shards                    string
	GPUsOnNode                string // how many GPUs the step has on its node
}

// field returns where the value of a variable is kept, or nil if it is not.
func (e *environ) field(name []byte) *string {
	switch string(name) { // does not allocate
	case "SLURM_JOB_ID":
		return &e.JobID
	case "SLURM_STEP_ID":
		return &e.StepID
	case "SLURM_STEP_GPUS":
		return &e.StepGPUs
	case "SLURM_JOB_GPUS":
		return &e.JobGPUs
	case "SLURM_ARRAY_JOB_ID":
		return &e.ArrayJobID
	case "SLURM_ARRAY_TASK_ID":
		return &e.ArrayTaskID
	case "SLURM_JOB_USER":
		return &e.User
	case "SLURM_JOB_ACCOUNT":
		return &e.Account
	case "SLURM_JOB_PARTITION":
		return &e.Partition
	case "SLURM_JOB_NAME":
		return &e.Name
	case "SLURM_JOB_QOS":
		return &e.QOS
	case "SLURM_CLUSTER_NAME":
		return &e.Cluster
	case "SLURM_HET_JOB_ID":
		return &e.HetID
	case "SLURM_SHARDS_ON_NODE":
		return &e.Shards
	case "SLURM_GPUS_ON_NODE":
		return &e.GPUsOnNode
	}
	return nil
}

// parseEnviron parses NUL-terminated variables. Values may contain any other byte,
// including = and line breaks. The first of two variables with the same name counts, as
// with getenv(3).
func parseEnviron(b []byte) environ {
	var e, seen environ
	for len(b) > 0 {
		var one []byte
		one, b, _ = bytes.Cut(b, []byte{0})
		name, value, ok := bytes.Cut(one, []byte("="))
		if !ok {
			continue
		}
		keep := e.field(name)
		if keep == nil || *seen.field(name) != "" {
			continue
		}
		*seen.field(name) = "seen"
		*keep = slurm.Text(string(value[:min(len(value), maxValue)]))
	}
	return e
}

// readEnviron reads the selected variables of a process. The error is fs.ErrNotExist if the
// process has exited, and never contains a byte of the environment.
func readEnviron(proc string, pid uint32) (environ, error) {
	f, err := os.Open(filepath.Join(proc, strconv.FormatUint(uint64(pid), 10), "environ"))
	if err != nil {
		return environ{}, fmt.Errorf("process %d: %w", pid, err)
	}
	defer f.Close()
	buf := make([]byte, 16<<10)
	defer func() { clear(buf) }() // keep it out of core dumps
	n := 0
	for {
		if n == len(buf) {
			if n >= maxEnviron {
				break
			}
			more := make([]byte, 2*n)
			copy(more, buf)
			clear(buf)
			buf = more
		}
		m, err := f.Read(buf[n:])
		n += m
		if errors.Is(err, io.EOF) || err == nil && m == 0 {
			break
		}
		if errors.Is(err, syscall.ESRCH) { // exited meanwhile
			return environ{}, fmt.Errorf("process %d: %w", pid, fs.ErrNotExist)
		}
		if err != nil {
			return environ{}, fmt.Errorf("process %d: %w", pid, err)
		}
	}
	return parseEnviron(buf[:n]), nil
}

// gpus returns the devices allocated to a process in a step, by their position in
// gres.conf. SLURM_JOB_GPUS is trusted only for the batch script, the interactive step and
// the job as a whole: a step without GPUs inherits it from the script, and a step on
// another node inherits that of the script's node, where the numbers refer to other
// devices.
func (e environ) gpus(step string) ([]int, bool) {
	list := e.StepGPUs
	if list == "" && !slurm.IsNumber(step) {
		list = e.JobGPUs
	}
	if list == "" {
		return nil, false
	}
	out, err := slurm.ParseRanges(list)
	return out, err == nil && len(out) > 0
}

// missing returns how many of the step's GPUs on this node the environment does not name. A
// task that is bound to its own GPU (--gpus-per-task, --gpu-bind) is told about one GPU only,
// and with ConstrainDevices each task is told about the same one, the step's first. Measured
// on 22.05 and 26.05.
func (e environ) missing(step string) int {
	list, ok := e.gpus(step)
	n, err := strconv.ParseUint(e.GPUsOnNode, 10, 16)
	if !ok || err != nil {
		return 0
	}
	return max(0, int(n)-len(list))
}

// with returns e with the GPUs of another task of the same step added.
func (e environ) with(task environ) environ {
	if task.JobID != e.JobID || task.StepID != e.StepID || task.StepGPUs == "" {
		return e
	}
	list, err := slurm.ParseRanges(e.StepGPUs + "," + task.StepGPUs)
	if err != nil {
		return e
	}
	slices.Sort(list)
	var names []string
	for _, i := range slices.Compact(list) {
		names = append(names, strconv.Itoa(i))
	}
	e.StepGPUs = strings.Join(names, ",")
	return e
}
