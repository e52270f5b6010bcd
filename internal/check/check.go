//go:build linux

// Package check decides whether a node is fit for work. It examines accelerators, links,
// disks, memory, clocks, the BMC and the kernel log; every check has an id and a time limit.
//
// Checks read /proc, /sys, /dev/kmsg and device ioctls below Env.Root, and take device
// samples from the caller. Most need no privileges; a check that lacks one (CAP_SYSLOG for
// the kernel log, CAP_SYS_ADMIN for NVMe, CAP_SYS_RAWIO for SATA, root for the BMC) is
// skipped and says why. Checks only read: they clear, reset and start nothing, and run no
// program.
package check

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/check/ata"
	"github.com/gpumeter/gpumeter/internal/check/ipmi"
	"github.com/gpumeter/gpumeter/internal/check/nvme"
	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/health"
)

// Status is the outcome of a check.
type Status string

// The statuses, from best to worst.
const (
	Skipped  Status = "skipped" // nothing to examine, or nothing to compare with
	OK       Status = "ok"
	Unknown  Status = "unknown" // the check failed or timed out
	Warning  Status = "warning" // needs attention; work may continue
	Critical Status = "critical"
)

var ranks = []Status{Skipped, OK, Unknown, Warning, Critical}

// worse returns the worse of two statuses. Unknown ranks between OK and Warning, because a
// warning is certain.
func worse(a, b Status) Status {
	if slices.Index(ranks, a) > slices.Index(ranks, b) {
		return a
	}
	return b
}

// Worst returns the worst status of the results.
func Worst(results []Result) Status {
	s := OK
	for _, r := range results {
		s = worse(s, r.Status)
	}
	return s
}

// Problem is one finding of a check.
type Problem struct {
	Status  Status `json:"status"`
	Subject string `json:"subject,omitempty"` // affected part, such as GPU 3
	Reason  string `json:"reason"`            // with numbers
	Action  string `json:"action,omitempty"`  // what to do
}

// Result is the outcome of one check.
type Result struct {
	ID      string  `json:"id"`
	Status  Status  `json:"status"`
	Reason  string  `json:"reason"`
	Action  string  `json:"action,omitempty"`
	Seconds float64 `json:"seconds"`
	// Problems are all findings, worst first; Reason repeats the first one.
	Problems []Problem `json:"problems,omitempty"`
}

// Profiles select the checks for an occasion.
const (
	Prolog   = "prolog"   // before a job: quick checks for what would make the job fail
	Epilog   = "epilog"   // after a job: what the job may have left behind
	Periodic = "periodic" // everything
)

// Env describes the machine to examine.
type Env struct {
	Root     string    // mount point of the host's file system; empty means /
	Manifest *Manifest // expected hardware; nil if unknown
	// ManifestErr is why the configured manifest cannot be used.
	ManifestErr error
	Expect      int            // expected number of physical devices; 0 means the manifest's
	Window      time.Duration  // how far back the kernel log counts
	StuckFor    time.Duration  // how long a process must show no progress to be stuck
	Vendors     device.Vendors // whose devices, drivers and services the checks know

	// Devices reads the accelerators. It may block until ctx is done.
	Devices func(ctx context.Context) (Machine, error)
	// Mine reports whether a device belongs to the job in question; nil means all do.
	Mine func(*device.Sample) bool

	// Seams for tests; nil uses the machine itself.
	Statfs func(path string) (unix.Statfs_t, error)
	Clock  func() (state int, t unix.Timex, err error)
	NVMe   func(path string) (nvme.Health, error)
	ATA    func(path string) (ata.Health, error)
	BMC    func(root string) (ipmi.Transport, error) // closed if it implements io.Closer
}

// Machine holds the samples of the accelerators.
type Machine struct {
	Devices  []health.Device
	Findings []health.Finding
	Drivers  []Driver
}

// Driver is the driver or library of one vendor.
type Driver struct {
	Name    string
	State   string // open, absent, failed, opening
	Problem string
}

// Check is a named check with its profiles and time limit.
type Check struct {
	ID       string
	About    string // one-line description
	Profiles []string
	Limit    time.Duration
	run      func(context.Context, *host) outcome
}

// outcome is what a check returns.
type outcome struct {
	problems []Problem
	text     string // summary if OK, or why the check was skipped
	skipped  bool
}

