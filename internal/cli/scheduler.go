//go:build linux

package cli

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// schedulers are those whose numbers the agent can report.
var schedulers = []string{"slurm"}

// scheduler are the flags of the numbers of a whole cluster, which one agent of it reports.
type scheduler struct {
	kind       string
	accounting bool
	prometheus string
}

// schedulerFlags are refused with --config and with --once.
var schedulerFlags = []string{"scheduler", "slurm-accounting", "slurm-prometheus"}

func (s *scheduler) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.kind, "scheduler", "", "report the jobs and nodes of the whole cluster, as its scheduler has them: "+strings.Join(schedulers, ", ")+"; for one agent of a cluster")
	f.BoolVar(&s.accounting, "slurm-accounting", false, "with --scheduler slurm, send a log record of each job that ended")
	f.StringVar(&s.prometheus, "slurm-prometheus", "", "`URL` of a Prometheus-compatible API with the series of the agents, from which accounting takes what jobs used")
	_ = cmd.RegisterFlagCompletionFunc("scheduler", cobra.FixedCompletions(schedulers, cobra.ShellCompDirectiveNoFileComp))
}

// check refuses flags that would do nothing. logs says whether log records go anywhere.
func (s *scheduler) check(logs bool) error {
	switch {
	case s.kind != "" && !slices.Contains(schedulers, s.kind):
		return fmt.Errorf("--scheduler knows no %q, but %s", s.kind, strings.Join(schedulers, ", "))
	case s.kind == "" && s.accounting:
		return errors.New("--slurm-accounting needs --scheduler slurm")
	case !s.accounting && s.prometheus != "":
		return errors.New("--slurm-prometheus needs --slurm-accounting")
	case s.accounting && !logs:
		return errors.New("--slurm-accounting sends log records: say where to, with --otlp-endpoint or --otlp-file")
	}
	return nil
}

// settings returns the configuration of the scheduler receiver.
func (s *scheduler) settings(h *hardware, state string) map[string]any {
	if state != "" {
		state = filepath.Join(state, "accounting")
	}
	return map[string]any{"slurm": map[string]any{
		"rest":       map[string]any{"address": h.slurmREST, "token_file": h.slurmToken},
		"accounting": map[string]any{"enabled": s.accounting, "state_dir": state, "prometheus": s.prometheus},
	}}
}
