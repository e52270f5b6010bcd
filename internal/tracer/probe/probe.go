// Package probe is the interface to the kernel: it loads the eBPF programs of bpf/, attaches
// them to library functions, and reads their counts.
//
// It needs Linux 5.15 with BTF, and CAP_BPF and CAP_PERFMON (or CAP_SYS_ADMIN). Optional
// features such as scheduler events are listed with the reason if they are missing. The
// package does not search for libraries (see package target) and keeps no history (see
// package live). The objects are built from C by bpf2go and committed.
package probe

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// Ways to probe a function, best first.
const (
	ModeSession = "session" // one program for entry and return, one link per file: Linux 6.13
	ModeMulti   = "multi"   // two programs, two links per file: Linux 6.6
	ModePerf    = "perf"    // two perf events per function: Linux 5.15
)

// Options configures a Probe. Zero values mean the defaults.
type Options struct {
	Mode string // session, multi or perf; empty means the first one supported
	// NoTaskStorage keeps per-thread state in a hash map, as on kernels without task storage.
	NoTaskStorage bool
	// Keep is a folder on a bpf file system, such as /sys/fs/bpf/gpumeter, in which maps and probes
	// are kept for the next agent, so that it knows all that was seen before. It must not be used by
	// another process. Empty: nothing outlives the Probe.
	Keep string

	// Budget is the share of a thread's time that tracing it may cost, by default 0.01. Beyond it, the
	// durations of most of its launches are not measured; their number stays exact. It has an effect in
	// mode session only. Negative: no limit.
	Budget float64

	RingBytes int // size of the event buffer, a power of 2; default 512 KiB
	// Map sizes; the excess is counted in Losses. The defaults are enough for hundreds of
	// processes.
	MaxProcesses, MaxOps, MaxKernels, MaxNames, MaxAllocations, MaxStreams, MaxComms, MaxCollectives int

	version version // kernel version to assume; zero means the running one
}

// Feature is something that the kernel or our privileges may lack.
type Feature struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"` // why it is missing, and what that costs
}

// Point is one place in a file to probe.
type Point struct {
	Op     *tracer.Op
	Symbol string
	Offset uint64 // file offset of the instruction to probe
}

// Probe is a set of loaded programs. It is safe for concurrent use.
type Probe struct {
	mode      string
	features  []Feature
	maps      kernelMaps
	all       map[string]*ebpf.Map // the same plus those of variables, by name
	variables map[string]*ebpf.Variable
	programs  map[string]*ebpf.Program
	links     []pinnable // permanent attachments
	loaded    []*ebpf.Collection
	keeper    *keeper     // nil: nothing outlives this Probe
	inherited bool        // the maps are those of a previous agent
	alive     time.Time   // when that was seen last
	unkept    error       // why keeper is nil
	leaving   atomic.Bool // Close leaves what is kept
	types     *btf.Cache  // only set during Open
	version   version     // kernel version
	booted    uint64      // ns since boot when tracing began
	wall      time.Time   // wall-clock time of the kernel clock's zero, fixed then so that derived times never move

	mu        sync.Mutex
	ring      *ringbuf.Reader
	watching  uint32
	unnamed   uint64            // launches of unknown kernels of forgotten processes
	unnamedBy map[uint32]uint64 // the same per process, as last read
	unnamedAt uint64            // last reported value: a late name does not decrease it
}

