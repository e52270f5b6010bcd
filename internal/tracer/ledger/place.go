package ledger

import (
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Places indexes the devices of a tick and the processes on them.
type Places struct {
	byUUID map[string]*node.Reading
	ofPID  map[uint32][]*node.Reading // devices on which the driver lists the process; partitions before their parents
	only   *node.Reading              // the only device of the machine, if there is one
}

// NewPlaces returns the devices of t.
func NewPlaces(t *node.Tick) Places {
	p := Places{byUUID: map[string]*node.Reading{}, ofPID: map[uint32][]*node.Reading{}}
	devices := 0
	for i := range t.Readings {
		r := &t.Readings[i]
		p.byUUID[r.ID.UUID] = r
		if r.ID.Parent == "" {
			devices++
			p.only = r
		}
		for _, proc := range r.Processes {
			p.ofPID[proc.PID] = append(p.ofPID[proc.PID], r)
		}
	}
	for i := range t.Readings { // a partition is more specific than its device
		if devices > 1 || t.Readings[i].ID.Parent != "" {
			p.only = nil
		}
	}
	for pid, list := range p.ofPID {
		p.ofPID[pid] = slices.DeleteFunc(list, func(r *node.Reading) bool {
			return slices.ContainsFunc(list, func(o *node.Reading) bool { return o.ID.Parent == r.ID.UUID && o.ID.Parent != "" })
		})
	}
	return p
}

// GPUs returns the processes that the driver lists, with the UUIDs of their devices or partitions.
func (p Places) GPUs() map[uint32][]string {
	all := make(map[uint32][]string, len(p.ofPID))
	for pid, list := range p.ofPID {
		for _, r := range list {
			all[pid] = append(all[pid], r.ID.UUID)
		}
	}
	return all
}

// device returns the device that CUDA calls ordinal in a process: the one CUDA reported; else the only
// device on which the driver lists the process; else the only device of the machine.
func (p Places) device(proc *tracer.Process, ordinal int) device.ID {
	if ordinal < 0 && len(proc.Devices) == 1 {
		ordinal = proc.Devices[0].Ordinal
	}
	for i := range proc.Devices {
		d := &proc.Devices[i]
		if d.Ordinal != ordinal || d.UUID == "" {
			continue
		}
		if r := p.byUUID[d.UUID]; r != nil {
			return r.ID
		}
		return device.ID{UUID: d.UUID, Index: -1}
	}
	if on := p.ofPID[proc.PID]; len(on) == 1 && len(proc.Devices) <= 1 {
		return on[0].ID
	}
	if p.only != nil {
		return p.only.ID
	}
	return device.ID{Index: -1}
}

// owner returns the sole workload of all devices of a process, and false if there is none.
func (p Places) owner(proc *tracer.Process) (w workload.Workload, ok bool) {
	for i := range proc.Devices {
		r := p.byUUID[p.device(proc, proc.Devices[i].Ordinal).UUID]
		if r == nil || r.Owner == nil || ok && r.Owner.ID != w.ID {
			return workload.Workload{}, false
		}
		w, ok = *r.Owner, true
	}
	return w, ok
}

// Pair is an attribute of a workload or a device.
type Pair = workload.Attribute

// place returns the attributes of a device except its index, and none for an unknown device.
func place(id device.ID) []Pair {
	if id.UUID == "" {
		return nil
	}
	list := []Pair{{Key: "gpu.uuid", Value: id.Physical()}}
	for _, p := range []Pair{{Key: "gpu.model", Value: id.Model}, {Key: "gpu.vendor", Value: id.Vendor}} {
		if p.Value != "" {
			list = append(list, p)
		}
	}
	if id.Parent != "" {
		list = append(list, Pair{Key: "gpu.partition.id", Value: id.UUID})
		if id.Profile != "" {
			list = append(list, Pair{Key: "gpu.partition.profile", Value: id.Profile})
		}
	}
	return list
}

// text joins attributes into one key.
func text(list []Pair) string {
	var b strings.Builder
	for _, p := range list {
		b.WriteString(p.Key)
		b.WriteByte(0)
		b.WriteString(p.Value)
		b.WriteByte(0)
	}
	return b.String()
}
