//go:build linux

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/gpumeter/gpumeter/internal/check"
	"github.com/gpumeter/gpumeter/internal/check/worker"
	"github.com/gpumeter/gpumeter/internal/cli/render"
	"github.com/gpumeter/gpumeter/internal/local"
)

// exitError makes the process exit with code, after printing err on one line if it is set.
type exitError struct {
	code int
	err  error
}

func (e exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e exitError) Unwrap() error { return e.err }

// exitUsage is UNKNOWN in the Nagios convention, which plugins return for wrong arguments.
const exitUsage = 3

var (
	checkExits = []string{"nagios", "slurm", "npd"}
	profiles   = []string{check.Prolog, check.Epilog, check.Periodic}
)

// checkFlags holds the flags of gpumeter check.
type checkFlags struct {
	hardware
	profile       string
	only, without []string
	list          bool
	timeout       time.Duration
	window        time.Duration
	manifest      string
	writeManifest string
	expect        int
	output        string
	exit          string
	worker        bool
}

func newCheck() *cobra.Command {
	c := &checkFlags{}
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check whether this node is fit for work: devices, links, disks, clocks, kernel log",
		Long: `Check whether this node is fit for work. Checks are read-only: nothing is cleared, reset
or started. Each check has a time limit, and so does the whole run: a hung driver or file
server cannot block the caller.

Exit codes, by --exit:
  nagios   0 ok, 1 warning, 2 critical, 3 unknown (for people and Nagios)
  slurm    0, or 1 if something is critical: a warning does not drain the node
  npd      0 ok, 1 a problem (critical), 2 unknown (Kubernetes node-problem-detector)`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := noArgs(cmd, args); err != nil {
				return exitError{exitUsage, err}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.prepare(cmd); err != nil {
				return exitError{exitUsage, err}
			}
			switch {
			case c.list:
				return render.CheckList(os.Stdout)
			case c.worker:
				return c.work(cmd.Context())
			case c.writeManifest != "":
				return c.record(cmd.Context())
			}
			return c.run(cmd.Context())
		},
	}
	c.register(cmd)
	f := cmd.Flags()
	f.StringVar(&c.profile, "profile", check.Periodic, "when the checks run: "+strings.Join(profiles, ", "))
	f.StringSliceVar(&c.only, "only", nil, "`IDS` of the checks to run; a prefix such as gpu. selects every check that starts with it")
	f.StringSliceVar(&c.without, "skip", nil, "`IDS` of the checks to skip")
	f.BoolVar(&c.list, "list", false, "list the checks and exit")
	f.DurationVar(&c.timeout, "timeout", 20*time.Second, "time limit of the whole run, 1s to 10m")
	f.DurationVar(&c.window, "window", 15*time.Minute, "how far back to read the kernel log")
	f.StringVar(&c.manifest, "manifest", "", "`FILE` with the expected hardware")
	f.StringVar(&c.writeManifest, "write-manifest", "", "write the hardware found to `FILE` and exit; - is standard output")
	f.IntVar(&c.expect, "expect", 0, "expected number of devices (default: from the manifest)")
	f.StringVarP(&c.output, "output", "o", "", strings.Join(render.CheckFormats(), ", ")+" (default: table; line in prolog and epilog)")
	f.StringVar(&c.exit, "exit", "", "exit code convention: "+strings.Join(checkExits, ", ")+" (default: by profile and output)")
	f.BoolVar(&c.worker, "worker", false, "")
	_ = f.MarkHidden("worker")
	for flag, values := range map[string][]string{"profile": profiles, "output": render.CheckFormats(), "exit": checkExits} {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	for _, flag := range workloadFlags {
		_ = f.MarkHidden(flag)
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return exitError{exitUsage, fmt.Errorf("%w: see %s --help", err, cmd.CommandPath())}
	})
	return cmd
}

