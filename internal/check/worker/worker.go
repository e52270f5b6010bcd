//go:build linux

// Package worker runs the checks of a node in a separate process, so that a hung driver or file
// server cannot block the caller. Fork starts the process, Work is its body.
package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"github.com/gpumeter/gpumeter/internal/check"
	"github.com/gpumeter/gpumeter/internal/local"
)

// Options configures a run of checks.
type Options struct {
	Profile    string // when the checks run: check.Prolog, check.Epilog or check.Periodic
	Only, Skip []string
	Timeout    time.Duration // of the whole run
	Window     time.Duration // how far back to read the kernel log
	Manifest   string        // file with the expected hardware; empty: none
	Expect     int           // expected number of devices; 0: from the manifest
	JobGPUs    string        // SLURM_JOB_GPUS of the job, in its prolog and epilog
	Local      local.Config
}

// Report is the result of a run of checks.
type Report struct {
	Host      string         `json:"host"`
	Time      time.Time      `json:"time"`
	Simulated bool           `json:"simulated,omitempty"`
	Profile   string         `json:"profile"`
	Status    check.Status   `json:"status"`
	Seconds   float64        `json:"seconds"`
	Results   []check.Result `json:"checks"`
}

// Work runs the checks in this process.
func Work(ctx context.Context, o Options) (Report, error) {
	list, err := check.Select(o.Profile, o.Only, o.Skip)
	if err != nil {
		return Report{}, err
	}
	r := Report{Host: o.Local.Host, Time: time.Now().UTC(), Simulated: o.Local.Simulate != "", Profile: o.Profile}
	if r.Host == "" {
		r.Host, _ = os.Hostname() // best effort: the host stays empty
	}
	r.Results = check.Run(ctx, o.env(), list, o.Timeout-min(Grace, o.Timeout/5))
	r.Status = check.Worst(r.Results)
	r.Seconds = time.Since(r.Time).Round(time.Millisecond).Seconds()
	return r, ctx.Err()
}

// Observe returns a manifest of the hardware found on this machine.
func Observe(ctx context.Context, o Options) (check.Manifest, error) {
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	env := o.env()
	env.Mine = nil
	return check.Observe(ctx, env)
}

// Grace is the part of the timeout reserved for starting the process and writing the report.
const Grace = time.Second

// Run runs the checks with Fork. A failure or a timeout becomes a result. The error is non-nil
// only if ctx was canceled.
func Run(ctx context.Context, o Options, args []string) (Report, error) {
	begin := time.Now()
	r, err := Fork(ctx, o.Timeout, args)
	if ctx.Err() != nil { // an interrupted run must not look successful
		return Report{}, ctx.Err()
	}
	if err != nil {
		r = Report{Host: o.Local.Host, Time: begin.UTC(), Profile: o.Profile, Seconds: time.Since(begin).Round(time.Millisecond).Seconds()}
		res := check.Result{ID: "check", Status: check.Unknown, Reason: err.Error(), Seconds: r.Seconds, Action: "Run gpumeter doctor for details."}
		if errors.Is(err, context.DeadlineExceeded) {
			res.Status, res.Reason = check.Critical, fmt.Sprintf("no result from the checks within %s: a driver or a disk hangs", o.Timeout)
		}
		r.Results, r.Status = []check.Result{res}, res.Status
	}
	return r, nil
}

// Fork runs this program with args and --worker, which must make it write the report of Work
// as JSON to standard output, and returns that report. It does not wait for the process to
// exit: a thread in uninterruptible sleep in a driver keeps the process, and anyone waiting for
// it, until the driver returns. The process inherits none of our open files, because callers
// also wait for those to be closed.
func Fork(ctx context.Context, timeout time.Duration, args []string) (r Report, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	in, out, err := os.Pipe()
	if err != nil {
		return r, err
	}
	defer in.Close()
	cmd := exec.Command("/proc/self/exe", append(slices.Clone(args), "--worker")...) //nolint:noctx // the process is not waited for
	cmd.Stdout = out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Start()
	out.Close()
	if err != nil {
		return r, fmt.Errorf("cannot start the checks: %w", err)
	}
	defer cmd.Process.Kill() //nolint:errcheck // the process has exited, or hangs and is not waited for
	end, _ := ctx.Deadline()
	_ = in.SetReadDeadline(end) // pipes support deadlines
	stop := context.AfterFunc(ctx, func() { _ = in.SetReadDeadline(time.Now()) })
	defer stop()
	if err := json.NewDecoder(in).Decode(&r); err != nil {
		if ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded) {
			return r, context.DeadlineExceeded
		}
		return r, fmt.Errorf("the checks exited without a result (%w): a driver library may have crashed", err)
	}
	return r, nil
}
