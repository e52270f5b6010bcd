// Package probe is the way to and from the kernel: it loads the programs of bpf/, puts them
// on functions of libraries, and reads what they have counted.
package probe

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// The ways to probe a function, the best first.
const (
	ModeSession = "session" // one program at entry and return, one link a file: Linux 6.13
	ModeMulti   = "multi"   // two programs, two links a file: Linux 6.6
	ModePerf    = "perf"    // two perf events a function: Linux 5.15
)

// Options of a Probe. The zero value is right.
type Options struct {
	Mode string // session, multi or perf; empty: the first of them that the kernel has
	// NoTaskStorage keeps what is known of a thread in a hash, as it is where the kernel has
	// no task storage.
	NoTaskStorage bool

	RingBytes int // of the event buffer, a power of 2; 512 KiB
	// How many of each the kernel keeps; what is more is counted in Losses. 0 is enough for
	// hundreds of processes.
	MaxProcesses, MaxOps, MaxKernels, MaxNames, MaxAllocations, MaxStreams, MaxComms, MaxCollectives int

	version version // of the kernel to be taken for; the zero one: its own
}

// Feature is something that a kernel or our rights may lack.
type Feature struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"` // why not, and what it costs
}

// Point is one place in a file to probe.
type Point struct {
	Op     *tracer.Op
	Symbol string
	Offset uint64 // in the file, of the instruction to probe
}

// Probe is a set of loaded programs. Its methods may be called at the same time.
type Probe struct {
	mode     string
	features []Feature
	maps     kernelMaps
	all      map[string]*ebpf.Map // the same and those of variables, by name
	epoch    *ebpf.Variable
	programs map[string]*ebpf.Program
	links    []link.Link // to what is attached always
	loaded   []*ebpf.Collection
	types    *btf.Cache // while it is opened
	version  version    // of the kernel
	booted   uint64     // ns since boot when it was opened
	wall     time.Time  // when the kernel's clock was 0, as it was seen then: what is told by it never moves

	mu        sync.Mutex
	ring      *ringbuf.Reader
	watching  uint32
	unnamed   uint64            // launches of unknown kernels of processes that are forgotten
	unnamedBy map[uint32]uint64 // the same of each process, as last read
	unnamedAt uint64            // what was told last: a name that comes later takes nothing back
}

// Open loads the programs. The error names what is missing, and what that costs.
func Open(o Options) (*Probe, error) {
	if lack := lacking(effective(), required); lack != nil {
		return nil, fmt.Errorf("cannot trace: %s", describe(lack))
	}
	types := btf.NewCache() // of the kernel, megabytes of them: for all loads, and no longer
	if _, err := types.Kernel(); err != nil {
		return nil, fmt.Errorf("cannot trace: the kernel does not describe its types (CONFIG_DEBUG_INFO_BTF): %w", err)
	}
	_ = rlimit.RemoveMemlock() // needed before Linux 5.11; if it was, loading says so
	modes := []string{ModeSession, ModeMulti, ModePerf}
	switch o.Mode {
	case "":
	case ModeSession, ModeMulti, ModePerf:
		modes = []string{o.Mode}
	default:
		return nil, fmt.Errorf("cannot trace in mode %q: it must be session, multi or perf", o.Mode)
	}
	var errs []error
	for _, mode := range modes {
		p, err := open(o, mode, types)
		if err == nil {
			p.optional(o)
			p.types = nil
			debug.FreeOSMemory() // loading takes more than all that follows
			return p, nil
		}
		errs = append(errs, fmt.Errorf("mode %s: %w", mode, err))
	}
	return nil, fmt.Errorf("cannot trace: Linux 5.15 is needed at least: %w", errors.Join(errs...))
}

// open loads the programs of one mode.
func open(o Options, mode string, types *btf.Cache) (*Probe, error) {
	p := &Probe{mode: mode, types: types, version: cmp.Or(o.version, kernelVersion()), programs: map[string]*ebpf.Program{}, unnamedBy: map[uint32]uint64{}, watching: 1}
	names := []string{kernelProgCallEnter, kernelProgCallLeave}
	if mode == ModeSession {
		names = []string{kernelProgCallSession}
	}
	storage := Feature{Name: "task_storage", OK: !o.NoTaskStorage, Reason: "not asked for"}
	var err error
	if storage.OK {
		if err = p.load(o, names, nil); err != nil {
			storage.Reason = err.Error()
			o.NoTaskStorage = true
		}
	}
	if o.NoTaskStorage {
		if second := p.load(o, names, nil); second != nil {
			return nil, errors.Join(err, second)
		}
		storage.OK = false
	}
	if storage.OK {
		storage.Reason = ""
	} else {
		storage.Reason = "threads are kept in a hash, which costs more a call: " + storage.Reason
	}
	if mode != ModePerf {
		if err := p.linkable(); err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	if p.ring, err = ringbuf.NewReader(p.maps.Events); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot read the ring: %w", err), p.Close())
	}
	p.features = []Feature{storage}
	p.booted = clock(unix.CLOCK_BOOTTIME)
	p.wall = time.Now().Add(-time.Duration(clock(unix.CLOCK_MONOTONIC)))
	return p, nil
}

