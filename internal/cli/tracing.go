//go:build linux

package cli

import (
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
)

// tracing is the flag of the agent that traces CUDA and NCCL.
type tracing struct{ trace bool }

// tracingFlags are refused with --config and with --once.
var tracingFlags = []string{"trace"}

func (t *tracing) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&t.trace, "trace", false, "trace what processes ask of CUDA and NCCL, with eBPF: needs CAP_BPF and CAP_PERFMON, and CAP_SYS_PTRACE for processes of others")
}

// anomalyFile returns where an agent keeps the anomalies for gpumeter explain, empty if
// there is no state folder.
func anomalyFile(state string) string {
	if state == "" {
		return ""
	}
	return filepath.Join(state, "anomalies.jsonl")
}

// settings returns the configuration of the cuda receiver. It reads at ticks, and not more
// often than once a second.
func (*tracing) settings(interval time.Duration, root, state string) map[string]any {
	return map[string]any{
		"interval": max(interval, time.Second).String(), "proc": filepath.Join("/", root, "proc"), "anomaly_file": anomalyFile(state),
	}
}
