//go:build linux

package live

import (
	"cmp"
	"slices"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// settled is the decision, made once, about a process's calls on an unknown device: those of
// threads that took their context before tracing.
type settled struct {
	done    bool
	ordinal int // -1: the calls stay unassigned
}

const nowhere = -1

// settle assigns the calls of a process on an unknown device to the only device it can use.
// on are the devices on which the driver lists the process; asked is set if the driver was
// queried. The decision is made when such a call first occurs: counts that move later would
// be counted twice by consumers.
func (s *settled) settle(p *tracer.Process, on []string, asked bool) {
	ordinals, lost := ordinalsOf(p)
	if lost && !s.done {
		s.ordinal = nowhere
		switch {
		case len(ordinals) == 1 && len(on) <= 1:
			s.ordinal = ordinals[0]
		case len(ordinals) == 0 && len(on) == 1:
			s.ordinal = 0 // CUDA's ordinal of the only visible device
		case len(on) == 1:
			for _, d := range p.Devices {
				if d.UUID == on[0] {
					s.ordinal = d.Ordinal
				}
			}
		}
		s.done = s.ordinal != nowhere || asked
	}
	if s.done && s.ordinal != nowhere && lost {
		move(p, s.ordinal)
	}
	if len(p.Devices) == 1 && p.Devices[0].UUID == "" && len(on) == 1 {
		p.Devices[0].UUID = on[0]
	}
}

// ordinalsOf returns the devices that a process uses, and whether it has calls on an unknown
// device.
func ordinalsOf(p *tracer.Process) (known []int, lost bool) {
	seen := func(ordinal int) {
		if ordinal == nowhere {
			lost = true
		} else if !slices.Contains(known, ordinal) {
			known = append(known, ordinal)
		}
	}
	for i := range p.Devices {
		seen(p.Devices[i].Ordinal)
	}
	for i := range p.Ops {
		seen(p.Ops[i].Device)
	}
	for i := range p.Kernels {
		if p.Kernels[i].Name != tracer.KernelOther {
			seen(p.Kernels[i].Device)
		}
	}
	for i := range p.Comms {
		seen(p.Comms[i].Device)
	}
	return known, lost
}

// move adds the counts on the unknown device to those on device to. Kernels are merged when
// they are named.
func move(p *tracer.Process, to int) {
	for i := range p.Kernels {
		if p.Kernels[i].Device == nowhere {
			p.Kernels[i].Device = to
		}
	}
	for i := range p.Comms {
		if p.Comms[i].Device == nowhere {
			p.Comms[i].Device = to
		}
	}
	var ops []tracer.OpStat
	for _, o := range p.Ops {
		if o.Device == nowhere {
			o.Device = to
		}
		i := slices.IndexFunc(ops, func(have tracer.OpStat) bool {
			return have.Op == o.Op && have.Kind == o.Kind && have.Device == o.Device
		})
		if i < 0 {
			ops = append(ops, o)
			continue
		}
		ops[i].Bytes += o.Bytes
		ops[i].Time = ops[i].Time.Add(o.Time)
		ops[i].Errors = addCodes(ops[i].Errors, o.Errors)
	}
	p.Ops = ops
	var devices []tracer.Device
	for _, d := range p.Devices {
		if d.Ordinal == nowhere {
			d.Ordinal = to
		}
		i := slices.IndexFunc(devices, func(have tracer.Device) bool { return have.Ordinal == d.Ordinal })
		if i < 0 {
			devices = append(devices, d)
			continue
		}
		addDevice(&devices[i], d)
	}
	slices.SortFunc(devices, func(a, b tracer.Device) int { return cmp.Compare(a.Ordinal, b.Ordinal) })
	p.Devices = devices
}

func addCodes(a, b []tracer.CodeCount) []tracer.CodeCount {
	out := slices.Clone(a)
	for _, c := range b {
		i := slices.IndexFunc(out, func(have tracer.CodeCount) bool { return have.Code == c.Code })
		if i < 0 {
			out = append(out, c)
		} else {
			out[i].Count += c.Count
		}
	}
	slices.SortFunc(out, func(a, b tracer.CodeCount) int { return cmp.Compare(a.Code, b.Code) })
	return out
}

func addDevice(d *tracer.Device, o tracer.Device) {
	d.UUID = cmp.Or(d.UUID, o.UUID)
	d.Busy += o.Busy
	d.Wait += o.Wait
	d.Bubble += o.Bubble
	if d.WaitingSince.IsZero() || !o.WaitingSince.IsZero() && o.WaitingSince.Before(d.WaitingSince) {
		d.WaitingSince = o.WaitingSince
	}
	m, n := &d.Memory, o.Memory
	m.Reserved += n.Reserved
	m.Peak += n.Peak
	m.Allocations += n.Allocations
	m.Frees += n.Frees
	m.Allocated += n.Allocated
	m.Pool += n.Pool
	m.Framework = m.Framework || n.Framework
	m.Oldest = max(m.Oldest, n.Oldest)
}
