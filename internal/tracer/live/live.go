//go:build linux

// Package live keeps probes on the CUDA and NCCL libraries of this machine while processes
// come and go, and returns tracer.Snapshots of what they did.
//
// It is the only stateful part of the tracer: package target finds libraries, package probe
// counts in the kernel, and this package joins the two. It needs root or CAP_BPF and
// CAP_PERFMON, the host's pid namespace, and CAP_SYS_PTRACE for other users' processes; Open
// names what is missing. It does not modify processes or libraries.
package live

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/ncclinfo"
	"github.com/gpumeter/gpumeter/internal/tracer/probe"
)

// Options configures a Tracer. Zero values mean the defaults.
type Options struct {
	Proc     string        // default /proc; must be the host's pid namespace
	Probe    probe.Options // options of the kernel programs
	Interval time.Duration // between searches for new processes; default 2 s
	// Roots are the file systems in which the driver's library is searched, so that it is
	// probed before the first process uses it. Default: those of process 1 and our own.
	Roots []string
	// Kernels is the number of kernels listed per process; default 20. The others are summed up
	// as other. Negative: all are listed.
	Kernels int
	// Slow also probes frequently called functions that need single-stepping, which costs
	// microseconds per call. Otherwise they are skipped and counted in Library.Skipped.
	Slow bool
	// RAS is the address of NCCL's RAS service, queried while a rank waits; default
	// localhost:28028, NCCL's own default. "off" disables it.
	RAS string
}

// Bounds of what is kept between two snapshots.
const (
	maxEvents = 32768
	maxFinals = 1024 // processes that exited
	maxComms  = 256  // ended communicators per process
	pollEvery = 100 * time.Millisecond
	reapEvery = time.Second // minimum interval between reads triggered by exits
)

// attacher probes points of a file until the attachment is closed.
type attacher interface {
	Attach(path string, id probe.Identity, points []probe.Point) (probe.Attachment, error)
	Mode() string
	Sweep() error
}

// reader reads the kernel's counts.
type reader interface {
	Read(now time.Time) ([]tracer.Process, tracer.Losses, error)
	Events(limit int) []tracer.Event
	Forget(pid uint32)
}

// controller requests events for single calls.
type controller interface {
	Watch(pid uint32, op string, over time.Duration) error
	Record(pid uint32, on bool) error
	Close() error
}

// keeper may have got its maps and probes from a previous agent, and may leave them to the next one.
type keeper interface {
	Began() time.Duration
	Inherited() time.Time
	Leave()
}

// reporter counts what allocators of frameworks report.
type reporter interface {
	Reports() uint64
}

// kernel is implemented by probe.Probe.
type kernel interface {
	attacher
	reader
	controller
	keeper
	reporter
}

// Tracer traces this machine. It is safe for concurrent use.
type Tracer struct {
	o        Options
	kernel   kernel
	features []probe.Feature
	exits    bool // the kernel reports exits
	find     *discovery
	mapper   mapper // nil: unavailable
	closing  sync.Once
	closeErr error

	mu      sync.Mutex
	started time.Time
	err     error // error of the last read
	events  []tracer.Event
	exited  map[uint32]bool          // reported by the kernel, final read pending
	finals  []tracer.Process         // final state of processes that exited
	last    []tracer.Process         // last complete read of live processes
	comms   map[uint32][]tracer.Comm // ended ones; the kernel reports them once
	reaped  time.Time
	dropped uint64 // dropped events
	lost    uint64 // lost finals
	unread  uint64 // failed reads
	names   names
	known   map[uint32]*known
	memory  map[memoryKey]*history
	groups  groups

	ctx     context.Context //nolint:containedctx // canceled by Close, for goroutines outside Run
	cancel  context.CancelFunc
	asker   asker
	inspect inspector
}

