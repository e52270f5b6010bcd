//go:build linux

package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/workload"
)

// choice says which processes are looked at.
type choice struct {
	pids []uint
	pod  string
	job  string
}

func (c *choice) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.UintSliceVar(&c.pids, "pid", nil, "`PID` of a process, on the host; may be repeated (default: all that use CUDA)")
	f.Lookup("pid").DefValue = "" // or the help adds that the default is []
	f.StringVar(&c.pod, "pod", "", "processes of this pod, as `NAMESPACE/NAME`")
	f.StringVar(&c.job, "job", "", "processes of the Slurm job of this `ID`")
}

func (c *choice) check() error {
	if c.pod != "" {
		namespace, name, ok := strings.Cut(c.pod, "/")
		if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
			return fmt.Errorf("--pod must be NAMESPACE/NAME, is %q", c.pod)
		}
	}
	if given := oneIf(len(c.pids) > 0) + oneIf(c.pod != "") + oneIf(c.job != ""); given > 1 {
		return fmt.Errorf("--pid, --pod and --job are one choice: give one of them, not %d", given)
	}
	return nil
}

// takes reports whether a process is looked at. w is whose it is, nil if nobody knows.
func (c *choice) takes(pid uint32, w *workload.Workload) bool {
	switch {
	case len(c.pids) > 0:
		return slices.Contains(c.pids, uint(pid))
	case c.pod != "":
		return w != nil && w.Attributes["k8s.namespace.name"]+"/"+w.Attributes["k8s.pod.name"] == c.pod
	case c.job != "":
		if w == nil {
			return false
		}
		a := w.Attributes
		return a["slurm.job.id"] == c.job || a["slurm.array.job.id"] == c.job ||
			a["slurm.array.job.id"] != "" && a["slurm.array.job.id"]+"_"+a["slurm.array.task.id"] == c.job
	}
	return true
}

func (c *choice) String() string {
	switch {
	case len(c.pids) > 0:
		return fmt.Sprintf("process %s", strings.Trim(strings.ReplaceAll(fmt.Sprint(c.pids), " ", ", "), "[]"))
	case c.pod != "":
		return "pod " + c.pod
	case c.job != "":
		return "job " + c.job
	}
	return "CUDA"
}

func oneIf(b bool) int {
	if b {
		return 1
	}
	return 0
}

// workloadOf returns the workload that has these attributes, nil if there are none.
func workloadOf(attributes map[string]string) *workload.Workload {
	if len(attributes) == 0 {
		return nil
	}
	return &workload.Workload{Attributes: attributes}
}
