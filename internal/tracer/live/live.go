//go:build linux

// Package live keeps probes on the CUDA and NCCL libraries of this machine while processes
// come and go, and tells what they did as Snapshots. It is the only place that has state:
// package target finds, package probe counts, and what is here joins the two.
package live

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/ncclinfo"
	"github.com/gpumeter/gpumeter/internal/tracer/probe"
)

// Options of a Tracer. The zero value is right.
type Options struct {
	Proc     string        // /proc; of the host's pid namespace
	Probe    probe.Options // how the kernel is asked
	Interval time.Duration // between searches for new processes; 2 s
	// Roots are file systems in which the driver's library is looked for, so that it has
	// probes before the first process uses it; those of process 1 and our own, by Proc.
	Roots []string
	// Kernels is how many kernels of a process are told apart; 20. The rest is summed up as
	// other. Below 0: all are.
	Kernels int
	// Slow probes functions too that are called often and cost a single step each time,
	// some microseconds. They are left out else, and counted in Library.Skipped.
	Slow bool
	// RAS is where NCCL is asked about a job in which a rank waits; localhost:28028, which
	// is where it listens by default. "off": it is not asked.
	RAS string
}

// Bounds of what is kept between two snapshots.
const (
	maxEvents = 32768
	maxFinals = 1024 // processes that ended
	maxComms  = 256  // communicators of a process that ended
	pollEvery = 100 * time.Millisecond
	reapEvery = time.Second // readings because of processes that ended, at most
)

// attacher puts probes on the points of a file, until what it returned is closed.
type attacher interface {
	Attach(path string, points []probe.Point) (io.Closer, error)
	Mode() string
}

// reader reads what the probes have counted.
type reader interface {
	Read(now time.Time) ([]tracer.Process, tracer.Losses, error)
	Events(limit int) []tracer.Event
	Forget(pid uint32)
}

// controller asks for single calls to be told.
type controller interface {
	Watch(pid uint32, op string, over time.Duration) error
	Record(pid uint32, on bool) error
	Close() error
}

// kernel is what a probe.Probe does.
type kernel interface {
	attacher
	reader
	controller
}

// Tracer traces this machine. Its methods may be called from several goroutines.
type Tracer struct {
	o        Options
	kernel   kernel
	features []probe.Feature
	exits    bool // the kernel says of each process when it ended
	find     *discovery
	closing  sync.Once
	closeErr error

	mu      sync.Mutex
	started time.Time
	err     error // of the last reading
	events  []tracer.Event
	exited  map[uint32]bool          // told by the kernel, not yet read for the last time
	finals  []tracer.Process         // the last reading of those that ended
	last    []tracer.Process         // the last whole reading of those that live
	comms   map[uint32][]tracer.Comm // that ended; the kernel tells them once
	reaped  time.Time
	dropped uint64 // events
	lost    uint64 // finals
	unread  uint64 // readings that failed
	names   names
	known   map[uint32]*known
	memory  map[memoryKey]*history
	groups  groups

	ctx     context.Context //nolint:containedctx // ends with Close, for what runs beside Run
	cancel  context.CancelFunc
	asker   asker
	inspect inspector
}

// Open loads the programs into the kernel. Nothing is probed before Run. The error names
// each right and feature that is missing.
func Open(o Options) (*Tracer, error) {
	p, err := probe.Open(o.Probe)
	if err != nil {
		return nil, err
	}
	t := newTracer(o, p, time.Now())
	t.features = append(slices.Clip(p.Features()), hostProcesses(t.o.Proc))
	t.exits = has(t.features, "exit")
	return t, nil
}

