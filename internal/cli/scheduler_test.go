//go:build linux

package cli_test

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/gpumeter/gpumeter/internal/await"
)

// A flag of the scheduler that does nothing, or a receiver that is in no pipeline.
func TestSchedulerFlags(t *testing.T) {
	t.Parallel()
	refused := func(want string, args ...string) {
		t.Helper()
		if r := run(t, append([]string{"agent"}, args...)...); r.code != 1 || !strings.Contains(r.stderr, want) || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%v ends with %d: %s, want %s", args, r.code, r.stderr, want)
		}
	}
	missing := filepath.Join(t.TempDir(), "no.yaml")
	refused(`unknown --scheduler "pbs", must be one of slurm, kubernetes`, "--scheduler", "pbs")
	refused("--slurm-accounting needs --scheduler slurm", "--slurm-accounting", "--otlp-file", "-")
	refused("--slurm-accounting needs --scheduler slurm", "--scheduler", "kubernetes", "--slurm-accounting", "--otlp-file", "-")
	refused("--slurm-prometheus needs --slurm-accounting", "--scheduler", "slurm", "--slurm-prometheus", "http://p:9090")
	refused("set --otlp-endpoint or --otlp-file", "--scheduler", "slurm", "--slurm-accounting")
	refused("--scheduler has no effect with --config", "--config", missing, "--scheduler", "slurm")
	refused("--scheduler has no effect with --once", "--once", "--scheduler", "slurm")

	type config struct {
		Receivers map[string]struct {
			Scheduler  string            `yaml:"scheduler"`
			Kubernetes map[string]string `yaml:"kubernetes"`
			Slurm      struct {
				REST       map[string]string `yaml:"rest"`
				Accounting map[string]any    `yaml:"accounting"`
			} `yaml:"slurm"`
		} `yaml:"receivers"`
		Service struct {
			Pipelines map[string]struct{ Receivers []string }
		} `yaml:"service"`
	}
	printed := func(args ...string) (c config) {
		t.Helper()
		out, err := command(t.Context(), nil, append([]string{"agent", "--print-config", "--state-dir", "/s"}, args...)...).Output()
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(out, &c); err != nil {
			t.Fatal(err)
		}
		return c
	}
	in := func(c config, signal string) bool {
		return slices.Contains(c.Service.Pipelines[signal].Receivers, "scheduler")
	}
	if c := printed(); in(c, "metrics") || c.Receivers["scheduler"].Slurm.REST != nil {
		t.Error("every agent of the cluster would ask the controller")
	}
	if c := printed("--scheduler", "slurm"); !in(c, "metrics") || in(c, "logs") || c.Receivers["scheduler"].Slurm.Accounting["enabled"] != false {
		t.Errorf("%+v", c)
	}
	k := printed("--scheduler", "kubernetes", "--kubeconfig", "/k", "--team-label", "team", "--cluster", "prod", "--otlp-endpoint", "http://localhost:1")
	want := map[string]string{"kubeconfig": "/k", "team_label": "team", "cluster": "prod"}
	if got := k.Receivers["scheduler"]; !in(k, "metrics") || !in(k, "logs") || got.Scheduler != "kubernetes" || !cmp.Equal(want, got.Kubernetes) {
		t.Errorf("%+v", k)
	}
	c := printed("--scheduler", "slurm", "--slurm-accounting", "--slurm-prometheus", "http://p:9090", "--slurm-rest", "http://ctl:6820", "--slurm-token", "/t", "--otlp-endpoint", "http://localhost:1")
	s := c.Receivers["scheduler"].Slurm
	if !in(c, "metrics") || !in(c, "logs") || s.REST["address"] != "http://ctl:6820" || s.REST["token_file"] != "/t" ||
		s.Accounting["enabled"] != true || s.Accounting["prometheus"] != "http://p:9090" || s.Accounting["state_dir"] != "/s/accounting" {
		t.Errorf("%+v", c)
	}
}

// An agent that cannot find Slurm says it once, shows it, and measures all the same.
func TestSchedulerAway(t *testing.T) {
	t.Parallel()
	a := startConfig(t, `
receivers: {gpu: , scheduler: {slurm: {cluster: c, interval: 1s, tools: `+t.TempDir()+`}}}
extensions: {gpu: {simulate: h200, interval: 250ms, state_dir: ""}}
exporters: {page: {endpoint: "localhost:0"}}
service: {extensions: [gpu], pipelines: {metrics: {receivers: [gpu, scheduler], exporters: [page]}}}
`)
	await.NoError(t, func() error {
		text, err := a.get("/metrics", "")
		if err == nil && (!strings.Contains(text, `slurm_up{slurm_cluster="c"} 0`) || !strings.Contains(text, "\ngpu_utilization_ratio{") || strings.Contains(text, "slurm_job_count")) {
			err = errors.New("the page has no devices, or not that Slurm is away")
		}
		return err
	})
	time.Sleep(2500 * time.Millisecond)
	if n := a.count("Some requests to Slurm failed"); n != 1 {
		t.Errorf("said %d times that Slurm is away", n)
	}
	a.stop()
}
