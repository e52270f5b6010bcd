//go:build linux

package agent

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/local"
)

// Schedulers returns the values of Scheduler.Kind.
func Schedulers() []string { return []string{"slurm", "kubernetes"} }

// Scheduler configures what one agent reports about the whole cluster.
type Scheduler struct {
	Kind       string // one of Schedulers; empty: nothing
	Accounting bool   // send a log record for each finished job
	Prometheus string // URL of an API with the agents' series, the source of job usage
}

// check rejects flags that would have no effect. logs reports whether log records are exported.
func (s *Scheduler) check(logs bool) error {
	switch {
	case s.Kind != "" && !slices.Contains(Schedulers(), s.Kind):
		return fmt.Errorf("unknown --scheduler %q, must be one of %s", s.Kind, strings.Join(Schedulers(), ", "))
	case s.Kind != "slurm" && s.Accounting:
		return errors.New("--slurm-accounting needs --scheduler slurm")
	case !s.Accounting && s.Prometheus != "":
		return errors.New("--slurm-prometheus needs --slurm-accounting")
	case s.Accounting && !logs:
		return errors.New("--slurm-accounting sends log records: set --otlp-endpoint or --otlp-file")
	}
	return nil
}

// settings returns the configuration of the scheduler receiver. cluster is the name of the cluster, empty if it is
// not known.
func (s *Scheduler) settings(w local.Workloads, cluster, state string) map[string]any {
	if s.Kind == "kubernetes" {
		return map[string]any{"scheduler": s.Kind, "kubernetes": map[string]any{
			"cluster": cluster, "kubeconfig": w.Kubeconfig, "team_label": w.TeamLabel,
		}}
	}
	if state != "" {
		state = filepath.Join(state, "accounting")
	}
	return map[string]any{"scheduler": s.Kind, "slurm": map[string]any{
		"rest":       map[string]any{"address": w.Slurm.REST, "token_file": w.Slurm.RESTToken},
		"accounting": map[string]any{"enabled": s.Accounting, "state_dir": state, "prometheus": s.Prometheus},
	}}
}

// firstWork returns the configuration of the receiver of what this machine sees of the jobs on it.
func (a *Agent) firstWork(cluster string) map[string]any {
	state := ""
	if c := a.DeviceConfig(); a.StateDir != "" && c.Simulate == "" && c.Sim == nil { // a simulated node keeps no state
		state = filepath.Join(a.StateDir, "work")
	}
	return map[string]any{"scheduler": "node", "node": map[string]any{"cluster": cluster, "state_dir": state}}
}