func newTracer(o Options, k kernel, now time.Time) *Tracer {
	if o.Proc == "" {
		o.Proc = "/proc"
	}
	if o.Interval <= 0 {
		o.Interval = 2 * time.Second
	}
	if o.Kernels == 0 {
		o.Kernels = 20
	}
	if o.Roots == nil {
		o.Roots = []string{filepath.Join(o.Proc, "1/root"), filepath.Join(o.Proc, "self/root")}
	}
	t := &Tracer{
		o: o, kernel: k, started: now,
		find:   newDiscovery(o, k),
		exited: map[uint32]bool{},
		comms:  map[uint32][]tracer.Comm{},
		known:  map[uint32]*known{},
		memory: map[memoryKey]*history{},

		inspect: inspector{proc: o.Proc},
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	if o.RAS != "off" {
		t.asker.ask = func(ctx context.Context) (ncclinfo.Status, error) {
			return ncclinfo.Ask(ctx, cmp.Or(o.RAS, ncclinfo.DefaultAddress))
		}
	}
	return t
}

// Mode says how functions are probed: session, multi or perf.
func (t *Tracer) Mode() string { return t.kernel.Mode() }

// Features are what the kernel offers and what not, with what that costs.
func (t *Tracer) Features() []probe.Feature { return t.features }

// Err is why the last reading failed, nil if it did not.
func (t *Tracer) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// Watch asks for an event at each call of op, of a process, that takes longer than over.
func (t *Tracer) Watch(pid uint32, op string, over time.Duration) error {
	return t.kernel.Watch(pid, op, over)
}

// Record asks for an event at each call of a process, or ends that.
func (t *Tracer) Record(pid uint32, on bool) error { return t.kernel.Record(pid, on) }

// Run finds processes and libraries until ctx ends, then takes all probes away.
func (t *Tracer) Run(ctx context.Context) error {
	scan := time.NewTicker(t.o.Interval)
	defer scan.Stop()
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	t.find.scan(time.Now())
	go t.inspect.run(t.ctx, t.find.inspected)
	for {
		select {
		case <-ctx.Done():
			return t.Close()
		case now := <-scan.C:
			if t.find.scan(now) {
				t.reap(now)
			}
		case now := <-poll.C:
			t.mu.Lock()
			t.drain()
			ended := len(t.exited) > 0
			t.mu.Unlock()
			if ended {
				t.reap(now)
			}
		}
	}
}

// Close takes all probes away and frees what the kernel holds for us. Run does it too.
func (t *Tracer) Close() error {
	t.closing.Do(func() {
		t.cancel()
		t.closeErr = errors.Join(t.find.close(), t.kernel.Close())
	})
	return t.closeErr
}

// drain takes the events out of the kernel's buffer before it is full.
func (t *Tracer) drain() {
	const some = 4096
	for range maxEvents / some {
		events := t.kernel.Events(some)
		for _, e := range events {
			if e.Type == "exit" {
				t.exited[e.PID] = true
			}
			if len(t.events) >= maxEvents {
				t.dropped++
				continue
			}
			e.Kernel = t.names.of(e.Kernel)
			t.events = append(t.events, e)
		}
		if len(events) < some {
			return
		}
	}
}

// reap reads for the last time what processes did that have ended, and frees their place
// in the kernel's maps: many short processes would fill them between two snapshots.
func (t *Tracer) reap(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.reaped) < reapEvery {
		return
	}
	alive, _ := t.read(now)
	t.ended(alive)
}

// read returns what is known of the processes that live, and moves those that ended to the
// finals. A reading that failed has holes: a count that is missing once would be counted
// again from the beginning by who adds them up, so what was read before stands instead.
func (t *Tracer) read(now time.Time) (alive []tracer.Process, losses tracer.Losses) {
	t.reaped = now
	all, losses, err := t.kernel.Read(now)
	if t.err = err; err != nil {
		t.unread++
		t.ended(all) // they are told only once
		return t.last, losses
	}
	t.last = nil
	for _, p := range all {
		if !p.Ended && !t.exited[p.PID] && (t.exits || t.alive(p.PID)) {
			alive = append(alive, p)
			p.Comms = slices.DeleteFunc(slices.Clone(p.Comms), func(c tracer.Comm) bool { return c.Ended })
			t.last = append(t.last, p)
			continue
		}
		p.Ended = true
		if _, older, ok := t.find.process(p.PID); ok { // it is not there for long
			p.Older = p.Older || older
		}
		if len(t.finals) < maxFinals {
			t.finals = append(t.finals, p)
		} else {
			t.lost++
		}
		t.kernel.Forget(p.PID)
	}
	clear(t.exited)
	return alive, losses
}