// Open loads the kernel programs. Nothing is probed before Run. The error names every missing
// privilege and feature.
func Open(o Options) (*Tracer, error) {
	p, err := probe.Open(o.Probe)
	if err != nil {
		return nil, err
	}
	t := newTracer(o, p, p.Started())
	t.features = append(slices.Clip(p.Features()), hostProcesses(t.o.Proc), t.watchMappings())
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

// Mode returns how functions are probed: session, multi or perf.
func (t *Tracer) Mode() string { return t.kernel.Mode() }

// Features lists what the kernel offers, and what a missing feature costs.
func (t *Tracer) Features() []probe.Feature { return t.features }

// Err returns why the last read failed, or nil.
func (t *Tracer) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// Watch requests an event for each call of op in a process that takes longer than over.
func (t *Tracer) Watch(pid uint32, op string, over time.Duration) error {
	return t.kernel.Watch(pid, op, over)
}

// Record starts or stops an event for each call of a process.
func (t *Tracer) Record(pid uint32, on bool) error { return t.kernel.Record(pid, on) }

// Run searches for processes and libraries until ctx is done, then removes all probes.
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
			t.poll(now)
		}
	}
}

// poll handles what the kernel has reported since the last time.
func (t *Tracer) poll(now time.Time) {
	t.mu.Lock()
	t.drain()
	ended := len(t.exited) > 0
	t.mu.Unlock()
	t.meetMappers(now)
	t.find.beat(t.kernel.Reports(), now)
	if ended {
		t.reap(now)
	}
}

// Leave makes Close leave probes and counts to the next agent, where they are kept; see probe.Options.
func (t *Tracer) Leave() { t.kernel.Leave() }

// Keeps reports whether Leave has an effect.
func (t *Tracer) Keeps() bool { return has(t.features, "restart") }

// Inherited returns until when a previous agent, which has left its probes to this one, was running; zero if
// there was none.
func (t *Tracer) Inherited() time.Time { return t.kernel.Inherited() }

// Close removes all probes and frees the kernel resources. Run calls it too.
func (t *Tracer) Close() error {
	t.closing.Do(func() {
		t.cancel()
		t.closeErr = errors.Join(t.find.close(), t.kernel.Close())
		if t.mapper != nil {
			t.closeErr = errors.Join(t.closeErr, t.mapper.Close())
		}
	})
	return t.closeErr
}

// drain empties the kernel's event buffer before it is full.
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

// reap reads the final state of processes that exited and frees their map entries: many short
// processes would otherwise fill the maps between two snapshots.
func (t *Tracer) reap(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.reaped) < reapEvery {
		return
	}
	alive, _ := t.read(now)
	t.ended(alive)
}

// read returns the state of the live processes and moves those that exited to finals. A
// failed read has gaps, and a count that is missing once would be added again from zero by
// consumers, so the previous read is returned instead.
func (t *Tracer) read(now time.Time) (alive []tracer.Process, losses tracer.Losses) {
	t.reaped = now
	all, losses, err := t.kernel.Read(now)
	if t.err = err; err != nil {
		t.unread++
		t.ended(all) // the kernel reports them only once
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
		if _, older, ok := t.find.process(p.PID); ok { // it may exit at any time
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

// ended keeps ended communicators until the next snapshot.
func (t *Tracer) ended(processes []tracer.Process) {
	for _, p := range processes {
		for _, c := range p.Comms {
			if c.Ended && len(t.comms[p.PID]) < maxComms {
				t.comms[p.PID] = append(t.comms[p.PID], c)
			}
		}
	}
}

// Snapshot returns the current state. gpus maps the pids that the driver lists to the UUIDs
// of their devices; nil if the driver was not queried. Listed processes that are not traced
// are reported with a reason, and calls on an unknown device are assigned to the only device
// of their process.
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
	renamed := map[string]string{} // communicators
	for i := range s.Processes {
		p := &s.Processes[i]
		p.Comms = append(p.Comms, t.comms[p.PID]...)
		delete(t.comms, p.PID)
		maps.Copy(renamed, t.complete(p, now, gpus))
		place[p.PID] = t.known[p.PID].settled
		if p.Ended {
			t.forget(func(pid uint32) bool { return pid == p.PID }) // the pid may have been reused
		} else {
			living[p.PID] = true
		}
	}
	for i := range s.Events {
		e := &s.Events[i]
		if to, ok := place[e.PID]; ok && to.done && e.Device == nowhere {
			e.Device = to.ordinal
		}
		e.Comm = cmp.Or(renamed[e.Comm], e.Comm)
	}
	groups, stalled := t.groups.update(s.Processes, now)
	t.asker.consider(t.ctx, groups, stalled, now)
	s.Groups = groups
	t.forget(func(pid uint32) bool { return !living[pid] })
	clear(t.comms)
	s.Libraries, s.Untraced = t.find.view(now, slices.Sorted(maps.Keys(gpus)))
	return s
}
