package probe

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

const errNoSpace = unix.ENOSPC

// reading is one pass over the maps.
type reading struct {
	now     time.Time
	clock   uint64 // kernel clock at now
	procs   map[uint32]*tracer.Process
	devices map[kernelDevKey]*tracer.Device
	ops     map[kernelOpKey]*tracer.OpStat
	unnamed map[uint32]uint64
	errs    []error
}

// time converts the kernel's clock to wall-clock time; 0 is the zero time.
func (r *reading) time(ns uint64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return r.now.Add(time.Duration(ns - r.clock))
}

func (r *reading) add(err error) {
	if err != nil {
		r.errs = append(r.errs, err)
	}
}

// Read returns what all processes did, by pid, cumulative since each was first seen, and what
// is missing from the counts. After exec a process is listed twice, the first one as ended.
// Everything that could be read is returned together with the error.
func (p *Probe) Read(now time.Time) ([]tracer.Process, tracer.Losses, error) {
	r := &reading{
		now: now, clock: clock(unix.CLOCK_MONOTONIC),
		procs: map[uint32]*tracer.Process{}, devices: map[kernelDevKey]*tracer.Device{},
		ops: map[kernelOpKey]*tracer.OpStat{}, unnamed: map[uint32]uint64{},
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.loaded == nil {
		return nil, tracer.Losses{}, errors.New("cannot read: probe is closed")
	}
	var asleep uint32
	if err := p.variables[kernelVarAsleep].Get(&asleep); err == nil && asleep != 0 {
		r.add(tracer.ErrAsleep)
	}
	others := map[uint32]kernelProcVal{}
	r.add(each(p.maps.Procs, func(k kernelProcKey, v *kernelProcVal) {
		r.procs[k.Tgid] = p.process(k.Tgid, v)
		if v.OtherCount > 0 {
			others[k.Tgid] = *v
		}
	}))
	r.readOps(p)
	r.readKernels(p)
	for pid, v := range others {
		proc := r.procs[pid]
		proc.Kernels = append(proc.Kernels, tracer.Kernel{Name: tracer.KernelOther, Device: -1, Count: v.OtherCount, Time: time.Duration(v.OtherNs)})
	}
	r.readDevices(p)
	r.readComms(p)
	p.unnamedBy = r.unnamed
	out := make([]tracer.Process, 0, len(r.procs))
	for _, proc := range r.procs {
		out = append(out, *proc)
	}
	slices.SortFunc(out, func(a, b tracer.Process) int { return cmp.Or(cmp.Compare(a.PID, b.PID), a.Since.Compare(b.Since)) })
	losses, err := p.losses()
	r.add(err)
	return out, losses, errors.Join(r.errs...)
}

func (p *Probe) process(pid uint32, v *kernelProcVal) *tracer.Process {
	return &tracer.Process{
		PID: pidOf(pid), Name: text(v.Comm[:]), Since: p.wall.Add(time.Duration(v.First)), Ended: v.Ended > 0, Older: v.Start < p.booted,
		Host: tracer.Host{
			Threads: int(v.Threads), Switches: v.Switches,
			RunQueue: time.Duration(v.RunQueue), Blocked: time.Duration(v.Blocked),
			RunQueueInCall: time.Duration(v.RunQueueIn), BlockedInCall: time.Duration(v.BlockedIn),
			Known: p.features[1].OK,
		},
	}
}

func (r *reading) readOps(p *Probe) {
	r.add(each(p.maps.Ops, func(k kernelOpKey, v *kernelOpVal) {
		op := tracer.OpByID(k.Op)
		if op == nil || r.procs[k.Tgid] == nil {
			return
		}
		r.ops[k] = &tracer.OpStat{
			Op: op.Name, Class: op.Class, Device: int(k.Dev), Kind: tracer.Kind(k.Kind).String(), Bytes: v.Bytes,
			Time: tracer.NewHistogram(float64(v.Ns)/1e9, tracer.TimeOffset, v.Buckets[:]), Wait: time.Duration(v.Wait),
		}
	}))
	r.add(each(p.maps.Errors, func(k kernelErrorKey, n *uint64) {
		if op := r.ops[kernelOpKey{Tgid: k.Tgid, Op: k.Op, Kind: k.Kind, Dev: k.Dev}]; op != nil {
			op.Errors = append(op.Errors, tracer.CodeCount{Code: k.Code, Count: *n})
		}
	}))
	keys := make([]kernelOpKey, 0, len(r.ops))
	for k := range r.ops {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b kernelOpKey) int {
		return cmp.Or(cmp.Compare(a.Tgid, b.Tgid), cmp.Compare(a.Op, b.Op), cmp.Compare(a.Dev, b.Dev), cmp.Compare(a.Kind, b.Kind))
	})
	for _, k := range keys {
		op := r.ops[k]
		slices.SortFunc(op.Errors, func(a, b tracer.CodeCount) int { return cmp.Compare(a.Code, b.Code) })
		r.procs[k.Tgid].Ops = append(r.procs[k.Tgid].Ops, *op)
	}
}