func fine(format string, args ...any) outcome { return outcome{text: fmt.Sprintf(format, args...)} }

func skip(format string, args ...any) outcome {
	return outcome{text: fmt.Sprintf(format, args...), skipped: true}
}

// found returns the problems, or an OK outcome with the formatted text if there are none.
func found(problems []Problem, format string, args ...any) outcome {
	return outcome{problems: problems, text: fmt.Sprintf(format, args...)}
}

// unknown is the outcome of a check that could not be performed.
func unknown(err error, action string) outcome {
	return outcome{problems: []Problem{{Status: Unknown, Reason: err.Error(), Action: action}}}
}

// host is an Env with values that several checks share and that are read once.
type host struct {
	Env

	devices func() <-chan struct{} // starts reading once; the channel is closed when machine and err are set
	machine Machine
	err     error
	log     func() (kernelLog, error)
	// patterns are what the kernel log is searched for, of the machine and of the drivers.
	patterns []pattern
}

func newHost(ctx context.Context, env Env) *host {
	h := &host{Env: env}
	if h.Root == "" {
		h.Root = "/"
	}
	if h.Statfs == nil {
		h.Statfs = func(path string) (st unix.Statfs_t, err error) {
			err = unix.Statfs(path, &st)
			return st, err
		}
	}
	if h.Clock == nil {
		h.Clock = func() (int, unix.Timex, error) {
			var t unix.Timex // Modes 0 only reads
			state, err := unix.Adjtimex(&t)
			return state, t, err
		}
	}
	if h.NVMe == nil {
		h.NVMe = nvme.Read
	}
	if h.ATA == nil {
		h.ATA = ata.Read
	}
	if h.BMC == nil {
		h.BMC = func(root string) (ipmi.Transport, error) { return ipmi.Open(root) }
	}
	h.devices = sync.OnceValue(func() <-chan struct{} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			if h.Devices != nil {
				h.machine, h.err = h.Devices(ctx)
			}
		}()
		return done
	})
	h.log = sync.OnceValues(h.readLog)
	h.patterns = withDrivers(env.Vendors)
	return h
}

// Run runs the checks concurrently and returns their results in the order of list. It takes
// no longer than limit: a check that exceeds its time is abandoned and reported as unknown.
func Run(ctx context.Context, env Env, list []Check, limit time.Duration) []Result {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	h := newHost(ctx, env)
	results := make([]Result, len(list))
	var all sync.WaitGroup
	for i, c := range list {
		all.Go(func() { results[i] = c.within(ctx, h) })
	}
	all.Wait()
	return results
}

// within runs a check in its own goroutine and waits no longer than its limit: a read from a
// dead disk or file server cannot be interrupted.
func (c Check) within(ctx context.Context, h *host) Result {
	ctx, cancel := context.WithTimeout(ctx, c.Limit)
	defer cancel()
	begin := time.Now()
	done := make(chan outcome, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- unknown(fmt.Errorf("the check panicked: %v", p), "Report this bug.")
			}
		}()
		done <- c.run(ctx, h)
	}()
	var o outcome
	select {
	case o = <-done:
	case <-ctx.Done():
		o = unknown(fmt.Errorf("not finished after %s", time.Since(begin).Round(100*time.Millisecond)),
			"Look for processes in state D: a file or device that the check reads does not answer.")
	}
	return o.result(c.ID, time.Since(begin))
}

func (o outcome) result(id string, took time.Duration) Result {
	r := Result{ID: id, Status: OK, Reason: o.text, Seconds: took.Round(time.Millisecond).Seconds(), Problems: o.problems}
	if o.skipped {
		r.Status = Skipped
	}
	if len(o.problems) == 0 {
		return r
	}
	slices.SortStableFunc(r.Problems, func(a, b Problem) int { return slices.Index(ranks, b.Status) - slices.Index(ranks, a.Status) })
	first := r.Problems[0]
	r.Status, r.Reason, r.Action = first.Status, first.Reason, first.Action
	if first.Subject != "" {
		r.Reason = first.Subject + ": " + first.Reason
	}
	if n := len(r.Problems) - 1; n > 0 {
		r.Reason += fmt.Sprintf(" (and %d more)", n)
	}
	return r
}

// maxProblems bounds the problems of one check.
const maxProblems = 100

func capped(problems []Problem) []Problem { return problems[:min(len(problems), maxProblems)] }
