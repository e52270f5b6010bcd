//go:build linux

package cli

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
)

// checkReport is everything that a run of checks found.
type checkReport struct {
	Host      string         `json:"host"`
	Time      time.Time      `json:"time"`
	Simulated bool           `json:"simulated,omitempty"`
	Profile   string         `json:"profile"`
	Status    check.Status   `json:"status"`
	Seconds   float64        `json:"seconds"`
	Results   []check.Result `json:"checks"`
}

// work runs the checks and writes the report as JSON. It is what the process that run
// starts does.
func (c *checker) work(ctx context.Context) error {
	r, err := c.report(ctx)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

func (c *checker) report(ctx context.Context) (checkReport, error) {
	list, err := check.Select(c.profile, c.only, c.without)
	if err != nil {
		return checkReport{}, err
	}
	r := checkReport{Host: c.host, Time: time.Now().UTC(), Simulated: c.simulate != "", Profile: c.profile}
	if r.Host == "" {
		r.Host, _ = os.Hostname() // empty is a name like any other
	}
	r.Results = check.Run(ctx, c.env(), list, c.timeout-min(grace, c.timeout/5))
	r.Status = check.Worst(r.Results)
	r.Seconds = time.Since(r.Time).Round(time.Millisecond).Seconds()
	return r, ctx.Err()
}

// grace is the part of the time that is for a process to start and to write.
const grace = time.Second

// run has the checks run by a process of its own, and does not wait for its end: a thread
// that sleeps in a driver keeps its process, and whoever waits for that, until the driver
// lets go. That process has none of our files open, which callers wait for, too.
func (c *checker) run(ctx context.Context) error {
	begin := time.Now()
	r, err := c.fork(ctx, os.Args[1:])
	if ctx.Err() != nil { // which must not look as if all were fine
		return exitError{exitCode(c.exit, check.Unknown), errors.New("it was ended before its checks were")}
	}
	if err != nil {
		r = checkReport{Host: c.host, Time: begin.UTC(), Profile: c.profile, Seconds: time.Since(begin).Round(time.Millisecond).Seconds()}
		res := check.Result{ID: "check", Status: check.Unknown, Reason: err.Error(), Seconds: r.Seconds, Action: "gpumeter doctor may say more."}
		if errors.Is(err, context.DeadlineExceeded) {
			res.Status, res.Reason = check.Critical, fmt.Sprintf("the checks have said nothing for %s: a driver or a disk hangs", c.timeout)
		}
		r.Results, r.Status = []check.Result{res}, res.Status
	}
	if err := c.print(os.Stdout, r); err != nil {
		return exitError{exitUsage, err}
	}
	if code := exitCode(c.exit, r.Status); code != 0 {
		return exitError{code: code}
	}
	return nil
}

// fork starts the process and returns its report.
func (c *checker) fork(ctx context.Context, args []string) (r checkReport, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
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