// readKernels merges handles with the same name: every loaded module has its own.
func (r *reading) readKernels(p *Probe) {
	type id struct {
		pid    uint32
		dev    int32
		symbol string
	}
	names := map[kernelHandleKey]string{}
	r.add(each(p.maps.Names, func(k kernelHandleKey, v *kernelName) { names[k] = text(v.Text[:]) }))
	kernels := map[id]*tracer.Kernel{}
	r.add(each(p.maps.Kernels, func(k kernelKernelKey, v *kernelKernelVal) {
		symbol := names[kernelHandleKey{Tgid: k.Tgid, Handle: k.Handle}]
		if symbol == "" {
			r.unnamed[k.Tgid] += v.Count
		}
		at := id{k.Tgid, k.Dev, symbol}
		kernel := kernels[at]
		if kernel == nil {
			kernel = &tracer.Kernel{Symbol: symbol, Device: int(k.Dev)}
			kernels[at] = kernel
		}
		kernel.Count += v.Count
		kernel.Time += time.Duration(v.Ns)
		if symbol == "" {
			kernel.Name = tracer.KernelUnknown // not a single kernel: no dimensions
			return
		}
		kernel.Grid, kernel.Block, kernel.Shared = [3]uint32(v.Dims[0:3]), [3]uint32(v.Dims[3:6]), v.Dims[6]
	}))
	for at, kernel := range kernels {
		if proc := r.procs[at.pid]; proc != nil {
			proc.Kernels = append(proc.Kernels, *kernel)
		}
	}
	for _, proc := range r.procs {
		slices.SortFunc(proc.Kernels, func(a, b tracer.Kernel) int {
			return cmp.Or(cmp.Compare(b.Time, a.Time), cmp.Compare(a.Symbol, b.Symbol), cmp.Compare(a.Device, b.Device))
		})
	}
}

func (r *reading) readDevices(p *Probe) {
	resets := map[kernelDevKey]uint64{}
	r.add(each(p.maps.Devs, func(k kernelDevKey, v *kernelDevVal) {
		d := &tracer.Device{
			Ordinal: int(k.Dev), Busy: time.Duration(v.Busy), Wait: time.Duration(v.Wait), Bubble: time.Duration(v.Bubble),
			WaitingSince: r.time(v.WaitingSince),
			Memory: tracer.Memory{
				Reserved: v.Reserved, Peak: v.Peak, Allocations: v.Allocs, Frees: v.Frees,
				Allocated: v.Allocated, Pool: v.Pool, Framework: v.Framework > 0, Reported: r.time(v.Framework),
			},
		}
		r.devices[k] = d
		if v.Reset > 0 {
			resets[k] = v.Reset
		}
	}))
	r.add(each(p.maps.Uuids, func(k kernelDevKey, v *kernelUuid) {
		if d := r.devices[k]; d != nil {
			d.UUID = uuid(v)
		}
	}))
	contexts := map[kernelHandleKey]uint64{} // when they were made
	r.add(each(p.maps.Contexts, func(k kernelHandleKey, v *kernelContextVal) { contexts[k] = v.Since }))
	freed := map[kernelAllocKey]uint64{} // all that were allocated until then
	r.add(each(p.maps.Allocs, func(k kernelAllocKey, v *kernelAllocVal) {
		at := kernelDevKey{Tgid: k.Tgid, Dev: v.Dev}
		if v.Since <= resets[at] {
			freed[k] = resets[at]
			return
		}
		if v.Context != 0 {
			if made, ok := contexts[kernelHandleKey{Tgid: k.Tgid, Handle: v.Context}]; !ok || made > v.Since {
				freed[k] = v.Since
				return
			}
		}
		if d := r.devices[at]; d != nil && v.Memory != 0 && v.Memory != tracer.MemoryManaged && r.clock > v.Since {
			d.Memory.Oldest = max(d.Memory.Oldest, time.Duration(r.clock-v.Since))
		}
	}))
	for k, before := range freed {
		var v kernelAllocVal
		if err := p.maps.Allocs.Lookup(&k, &v); err == nil && v.Since <= before { // otherwise the address was reused
			_ = p.maps.Allocs.Delete(&k)
		}
	}
	for k, d := range r.devices {
		if proc := r.procs[k.Tgid]; proc != nil {
			proc.Devices = append(proc.Devices, *d)
		}
	}
	for _, proc := range r.procs {
		slices.SortFunc(proc.Devices, func(a, b tracer.Device) int { return cmp.Compare(a.Ordinal, b.Ordinal) })
	}
}

