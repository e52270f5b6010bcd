//go:build linux

// Package sampler takes profiles of this machine: its programs in the kernel sample the stacks of the
// threads that launch and wait, and it finds out what their frames are.
//
// It probes the driver's library a second time, next to package probe and without it: profiles are taken on
// request, and nothing of them is left when they end. It needs what package probe needs, and task storage.
package sampler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/profile"
	"github.com/gpumeter/gpumeter/internal/tracer/target"
)

// Options configures a profile. Zero values mean the defaults.
type Options struct {
	Proc string        // default /proc; must be the host's pid namespace
	Mode string        // multi or perf; default: the best one the kernel supports
	Rate int           // samples a second of a thread; default DefaultRate
	For  time.Duration // from when all processes that run are profiled; 0: until the context ends
	// Takes selects processes; nil: all that have the driver's library.
	Takes func(pid uint32) bool
	// Names returns the names of a process's kernels by their handles. nil: they are unknown.
	Names func(pid uint32) map[uint64]string
	// Busy returns how long a process has had work on its devices. nil: unknown.
	Busy func(pid uint32) time.Duration
	// Ready is called once all processes that run are profiled. nil: nobody waits for it.
	Ready func()
}

// DefaultRate is no divisor of usual rates of work, so that samples do not keep step with it.
const DefaultRate = 99

// MaxRate bounds the price of a profile.
const MaxRate = 1000

const (
	scanEvery    = time.Second
	pollEvery    = 200 * time.Millisecond
	maxProcesses = 1024
)

// sampler is a profile that is being taken.
type sampler struct {
	o         Options
	kernel    *kernel
	files     *files
	processes map[uint32]*process
	ended     []*process                 // exited, or replaced by exec
	busy      map[*process]time.Duration // when it was met
	stacks    map[uint64][]profile.Frame
	problems  map[uint32]string
	silent    map[uint32]chan mapped // reads of maps that have not ended
}

// Take profiles for a time, or until ctx ends. Its error names what is missing.
func Take(ctx context.Context, o Options) (p profile.Profile, err error) {
	o.Proc = cmp.Or(o.Proc, "/proc")
	o.Rate = cmp.Or(o.Rate, DefaultRate)
	if o.Rate < 1 || o.Rate > MaxRate {
		return p, fmt.Errorf("rate of samples must be 1 to %d a second, is %d", MaxRate, o.Rate)
	}
	k, err := openKernel(time.Second/time.Duration(o.Rate), o.Mode)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, k.close()) }()
	s := &sampler{
		o: o, kernel: k, files: newFiles(o.Proc, k), processes: map[uint32]*process{}, busy: map[*process]time.Duration{},
		stacks: map[uint64][]profile.Frame{}, problems: map[uint32]string{}, silent: map[uint32]chan mapped{},
	}
	defer s.close()
	p.Rate = o.Rate
	s.scan()
	p.Start = time.Now()
	if o.Ready != nil {
		o.Ready()
	}
	if o.For > 0 {
		limited, cancel := context.WithTimeout(ctx, o.For)
		defer cancel()
		ctx = limited
	}
	scan, poll := time.NewTicker(scanEvery), time.NewTicker(pollEvery)
	defer scan.Stop()
	defer poll.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-scan.C:
			s.scan()
		case <-poll.C:
			if err := s.resolve(); err != nil {
				return p, err
			}
		}
	}
	p.Duration = time.Since(p.Start)
	if err := k.detach(); err != nil {
		return p, err
	}
	return p, s.finish(&p)
}

func (s *sampler) close() {
	for _, p := range s.all() {
		_ = p.close() // only read
	}
}

func (s *sampler) all() []*process {
	out := slices.Clone(s.ended)
	for _, p := range s.processes {
		out = append(out, p)
	}
	return out
}

// scan finds the processes and libraries that are to be profiled.
func (s *sampler) scan() {
	pids, err := target.PIDs(s.o.Proc)
	if err != nil {
		return
	}
	for _, pid := range pids {
		if s.o.Takes == nil || s.o.Takes(pid) {
			s.look(pid)
		}
	}
}

// look profiles a process if it has the driver's library.
func (s *sampler) look(pid uint32) {
	id, err := target.ReadProcess(s.o.Proc, pid)
	if err != nil {
		return
	}
	known := s.processes[pid]
	if known != nil {
		var t kernelProfileTarget
		if known.Start == id.Start && s.kernel.o.Targets.Lookup(pid, &t) == nil {
			s.again(known)
			return
		}
		s.ended = append(s.ended, known)
		delete(s.processes, pid)
	}
	mappings, err := s.maps(pid)
	if err != nil || !slices.ContainsFunc(mappings, func(m target.Mapping) bool { return kind(m.Path) == tracer.LibraryCUDA }) {
		return
	}
	if len(s.processes)+len(s.ended) >= maxProcesses {
		return
	}
	p := meet(s.o.Proc, id, mappings)
	s.processes[pid] = p
	if s.o.Busy != nil {
		s.busy[p] = s.o.Busy(pid)
	}
	if err := s.kernel.choose(pid, p.target()); err != nil {
		p.problem = fmt.Sprintf("it cannot be profiled: %v", err)
		return
	}
	s.attach(p)
}

// again looks at what a process has loaded since.
func (s *sampler) again(p *process) {
	if mappings, err := s.maps(p.PID); err == nil && len(mappings) != len(p.mappings) {
		p.mappings = mappings
		s.attach(p)
	}
}

func (s *sampler) attach(p *process) {
	for _, m := range p.mappings {
		if what := kind(m.Path); what != "" {
			if err := s.files.add(p.PID, m, what); err != nil {
				p.problem = cmp.Or(p.problem, fmt.Sprintf("%s cannot be probed: %v", filepath.Base(m.Path), err))
			}
		}
	}
}

// resolve reads the new stacks while their processes are there.
func (s *sampler) resolve() error {
	fresh := map[uint64]bool{}
	err := each(s.kernel.o.Samples, func(k kernelProfileSampleKey, _ *kernelProfileSample) {
		if _, ok := s.stacks[k.Stack]; !ok {
			fresh[k.Stack] = true
		}
	})
	for hash := range fresh {
		s.stacks[hash] = s.frames(hash)
	}
	return err
}

func (s *sampler) frames(hash uint64) []profile.Frame {
	var stack kernelProfileStack
	if hash == 0 || s.kernel.o.Stacks.Lookup(hash, &stack) != nil {
		return []profile.Frame{note(profile.StackLost)}
	}
	p := s.processes[stack.Tgid]
	if p == nil {
		return []profile.Frame{note(profile.Unresolved)}
	}
	return p.frames(&stack)
}
