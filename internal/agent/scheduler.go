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
func Schedulers() []string { return []string{"slurm"} }

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
	case s.Kind == "" && s.Accounting:
		return errors.New("--slurm-accounting needs --scheduler slurm")
	case !s.Accounting && s.Prometheus != "":
		return errors.New("--slurm-prometheus needs --slurm-accounting")
	case s.Accounting && !logs:
		return errors.New("--slurm-accounting sends log records: set --otlp-endpoint or --otlp-file")
	}
	return nil
}

// settings returns the configuration of the scheduler receiver.
func (s *Scheduler) settings(slurm local.Slurm, state string) map[string]any {
	if state != "" {
		state = filepath.Join(state, "accounting")
	}
	return map[string]any{"slurm": map[string]any{
		"rest":       map[string]any{"address": slurm.REST, "token_file": slurm.RESTToken},
		"accounting": map[string]any{"enabled": s.Accounting, "state_dir": state, "prometheus": s.Prometheus},
	}}
}