// optional attaches what a Probe can do without.
func (p *Probe) optional(o Options) {
	sched := Feature{Name: "sched"}
	switch {
	case !p.features[0].OK:
		sched.Reason = "it needs task storage"
	default:
		sched.OK, sched.Reason = p.trace(o, kernelProgOnSwitch, kernelProgOnWakeup)
	}
	if !sched.OK && p.version.before(tellsWhy) {
		sched.Reason = fmt.Sprintf("Linux %v does not tell why a thread leaves its CPU, %v does: %s", p.version, tellsWhy, sched.Reason)
	}
	if !sched.OK {
		sched.Reason = "run-queue delay and blocked time of threads are not known: " + sched.Reason
	}
	exit := Feature{Name: "exit"}
	if exit.OK, exit.Reason = p.trace(o, kernelProgOnExit); !exit.OK {
		exit.Reason = "the end of a process is seen only when processes are listed: " + exit.Reason
	}
	exec := Feature{Name: "exec", Reason: "it needs exit"}
	if exit.OK {
		exec.OK, exec.Reason = p.trace(o, kernelProgOnExec)
	}
	if !exec.OK {
		exec.Reason = "a process that begins another program keeps the memory of the one before: " + exec.Reason
	}
	p.features = append(p.features, sched, exit, exec, growing(p.version))
	for _, c := range lacking(effective(), wanted) {
		p.features = append(p.features, Feature{Name: c.name, Reason: c.cost})
	}
}

// trace loads and attaches programs to tracepoints, or says why not.
func (p *Probe) trace(o Options, names ...string) (ok bool, why string) {
	o.NoTaskStorage = !p.features[0].OK
	if err := p.load(o, names, p.all); err != nil {
		return false, err.Error()
	}
	for _, name := range names {
		l, err := link.AttachTracing(link.TracingOptions{Program: p.programs[name]})
		if err != nil {
			return false, fmt.Sprintf("cannot attach %s: %v", name, err)
		}
		p.links = append(p.links, l)
	}
	return true, ""
}

// load loads programs by name, with new maps or those of what was loaded before.
func (p *Probe) load(o Options, names []string, shared map[string]*ebpf.Map) error {
	spec, err := loadKernel()
	if err != nil {
		return err
	}
	programs := spec.Programs
	spec.Programs = map[string]*ebpf.ProgramSpec{}
	for _, name := range names {
		spec.Programs[name] = programs[name]
		if p.mode == ModeMulti && (name == kernelProgCallEnter || name == kernelProgCallLeave) {
			programs[name].AttachType = ebpf.AttachTraceUprobeMulti
		}
	}
	if err := size(spec, o); err != nil {
		return err
	}
	if p.version.before(allocates) {
		preallocate(spec, o)
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared, Cache: p.types})
	if err != nil {
		return fmt.Errorf("cannot load %s: %w", names[0], err)
	}
	p.loaded = append(p.loaded, c)
	maps.Copy(p.programs, c.Programs)
	if shared == nil {
		p.epoch, p.all = c.Variables[kernelVarWatchEpoch], maps.Clone(c.Maps)
		return c.Assign(&p.maps)
	}
	return nil
}

// size gives the maps their sizes.
func size(spec *ebpf.CollectionSpec, o Options) error {
	threads := uint32(256)
	if o.NoTaskStorage {
		threads = 8192
		spec.Maps[kernelMapTasks].Type = ebpf.Hash // not used
		spec.Maps[kernelMapTasks].MaxEntries = 1
		if err := spec.Variables[kernelVarTaskStorage].Set(false); err != nil {
			return err
		}
	}
	spec.Maps[kernelMapThreads].MaxEntries = threads
	for name, n := range o.sizes() {
		if n > 0 {
			spec.Maps[name].MaxEntries = uint32(n)
		}
	}
	return nil
}

// sizes are how many entries of maps the options ask for, 0 for what is usual.
func (o Options) sizes() map[string]int {
	return map[string]int{
		kernelMapEvents:  o.RingBytes,
		kernelMapProcs:   o.MaxProcesses,
		kernelMapOps:     o.MaxOps,
		kernelMapKernels: o.MaxKernels,
		kernelMapNames:   o.MaxNames,
		kernelMapAllocs:  o.MaxAllocations,
		kernelMapStreams: o.MaxStreams,
		kernelMapComms:   o.MaxComms,
		kernelMapColls:   o.MaxCollectives,
	}
}

// Mode says how functions are probed: session, multi or perf.
func (p *Probe) Mode() string { return p.mode }

// Features are what the kernel and our rights offer, and what not.
func (p *Probe) Features() []Feature { return p.features }

// Close detaches and unloads everything.
func (p *Probe) Close() error {
	var errs []error
	for _, l := range p.links {
		errs = append(errs, l.Close())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ring != nil {
		errs = append(errs, p.ring.Close())
	}
	for _, c := range p.loaded {
		c.Close()
	}
	if p.loaded != nil {
		errs = append(errs, p.maps.Close())
	}
	p.links, p.loaded = nil, nil
	return errors.Join(errs...)
}

func clock(id int32) uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano())
}