// Open loads the programs. The error names what is missing, and what that costs.
func Open(o Options) (*Probe, error) {
	v := cmp.Or(o.version, kernelVersion())
	if o.Mode == "" && v.filtered(runtime.GOARCH) {
		return nil, fmt.Errorf("cannot trace: on Linux %v processes with a seccomp filter, such as those of most containers, die when a traced function returns "+
			"(fixed in 6.14, 6.13.3 and 6.12.14). If this kernel has the patch, or no traced process has a filter, choose a mode: session, multi or perf", v)
	}
	if lack := lacking(effective(), required); lack != nil {
		return nil, fmt.Errorf("cannot trace: %s", describe(lack))
	}
	types := btf.NewCache() // kernel types, several megabytes: shared by all loads, then dropped
	if _, err := types.Kernel(); err != nil {
		return nil, fmt.Errorf("cannot trace: the kernel has no BTF (CONFIG_DEBUG_INFO_BTF): %w", err)
	}
	_ = rlimit.RemoveMemlock() // needed before Linux 5.11; loading reports a failure
	modes := []string{ModeSession, ModeMulti, ModePerf}
	switch o.Mode {
	case "":
	case ModeSession, ModeMulti, ModePerf:
		modes = []string{o.Mode}
	default:
		return nil, fmt.Errorf("cannot trace in mode %q: want session, multi or perf", o.Mode)
	}
	var keep *keeper
	var unkept error
	if o.Keep != "" {
		keep, unkept = openKeeper(o.Keep)
	}
	var errs []error
	for _, mode := range modes {
		p, err := open(o, mode, types, keep)
		if err == nil {
			p.unkept = cmp.Or(p.unkept, unkept)
			p.optional(o)
			p.types = nil
			debug.FreeOSMemory() // loading uses more memory than everything after it
			return p, nil
		}
		errs = append(errs, fmt.Errorf("mode %s: %w", mode, err))
	}
	if keep != nil {
		errs = append(errs, keep.close(false))
	}
	locked, _ := os.ReadFile(lockdownFile) // absent without securityfs
	return nil, refusal(v, parseLockdown(locked), errors.Join(errs...))
}

// open loads the programs of one mode.
func open(o Options, mode string, types *btf.Cache, keep *keeper) (_ *Probe, err error) {
	p := &Probe{
		mode: mode, types: types, keeper: keep, version: cmp.Or(o.version, kernelVersion()),
		programs: map[string]*ebpf.Program{}, unnamedBy: map[uint32]uint64{}, watching: 1,
	}
	defer func() {
		if err != nil {
			p.keeper = nil // it is that of the next mode
			err = errors.Join(err, p.Close())
		}
	}()
	names := []string{kernelProgCallEnter, kernelProgCallLeave}
	if mode == ModeSession {
		names = []string{kernelProgCallSession}
	}
	storage := Feature{Name: "task_storage", OK: !o.NoTaskStorage, Reason: "disabled by options"}
	if storage.OK {
		if err = p.begin(o, names); err != nil {
			storage.Reason = err.Error()
			o.NoTaskStorage = true
		}
	}
	if o.NoTaskStorage {
		if second := p.begin(o, names); second != nil {
			return nil, errors.Join(err, second)
		}
		storage.OK = false
	}
	if storage.OK {
		storage.Reason = ""
	} else {
		storage.Reason = "per-thread state is in a hash map, at a higher cost per call: " + storage.Reason
	}
	if mode != ModePerf {
		if err := p.linkable(); err != nil {
			return nil, err
		}
	}
	if p.ring, err = ringbuf.NewReader(p.maps.Events); err != nil {
		return nil, fmt.Errorf("cannot read the ring buffer: %w", err)
	}
	if p.keeper != nil { // what another version left is of no use, and would be called as well
		if err := clearFolder(p.keeper.root, p.keeper.dir); err != nil {
			return nil, err
		}
	}
	p.features = []Feature{storage}
	return p, p.remember()
}

// optional attaches the programs that a Probe can do without.
func (p *Probe) optional(o Options) {
	sched := Feature{Name: "sched"}
	switch {
	case !p.features[0].OK:
		sched.Reason = "needs task storage"
	default:
		sched.OK, sched.Reason = p.trace(o, kernelProgOnSwitch, kernelProgOnWakeup)
	}
	if !sched.OK && p.version.before(tellsWhy) {
		sched.Reason = fmt.Sprintf("Linux %v does not report why a thread leaves its CPU, %v does: %s", p.version, tellsWhy, sched.Reason)
	}
	if !sched.OK {
		sched.Reason = "run-queue delay and blocked time of threads are unknown: " + sched.Reason
	}
	exit := Feature{Name: "exit"}
	if exit.OK, exit.Reason = p.trace(o, kernelProgOnExit); !exit.OK {
		exit.Reason = "process exits are noticed only when processes are listed: " + exit.Reason
	}
	exec := Feature{Name: "exec", Reason: "needs exit"}
	if exit.OK {
		exec.OK, exec.Reason = p.trace(o, kernelProgOnExec)
	}
	if !exec.OK {
		exec.Reason = "after exec a process keeps the memory counts of its previous program: " + exec.Reason
	}
	p.features = append(p.features, sched, exit, exec, growing(p.version))
	if o.Keep != "" {
		p.features = append(p.features, p.kept(o.Keep))
	}
	for _, c := range lacking(effective(), wanted) {
		p.features = append(p.features, Feature{Name: c.name, Reason: c.cost})
	}
}

