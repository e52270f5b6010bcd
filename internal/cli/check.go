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

// exitError ends the process with a code of its own, after one line of err if there is one.
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

// exitUsage is Nagios' word for a plugin that was called wrongly, and unknown to others.
const exitUsage = 3

var (
	checkExits = []string{"nagios", "slurm", "npd"}
	profiles   = []string{check.Prolog, check.Epilog, check.Periodic}
)

// checkFlags are the flags of check.
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
		Short: "Say whether this node may take work: devices, links, disks, clocks, kernel log",
		Long: `Say whether this node may take work. Checks only read: nothing is cleared, reset or
started. Each has a time limit, and so has the whole: a driver or a file server that hangs
cannot keep the caller.

Exit codes, by --exit:
  nagios   0 ok, 1 warning, 2 critical, 3 unknown (for people and Nagios)
  slurm    0, or 1 if something is critical: a warning drains no node
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
	f.StringVar(&c.profile, "profile", check.Periodic, "the occasion: "+strings.Join(profiles, ", "))
	f.StringSliceVar(&c.only, "only", nil, "`IDS` of the checks to run; gpu. means all that begin so")
	f.StringSliceVar(&c.without, "skip", nil, "`IDS` of checks to leave out")
	f.BoolVar(&c.list, "list", false, "list the checks and end")
	f.DurationVar(&c.timeout, "timeout", 20*time.Second, "the longest that it may take, 1s to 10m")
	f.DurationVar(&c.window, "window", 15*time.Minute, "how far back the kernel's log counts")
	f.StringVar(&c.manifest, "manifest", "", "`FILE` with the hardware that there should be")
	f.StringVar(&c.writeManifest, "write-manifest", "", "write the hardware that there is to `FILE`, - is standard output, and end")
	f.IntVar(&c.expect, "expect", 0, "how many devices there should be (default: what the manifest says)")
	f.StringVarP(&c.output, "output", "o", "", strings.Join(render.CheckFormats(), ", ")+" (default: table; in prolog and epilog line)")
	f.StringVar(&c.exit, "exit", "", "meaning of the exit code: "+strings.Join(checkExits, ", ")+" (default: by profile and output)")
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

// prepare refuses what cannot be meant, and fills in what follows from the rest.
func (c *checkFlags) prepare(cmd *cobra.Command) error {
	for _, flag := range workloadFlags {
		if cmd.Flags().Changed(flag) {
			return fmt.Errorf("--%s has no effect here: check does not ask whose the work is", flag)
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
		return fmt.Errorf("unknown --output %q, known are %s", c.output, strings.Join(render.CheckFormats(), ", "))
	case !slices.Contains(checkExits, c.exit):
		return fmt.Errorf("unknown --exit %q, known are %s", c.exit, strings.Join(checkExits, ", "))
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
	// A device has a part of the time only, so that what hangs can still be told.
	cfg.Interval = min(5*time.Second, c.timeout/4)
	cfg.NoPCIeThroughput = true // 40 ms a device
	cfg.Workloads = local.Workloads{Off: true}
	return cfg
}

// options returns what is checked.
func (c *checkFlags) options() worker.Options {
	return worker.Options{
		Profile: c.profile, Only: c.only, Skip: c.without, Timeout: c.timeout, Window: c.window, Manifest: c.manifest, Expect: c.expect,
		JobGPUs: os.Getenv("SLURM_JOB_GPUS"), Local: c.local(),
	}
}

// run prints what the checks found, and ends with the code that says so.
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

// work writes a report as JSON: it is the process that run starts.
func (c *checkFlags) work(ctx context.Context) error {
	r, err := worker.Work(ctx, c.options())
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// record writes the manifest of this machine.
func (c *checkFlags) record(ctx context.Context) error {
	m, err := worker.Observe(ctx, c.options())
	if err != nil {
		return exitError{exitUsage, err}
	}
	var b bytes.Buffer
	fmt.Fprintln(&b, "# What this machine had when gpumeter check --write-manifest ran. Take out what may differ.")
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

// exitCode is the meaning of a status to a caller.
func exitCode(convention string, s check.Status) int {
	switch convention {
	case "slurm": // which takes a node out of service for any other than 0
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
