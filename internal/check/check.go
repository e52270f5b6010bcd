//go:build linux

// Package check answers whether a node may take work: its accelerators, links, disks,
// memory, clocks and kernel log, each by a check with an id and a time limit. A check only
// reads. It clears, resets and starts nothing, and runs no program.
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

// Status is how a check ended.
type Status string

// The statuses, from the best to the worst.
const (
	Skipped  Status = "skipped" // there is nothing to look at, or nothing to compare it with
	OK       Status = "ok"
	Unknown  Status = "unknown" // it could not find out, or not in time
	Warning  Status = "warning" // somebody should look; work may go on
	Critical Status = "critical"
)

var ranks = []Status{Skipped, OK, Unknown, Warning, Critical}

// worse returns the worse of two. Not to know is better than a warning, which is certain,
// and worse than to be fine.
func worse(a, b Status) Status {
	if slices.Index(ranks, a) > slices.Index(ranks, b) {
		return a
	}
	return b
}

// Worst returns the worst status of results.
func Worst(results []Result) Status {
	s := OK
	for _, r := range results {
		s = worse(s, r.Status)
	}
	return s
}

// Problem is one thing that a check found.
type Problem struct {
	Status  Status `json:"status"`
	Subject string `json:"subject,omitempty"` // what has it, such as GPU 3
	Reason  string `json:"reason"`            // with numbers
	Action  string `json:"action,omitempty"`  // what to do
}

// Result is what one check found.
type Result struct {
	ID      string  `json:"id"`
	Status  Status  `json:"status"`
	Reason  string  `json:"reason"`
	Action  string  `json:"action,omitempty"`
	Seconds float64 `json:"seconds"`
	// Problems are all that it found, the worst first; Reason has the first one.
	Problems []Problem `json:"problems,omitempty"`
}

// Profiles are the occasions of a run.
const (
	Prolog   = "prolog"   // before a job: what would make it fail, quickly
	Epilog   = "epilog"   // after a job: what it may have left
	Periodic = "periodic" // everything
)

// Env is the machine to look at.
type Env struct {
	Root     string    // where the host's file system is; empty: /
	Manifest *Manifest // what the machine should have; nil: nobody said
	// ManifestErr is why the manifest that somebody named could not be used.
	ManifestErr error
	Expect      int            // physical devices there should be; 0: as the manifest says
	Window      time.Duration  // how far back the kernel's log counts
	StuckFor    time.Duration  // how long a process must be seen not to move
	Vendors     device.Vendors // whose devices, drivers and services the checks know

	// Devices reads the accelerators. It may take as long as ctx lasts.
	Devices func(ctx context.Context) (Machine, error)
	// Mine reports whether a device is one that is asked about; nil: all are.
	Mine func(*device.Sample) bool

	// Seams; nil is the machine itself.
	Statfs func(path string) (unix.Statfs_t, error)
	Clock  func() (state int, t unix.Timex, err error)
	NVMe   func(path string) (nvme.Health, error)
	ATA    func(path string) (ata.Health, error)
	BMC    func(root string) (ipmi.Transport, error) // closed if it can be
}

// Machine is what was read of the accelerators.
type Machine struct {
	Devices  []health.Device
	Findings []health.Finding
	Drivers  []Driver
}

// Driver is one vendor's driver or library.
type Driver struct {
	Name    string
	State   string // open, absent, failed, opening
	Problem string
}

// Check is one question.
type Check struct {
	ID       string
	About    string // one line, for people
	Profiles []string
	Limit    time.Duration
	run      func(context.Context, *host) outcome
}

// outcome is what a check returns.
type outcome struct {
	problems []Problem
	text     string // what is fine, or why it was skipped
	skipped  bool
}

func fine(format string, args ...any) outcome { return outcome{text: fmt.Sprintf(format, args...)} }

func skip(format string, args ...any) outcome {
	return outcome{text: fmt.Sprintf(format, args...), skipped: true}
}

// found returns problems, or that all is fine if there are none.
func found(problems []Problem, format string, args ...any) outcome {
	return outcome{problems: problems, text: fmt.Sprintf(format, args...)}
}

// unknown is the outcome of a check that could not look.
func unknown(err error, action string) outcome {
	return outcome{problems: []Problem{{Status: Unknown, Reason: err.Error(), Action: action}}}
}

// host is an Env with what several checks read once.
type host struct {
	Env

	devices func() <-chan struct{} // starts reading, once; closed when machine and err are set
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
			var t unix.Timex // Modes of 0 only reads
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

// Run runs checks side by side and returns their results in the order of list. It takes no
// longer than limit: a check that does not end in its time is left alone, and unknown.
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

// within runs a check in a goroutine that nobody waits for longer than its limit: a read of
// a dead disk or file server cannot be ended.
func (c Check) within(ctx context.Context, h *host) Result {
	ctx, cancel := context.WithTimeout(ctx, c.Limit)
	defer cancel()
	begin := time.Now()
	done := make(chan outcome, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- unknown(fmt.Errorf("the check itself is broken: %v", p), "Report it.")
			}
		}()
		done <- c.run(ctx, h)
	}()
	var o outcome
	select {
	case o = <-done:
	case <-ctx.Done():
		o = unknown(fmt.Errorf("it has not ended after %s", time.Since(begin).Round(100*time.Millisecond)),
			"Look for processes in state D: something that it reads does not answer.")
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

// maxProblems bounds what one check tells.
const maxProblems = 100

func capped(problems []Problem) []Problem { return problems[:min(len(problems), maxProblems)] }
