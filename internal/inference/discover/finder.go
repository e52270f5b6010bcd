package discover

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/inference"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Finder finds the engines of this machine. It scans in the background, so that no process and no endpoint
// delays a tick.
type Finder struct {
	// Proc is the procfs of the machine, /proc if empty.
	Proc string
	// Owner returns the workload of a process, and may be nil. It must answer from memory, and be safe for
	// concurrent use.
	Owner func(pid uint32) (workload.Workload, bool)
	// Timeout is how long an endpoint may take to answer a request, 2 s if 0.
	Timeout time.Duration
	// Interval is the time between scans, by the time of ticks, 30 s if 0.
	Interval time.Duration
	// Ephemeral: sockets on ports that the kernel chose are asked, too. Else a command line must name the port.
	Ephemeral bool
	// Slots bound how many pages are parsed at a time, nil: its own.
	Slots inference.Slots

	mu      sync.Mutex
	scanner *scanner
	last    time.Time // of the tick that began a scan
	cancel  context.CancelFunc
	done    chan struct{} // closed when the scan has ended, nil before the first
	closed  bool
	engines []*engine
	status  Status
	enter   func(namespace int) error // unix.Setns, other than in tests

	known map[key]identity // of engines, as they were last presented; used by Find only
}

// identity is what an engine was presented as.
type identity struct {
	owner *workload.Workload
	base  string // what the ID begins with
	id    string
}

// Status is what the last scan found, and what it could not see.
type Status struct {
	// Processes are around a device, and listen on Sockets.
	Processes, Sockets int
	// Asked are the sockets that could be asked, and Engines and Undecided those among them that are an
	// engine's, or that are asked again later.
	Asked, Engines, Undecided int
	// Spared are sockets on ports that the kernel chose, which are not asked.
	Spared int
	// Unreachable are sockets that could not be asked, by reason.
	Unreachable []Unreachable
	// Unreadable counts files in /proc that could not be read, although their process is there.
	Unreadable int
	// Rejected counts what was beyond a limit.
	Rejected int
	// Err says why processes could not be listed.
	Err error
}

// Unreachable is a number of sockets that could not be asked.
type Unreachable struct {
	Reason  string
	Sockets int
}

// engine is an engine that was found. It is immutable.
type engine struct {
	key
	endpoint *endpoint
	target   inference.Target
	reached  []netip.AddrPort
	name     string // of its program
	started  time.Time
	// near are the process and its descendants, tree those of its ancestors, too, and group those in the same
	// control group.
	near, tree, group set
}

// Find returns the engines that are known, the oldest first, with their devices at the tick. It returns
// from memory; when it is time, it begins a scan in the background, which ends with ctx or Close. One
// goroutine calls Find.
func (f *Finder) Find(ctx context.Context, t *node.Tick) []Engine {
	f.mu.Lock()
	defer f.mu.Unlock()
	age := t.Time.Sub(f.last)
	due := f.done == nil || age >= cmp.Or(f.Interval, 30*time.Second) || age < 0
	if due && !f.closed && !t.Paused && !f.running() {
		f.begin(ctx, t)
	}
	return f.present(t)
}

// running reports whether a scan runs.
func (f *Finder) running() bool {
	if f.done == nil {
		return false
	}
	select {
	case <-f.done:
		return false
	default:
		return true
	}
}

// begin begins a scan.
func (f *Finder) begin(ctx context.Context, t *node.Tick) {
	if f.scanner == nil {
		f.scanner = &scanner{
			processes: processes{proc: cmp.Or(f.Proc, "/proc")}, owner: f.Owner, ephemeral: f.Ephemeral,
			timeout: cmp.Or(f.Timeout, 2*time.Second), enter: enter, slots: f.Slots, publish: f.publish, sockets: map[key]*socket{},
		}
		if f.scanner.slots == nil {
			f.scanner.slots = inference.NewSlots()
		}
		if f.enter != nil {
			f.scanner.enter = f.enter
		}
	}
	ctx, f.cancel = context.WithCancel(ctx)
	cancel, done, q := f.cancel, make(chan struct{}), ask(t)
	f.last, f.done = t.Time, done
	go func() {
		defer close(done)
		defer cancel()
		f.scanner.scan(ctx, q)
	}()
}

// ask returns what a scan needs to know about a tick.
func ask(t *node.Tick) question {
	q := question{at: t.Time, pids: set{}, holders: map[string]bool{}}
	for i := range t.Readings {
		r := &t.Readings[i]
		for _, p := range r.Processes {
			if p.PID > 0 {
				q.pids[p.PID] = true
			}
		}
		for _, h := range r.Holders {
			if !h.Ended && tells(&h.Workload) {
				q.holders[h.ID] = true
			}
		}
		if r.Owner != nil && tells(r.Owner) {
			q.holders[r.Owner.ID] = true
		}
	}
	for _, nobody := range []string{workload.Unallocated, workload.Unattributed, workload.Other} {
		delete(q.holders, nobody)
	}
	return q
}

// tells reports whether the processes of a workload belong together. A workload of the kind process has all
// programs of a name that a user runs, and only some of them may be on the device.
func tells(w *workload.Workload) bool { return w.Kind != "process" }

// publish takes over what a scan found.
func (f *Finder) publish(list []*engine, s Status) {
	s.Engines = len(list)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.engines, f.status = list, s
}

// present returns the engines at a tick.
func (f *Finder) present(t *node.Tick) []Engine {
	engines := slices.DeleteFunc(slices.Clone(f.engines), func(e *engine) bool { return e.endpoint.gone.Load() })
	known := make(map[key]identity, len(engines))
	taken := map[string]bool{}
	for _, e := range engines {
		old := f.known[e.key]
		now := identity{owner: old.owner}
		if f.Owner != nil {
			if w, ok := f.Owner(e.pid); ok {
				now.owner = &w
			}
		}
		if now.base = e.base(now.owner); now.base == old.base { // it keeps its ID, even if a shorter one is free now
			now.id = old.id
			taken[now.id] = true
		}
		known[e.key] = now
	}
	var out []Engine
	for _, e := range engines {
		now := known[e.key]
		if now.id == "" {
			now.id = e.id(now.base, taken)
			taken[now.id] = true
			known[e.key] = now
		}
		out = append(out, Engine{ID: now.id, Target: e.target, Addresses: e.reached, Workload: now.owner, Devices: devices(t, e, now.owner), Started: e.started})
	}
	f.known = known
	return out
}

// base returns what the ID begins with.
func (e *engine) base(w *workload.Workload) string {
	owner := "process/" + e.name
	if w != nil {
		owner = w.ID
	}
	return owner + ":" + strconv.Itoa(int(e.endpoint.address.Port()))
}

// id returns an ID that is not taken.
func (e *engine) id(base string, taken map[string]bool) string {
	id := base
	for _, more := range []string{fmt.Sprintf("@%d", e.endpoint.namespace), "@" + e.endpoint.address.Addr().String(), fmt.Sprintf("@%d", e.inode)} {
		if !taken[id] {
			break
		}
		id += more
	}
	return id
}

// Status returns what the last scan found.
func (f *Finder) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.status
	s.Unreachable = slices.Clone(s.Unreachable)
	return s
}

// Close ends a running scan and waits for it. Find then returns what is known.
func (f *Finder) Close() {
	f.mu.Lock()
	f.closed = true
	cancel, done := f.cancel, f.done
	f.mu.Unlock()
	if done == nil {
		return
	}
	cancel()
	<-done
	for _, x := range f.scanner.sockets {
		x.client.CloseIdleConnections()
	}
}
