//go:build linux

package live

import (
	"cmp"
	"maps"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// known is what is kept about a process between two snapshots.
type known struct {
	since   time.Time // as first read; never changes, and distinguishes processes that reuse a pid
	name    string
	older   bool
	on      []string // the devices on which the driver last listed the process
	settled settled
	kernels chooser
	ranks   ranks
}

// complete adds what the kernel programs do not know. It returns the communicators whose ID it changed.
func (t *Tracer) complete(p *tracer.Process, now time.Time, gpus map[uint32][]string) (renamed map[string]string) {
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
	renamed = k.ranks.complete(p, memoryOf(t.o.Proc), t.find.silent)
	p.Measured = t.inspect.of(p.PID)
	all := t.names.merged(p.Kernels)
	p.Launches = launchesOf(all)
	p.Kernels, p.KernelsFolded = k.kernels.choose(all)
	for i := range p.Devices {
		d := &p.Devices[i]
		key := memoryKey{p.PID, d.Ordinal}
		h := t.memory[key]
		if h == nil {
			h = &history{}
			t.memory[key] = h
		}
		t.find.current(&d.Memory, now)
		h.add(now, d.Memory)
		d.Memory.Growth, d.Memory.Leak = h.growth()
	}
	return renamed
}

// launchesOf returns the launches by kernel, without those that the kernel programs have summed up.
func launchesOf(kernels []tracer.Kernel) map[string]uint64 {
	if len(kernels) == 0 {
		return nil
	}
	m := make(map[string]uint64, min(len(kernels), tracer.MaxLaunches))
	for i := range kernels {
		name := kernels[i].Name
		if _, ok := m[name]; name != tracer.KernelOther && name != tracer.KernelUnknown && (ok || len(m) < tracer.MaxLaunches) {
			m[name] += kernels[i].Count
		}
	}
	return m
}

// forget drops the state of processes that are gone.
func (t *Tracer) forget(gone func(pid uint32) bool) {
	maps.DeleteFunc(t.known, func(pid uint32, _ *known) bool { return gone(pid) })
	maps.DeleteFunc(t.memory, func(k memoryKey, _ *history) bool { return gone(k.pid) })
}
