//go:build linux

// Package worker runs the checks of a node in a process of their own, so that a driver or a
// file server that hangs cannot keep the caller. Fork is the caller's side, Work what the
// process does.
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

// Options say what is checked.
type Options struct {
	Profile    string // the occasion: check.Prolog, check.Epilog or check.Periodic
	Only, Skip []string
	Timeout    time.Duration // of the whole
	Window     time.Duration // how far back the kernel's log counts
	Manifest   string        // file with the hardware that there should be; empty: none
	Expect     int           // how many devices there should be; 0: what the manifest says
	JobGPUs    string        // SLURM_JOB_GPUS of the job, in its prolog and epilog
	Local      local.Config
}

// Report is everything that a run of checks found.
type Report struct {
	Host      string         `json:"host"`
	Time      time.Time      `json:"time"`
	Simulated bool           `json:"simulated,omitempty"`
	Profile   string         `json:"profile"`
	Status    check.Status   `json:"status"`
	Seconds   float64        `json:"seconds"`
	Results   []check.Result `json:"checks"`
}

// Work runs the checks.
func Work(ctx context.Context, o Options) (Report, error) {
	list, err := check.Select(o.Profile, o.Only, o.Skip)
	if err != nil {
		return Report{}, err
	}
	r := Report{Host: o.Local.Host, Time: time.Now().UTC(), Simulated: o.Local.Simulate != "", Profile: o.Profile}
	if r.Host == "" {
		r.Host, _ = os.Hostname() // empty is a name like any other
	}
	r.Results = check.Run(ctx, o.env(), list, o.Timeout-min(Grace, o.Timeout/5))
	r.Status = check.Worst(r.Results)
	r.Seconds = time.Since(r.Time).Round(time.Millisecond).Seconds()
	return r, ctx.Err()
}

// Observe returns the manifest of this machine.
func Observe(ctx context.Context, o Options) (check.Manifest, error) {
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	env := o.env()
	env.Mine = nil
	return check.Observe(ctx, env)
}

// Grace is the part of the time that a process has to start and to write.
const Grace = time.Second

// Run has the checks run by Fork. That they failed, or said nothing in time, is a result,
// too. The error is that ctx ended.
func Run(ctx context.Context, o Options, args []string) (Report, error) {
	begin := time.Now()
	r, err := Fork(ctx, o.Timeout, args)
	if ctx.Err() != nil { // which must not look as if all were fine
		return Report{}, ctx.Err()
	}
	if err != nil {
		r = Report{Host: o.Local.Host, Time: begin.UTC(), Profile: o.Profile, Seconds: time.Since(begin).Round(time.Millisecond).Seconds()}
		res := check.Result{ID: "check", Status: check.Unknown, Reason: err.Error(), Seconds: r.Seconds, Action: "gpumeter doctor may say more."}
		if errors.Is(err, context.DeadlineExceeded) {
			res.Status, res.Reason = check.Critical, fmt.Sprintf("the checks have said nothing for %s: a driver or a disk hangs", o.Timeout)
		}
		r.Results, r.Status = []check.Result{res}, res.Status
	}
	return r, nil
}

// Fork runs this program with args and --worker, which must make it write the result of
// Work as JSON to standard output, and returns that report. It does not wait for the end of
// the process: a thread that sleeps in a driver keeps its process, and whoever waits for
// that, until the driver lets go. The process has none of our files open, which callers
// wait for, too.
func Fork(ctx context.Context, timeout time.Duration, args []string) (r Report, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	in, out, err := os.Pipe()
	if err != nil {
		return r, err
	}
	defer in.Close()
	cmd := exec.Command("/proc/self/exe", append(slices.Clone(args), "--worker")...) //nolint:noctx // it is left alone, not waited for
	cmd.Stdout = out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Start()
	out.Close()
	if err != nil {
		return r, fmt.Errorf("cannot start the checks: %w", err)
	}
	defer cmd.Process.Kill() //nolint:errcheck // it has ended, or hangs, and nobody waits for it
	end, _ := ctx.Deadline()
	_ = in.SetReadDeadline(end) // a pipe has deadlines
	stop := context.AfterFunc(ctx, func() { _ = in.SetReadDeadline(time.Now()) })
	defer stop()
	if err := json.NewDecoder(in).Decode(&r); err != nil {
		if ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded) {
			return r, context.DeadlineExceeded
		}
		return r, fmt.Errorf("the checks ended without a result (%w): a library of a driver may have crashed", err)
	}
	return r, nil
}