// uuid formats a UUID like the driver. The second version of the call returns the UUID of the
// MIG instance, the first that of the whole device.
func uuid(v *kernelUuid) string {
	id, prefix := v.Second, "GPU-"
	switch {
	case v.Has&2 == 0:
		id = v.First
	case v.Has&1 != 0 && v.First != v.Second:
		prefix = "MIG-"
	}
	return fmt.Sprintf("%s%x-%x-%x-%x-%x", prefix, id[0:4], id[4:6], id[6:8], id[8:10], id[10:16])
}

// losses sums the kernel's loss counters.
func (p *Probe) losses() (tracer.Losses, error) {
	var errs []error
	count := func(what kernelLoss) uint64 {
		var each []uint64
		key := uint32(what)
		if err := p.maps.Losses.Lookup(&key, &each); err != nil {
			errs = append(errs, err)
		}
		var sum uint64
		for _, n := range each {
			sum += n
		}
		return sum
	}
	l := tracer.Losses{
		Events:   count(kernelLossLOSS_RING),
		Limited:  count(kernelLossLOSS_LIMITED),
		Nested:   count(kernelLossLOSS_NESTED),
		NoReturn: count(kernelLossLOSS_NO_RETURN),
		Faults:   count(kernelLossLOSS_FAULT),
		Spared:   count(kernelLossLOSS_SPARED),
		MapFull:  map[string]uint64{},
		Unnamed:  p.unnamed,
	}
	for what, name := range fullNames {
		if n := count(what); n > 0 {
			l.MapFull[name] = n
		}
	}
	for _, n := range p.unnamedBy {
		l.Unnamed += n
	}
	p.unnamedAt = max(p.unnamedAt, l.Unnamed)
	l.Unnamed = p.unnamedAt
	for _, program := range p.programs {
		if stats, err := program.Stats(); err == nil {
			l.Missed += stats.RecursionMisses
		}
	}
	return l, errors.Join(errs...)
}

var fullNames = map[kernelLoss]string{
	kernelLossFULL_TASKS:    "threads",
	kernelLossFULL_PROCS:    "processes",
	kernelLossFULL_OPS:      "ops",
	kernelLossFULL_ERRORS:   "errors",
	kernelLossFULL_KERNELS:  "kernels",
	kernelLossFULL_NAMES:    "names",
	kernelLossFULL_ALLOCS:   "allocations",
	kernelLossFULL_DEVS:     "devices",
	kernelLossFULL_UUIDS:    "uuids",
	kernelLossFULL_STREAMS:  "streams",
	kernelLossFULL_CONTEXTS: "contexts",
	kernelLossFULL_COMMS:    "communicators",
	kernelLossFULL_COLLS:    "collectives",
}

// text returns the printable text before the first zero byte.
func text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return strings.ToValidUTF8(string(b), "?")
}