// ended keeps the communicators that ended until the next snapshot.
func (t *Tracer) ended(processes []tracer.Process) {
	for _, p := range processes {
		for _, c := range p.Comms {
			if c.Ended && len(t.comms[p.PID]) < maxComms {
				t.comms[p.PID] = append(t.comms[p.PID], c)
			}
		}
	}
}

// Snapshot returns what is known now. gpus are the processes that the driver says are on
// devices, with the UUIDs of those; nil: it was not asked. Those of them that are not traced
// are told with a reason, and calls of which the kernel does not know the device are put to
// the only one their process is on.
func (t *Tracer) Snapshot(now time.Time, gpus map[uint32][]string) tracer.Snapshot {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drain()
	processes, losses := t.read(now)
	s := tracer.Snapshot{Time: now, Started: t.started, Losses: losses, Events: t.events}
	s.Processes = slices.Concat(t.finals, processes)
	t.events, t.finals = nil, nil
	slices.SortStableFunc(s.Processes, func(a, b tracer.Process) int { return int(a.PID) - int(b.PID) })
	s.Losses.Events += t.dropped
	full := maps.Clone(losses.MapFull)
	for what, n := range map[string]uint64{"ended": t.lost, "files": t.find.beyond(), "readings": t.unread} {
		if n > 0 && full == nil {
			full = map[string]uint64{}
		}
		if n > 0 {
			full[what] = n
		}
	}
	s.Losses.MapFull = full
	living := make(map[uint32]bool, len(processes))
	place := map[uint32]settled{}
	for i := range s.Processes {
		p := &s.Processes[i]
		p.Comms = append(p.Comms, t.comms[p.PID]...)
		delete(t.comms, p.PID)
		t.complete(p, now, gpus)
		place[p.PID] = t.known[p.PID].settled
		if p.Ended {
			t.forget(func(pid uint32) bool { return pid == p.PID }) // the number may be another's already
		} else {
			living[p.PID] = true
		}
	}
	for i := range s.Events {
		e := &s.Events[i]
		if to, ok := place[e.PID]; ok && to.done && e.Device == nowhere {
			e.Device = to.ordinal
		}
	}
	groups, stalled := t.groups.update(s.Processes, now)
	t.asker.consider(t.ctx, groups, stalled, now)
	s.Groups = groups
	t.forget(func(pid uint32) bool { return !living[pid] })
	clear(t.comms)
	s.Libraries, s.Untraced = t.find.view(now, slices.Sorted(maps.Keys(gpus)))
	return s
}

// known is what is kept of a process between two snapshots.
type known struct {
	since   time.Time // as first read: the same for ever, it tells processes of one number apart
	name    string
	older   bool
	on      []string // the devices the driver listed it on, the last time that it did
	settled settled
	kernels chooser
}

// complete adds to a process what the kernel does not know.
func (t *Tracer) complete(p *tracer.Process, now time.Time, gpus map[uint32][]string) {
	k := t.known[p.PID]
	if k == nil {
		k = &known{since: p.Since, kernels: chooser{limit: t.o.Kernels}}
		t.known[p.PID] = k
	}
	p.Since = k.since
	if name, older, ok := t.find.process(p.PID); ok {
		k.name, k.older = name, older
	}
	p.Older = p.Older || k.older
	p.Name = printable(cmp.Or(p.Name, k.name))
	if on := gpus[p.PID]; len(on) > 0 {
		k.on = on
	}
	k.settled.settle(p, k.on, gpus != nil)
	p.Measured = t.inspect.of(p.PID)
	p.Kernels, p.KernelsFolded = k.kernels.choose(t.names.merged(p.Kernels))
	for i := range p.Devices {
		d := &p.Devices[i]
		key := memoryKey{p.PID, d.Ordinal}
		h := t.memory[key]
		if h == nil {
			h = &history{}
			t.memory[key] = h
		}
		h.add(now, d.Memory)
		d.Memory.Growth, d.Memory.Leak = h.growth()
	}
}

// forget drops what is kept of processes that are gone.
func (t *Tracer) forget(gone func(pid uint32) bool) {
	maps.DeleteFunc(t.known, func(pid uint32, _ *known) bool { return gone(pid) })
	maps.DeleteFunc(t.memory, func(k memoryKey, _ *history) bool { return gone(k.pid) })
}