// prepare rejects invalid flags and sets the defaults that depend on other flags.
func (c *checkFlags) prepare(cmd *cobra.Command) error {
	for _, flag := range workloadFlags {
		if cmd.Flags().Changed(flag) {
			return fmt.Errorf("--%s has no effect here: check does not look up workloads", flag)
		}
	}
	if _, err := check.Select(c.profile, c.only, c.without); err != nil {
		return err
	}
	job := c.profile == check.Prolog || c.profile == check.Epilog
	if c.output == "" {
		c.output = "table"
		if job {
			c.output = "line"
		}
	}
	if c.exit == "" {
		switch {
		case c.output == "npd":
			c.exit = "npd"
		case job && c.output != "nagios":
			c.exit = "slurm"
		default:
			c.exit = "nagios"
		}
	}
	switch {
	case !slices.Contains(render.CheckFormats(), c.output):
		return fmt.Errorf("unknown --output %q, must be one of %s", c.output, strings.Join(render.CheckFormats(), ", "))
	case !slices.Contains(checkExits, c.exit):
		return fmt.Errorf("unknown --exit %q, must be one of %s", c.exit, strings.Join(checkExits, ", "))
	case c.timeout < time.Second || c.timeout > 10*time.Minute:
		return fmt.Errorf("--timeout must be between 1s and 10m, is %s", c.timeout)
	case c.window <= 0:
		return fmt.Errorf("--window must be above 0, is %s", c.window)
	case c.expect < 0:
		return fmt.Errorf("--expect must not be below 0, is %d", c.expect)
	}
	return c.local().Validate()
}

func (c *checkFlags) local() local.Config {
	cfg := c.config()
	// A device gets only part of the timeout, so that a hang can still be reported.
	cfg.Interval = min(5*time.Second, c.timeout/4)
	cfg.NoPCIeThroughput = true // 40 ms per device
	cfg.Workloads = local.Workloads{Off: true}
	return cfg
}

// options returns the options of the worker.
func (c *checkFlags) options() worker.Options {
	return worker.Options{
		Profile: c.profile, Only: c.only, Skip: c.without, Timeout: c.timeout, Window: c.window, Manifest: c.manifest, Expect: c.expect,
		JobGPUs: os.Getenv("SLURM_JOB_GPUS"), Local: c.local(),
	}
}

// run prints the results of the checks. A status other than ok becomes an exitError.
func (c *checkFlags) run(ctx context.Context) error {
	r, err := worker.Run(ctx, c.options(), os.Args[1:])
	if err != nil {
		return exitError{exitCode(c.exit, check.Unknown), errors.New("it was ended before its checks were")}
	}
	if err := render.Checks(os.Stdout, c.output, r); err != nil {
		return exitError{exitUsage, err}
	}
	if code := exitCode(c.exit, r.Status); code != 0 {
		return exitError{code: code}
	}
	return nil
}

// work runs the checks in the process that run starts, and writes the report as JSON.
func (c *checkFlags) work(ctx context.Context) error {
	r, err := worker.Work(ctx, c.options())
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// record writes the manifest of the hardware found on this machine.
func (c *checkFlags) record(ctx context.Context) error {
	m, err := worker.Observe(ctx, c.options())
	if err != nil {
		return exitError{exitUsage, err}
	}
	var b bytes.Buffer
	fmt.Fprintln(&b, "# Hardware found by gpumeter check --write-manifest. Remove what may differ.")
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(m); err != nil {
		return err
	}
	if c.writeManifest == "-" {
		_, err = os.Stdout.Write(b.Bytes())
		return err
	}
	return os.WriteFile(c.writeManifest, b.Bytes(), 0o644)
}

// exitCode returns the exit code for a status in the caller's convention.
func exitCode(convention string, s check.Status) int {
	switch convention {
	case "slurm": // which drains the node on any nonzero code
		if s == check.Critical {
			return 1
		}
		return 0
	case "npd":
		switch s {
		case check.Critical:
			return 1
		case check.Unknown:
			return 2
		}
		return 0
	}
	switch s {
	case check.Warning:
		return 1
	case check.Critical:
		return 2
	case check.Unknown:
		return 3
	}
	return 0
}