// trace loads and attaches tracepoint programs, or returns why it cannot.
func (p *Probe) trace(o Options, names ...string) (ok bool, why string) {
	o.NoTaskStorage = !p.features[0].OK
	if err := p.load(o, names, p.all); err != nil {
		return false, err.Error()
	}
	for _, name := range names {
		if l, ok := p.adopt(name); ok {
			p.links = append(p.links, l)
			continue
		}
		l, err := link.AttachTracing(link.TracingOptions{Program: p.programs[name]})
		if err != nil {
			return false, fmt.Sprintf("cannot attach %s: %v", name, err)
		}
		p.links = append(p.links, l)
		if p.keeper != nil {
			if err := l.Pin(filepath.Join(p.keeper.dir, name)); err != nil {
				return false, fmt.Sprintf("cannot keep %s: %v", name, err)
			}
		}
	}
	return true, ""
}

// load loads programs by name, with new maps or sharing those loaded before.
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
	if err := size(spec, o, p.mode); err != nil {
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
	if p.all == nil {
		p.variables, p.all = c.Variables, maps.Clone(c.Maps)
		return c.Assign(&p.maps)
	}
	return nil
}

// size sets the sizes of the maps.
func size(spec *ebpf.CollectionSpec, o Options, mode string) error {
	threads := uint32(256)
	if o.NoTaskStorage {
		threads = 8192
		spec.Maps[kernelMapTasks].Type = ebpf.Hash // unused
		spec.Maps[kernelMapTasks].MaxEntries = 1
		if err := spec.Variables[kernelVarTaskStorage].Set(false); err != nil {
			return err
		}
	}
	spec.Maps[kernelMapThreads].MaxEntries = threads
	if err := spec.Variables[kernelVarPace].Set(o.pace(mode)); err != nil {
		return err
	}
	for name, n := range o.sizes() {
		if n > 0 {
			spec.Maps[name].MaxEntries = uint32(n)
		}
	}
	return nil
}

// price is what a traced call costs, in ns: two interrupts, of which a call that is spared has one, and what we do in them.
// It is 1500 to 1700 on the virtual machine of docs/adr/0021.
const price = 1500

// pace returns the ns between two calls of a thread below which it is spared; 0 for never. Only a session can
// decide at the entry of a call that its return is of no interest.
func (o Options) pace(mode string) uint32 {
	if mode != ModeSession || o.Budget < 0 {
		return 0
	}
	return uint32(min(price/cmp.Or(o.Budget, 0.01), math.MaxInt32))
}

// sizes returns the requested map sizes; 0 means the default.
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

// Mode returns how functions are probed: session, multi or perf.
func (p *Probe) Mode() string { return p.mode }

// Features lists what the kernel and our privileges offer.
func (p *Probe) Features() []Feature { return p.features }

// Close detaches and unloads everything, or leaves it to the next agent; see Leave.
func (p *Probe) Close() error {
	var errs []error
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.keeper != nil {
		errs = append(errs, p.keeper.close(p.leaving.Load()))
	}
	for _, l := range p.links {
		errs = append(errs, l.Close())
	}
	if p.ring != nil {
		errs = append(errs, p.ring.Close())
	}
	p.links, p.keeper, p.ring = nil, nil, nil
	return errors.Join(append(errs, p.unload())...)
}

// unload frees programs and maps.
func (p *Probe) unload() (err error) {
	for _, c := range p.loaded {
		c.Close()
	}
	if p.all != nil {
		err = p.maps.Close()
	}
	clear(p.programs)
	p.loaded, p.all, p.variables = nil, nil, nil
	return err
}

func clock(id int32) uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano())
}
