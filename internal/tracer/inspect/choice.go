//go:build linux

package inspect

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/workload"
)

// Choice selects processes. The zero value selects all; at most one field is set.
type Choice struct {
	PIDs []uint // on the host
	Pod  string // NAMESPACE/NAME
	Job  string // ID of a Slurm job, array or array task
}

// Takes reports whether a process is selected. w is its workload, nil if unknown.
func (c *Choice) Takes(pid uint32, w *workload.Workload) bool {
	switch {
	case len(c.PIDs) > 0:
		return slices.Contains(c.PIDs, uint(pid))
	case c.Pod != "":
		return w != nil && w.Attributes["k8s.namespace.name"]+"/"+w.Attributes["k8s.pod.name"] == c.Pod
	case c.Job != "":
		if w == nil {
			return false
		}
		a := w.Attributes
		return a["slurm.job.id"] == c.Job || a["slurm.array.job.id"] == c.Job ||
			a["slurm.array.job.id"] != "" && a["slurm.array.job.id"]+"_"+a["slurm.array.task.id"] == c.Job
	}
	return true
}

// String implements fmt.Stringer.
func (c *Choice) String() string {
	switch {
	case len(c.PIDs) > 0:
		return fmt.Sprintf("process %s", strings.Trim(strings.ReplaceAll(fmt.Sprint(c.PIDs), " ", ", "), "[]"))
	case c.Pod != "":
		return "pod " + c.Pod
	case c.Job != "":
		return "job " + c.Job
	}
	return "CUDA"
}
