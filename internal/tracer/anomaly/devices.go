package anomaly

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/tracer"
)

// placed is a process on a device.
type placed struct {
	uuid  string
	facts *DeviceFacts   // nil: the driver says nothing of it
	busy  float64        // seconds, of this process
	own   optional.Float // its part of the device's time
	// others are the neighbours, by what they take.
	others []neighbour
}

// neighbour is another process on the same device.
type neighbour struct {
	pid    uint32
	name   string
	share  float64 // of the device's time
	copies float64 // seconds
	rate   float64 // bytes a second that it copies
}

func (n neighbour) String() string {
	if n.rate > 1e9 && n.copies > 0 {
		return fmt.Sprintf("%s has %s of its time and copies %.1f GB/s", n.name, percent(n.share), n.rate/1e9)
	}
	return fmt.Sprintf("%s has %s of its time", n.name, percent(n.share))
}

// find returns the facts of the device that a process calls d. CUDA may not have said its
// UUID: then it is the one that the driver says the process is on, if that is one.
func find(w *Window, pid uint32, d *tracer.Device, devices int) *DeviceFacts {
	var on []*DeviceFacts
	for i := range w.Devices {
		f := &w.Devices[i]
		if d.UUID != "" && f.UUID == d.UUID {
			return f
		}
		if slices.ContainsFunc(f.Processes, func(p DeviceProcess) bool { return p.PID == pid }) {
			on = append(on, f)
		}
	}
	if d.UUID == "" && devices == 1 && len(on) == 1 {
		return on[0]
	}
	return nil
}

// place finds the devices of a process and who else is on them. all are the processes of the
// window by pid, with what they did in it.
func (s *sample) place(w *Window, p *tracer.Process, all map[uint32]*running) []placed {
	var list []placed
	for i := range p.Devices {
		d := &p.Devices[i]
		f := find(w, p.PID, d, len(p.Devices))
		on := placed{uuid: d.UUID, facts: f, busy: s.busy[d.Ordinal]}
		if f != nil {
			on.uuid = f.UUID
			on.neighbours(w, p.PID, s.seconds, all)
		}
		list = append(list, on)
	}
	slices.SortStableFunc(list, func(a, b placed) int { return cmp.Compare(b.busy, a.busy) })
	return list
}

// neighbours finds the other processes on the device: those the driver lists and those we
// trace on it, which a driver in another pid namespace does not name.
func (on *placed) neighbours(w *Window, pid uint32, seconds float64, all map[uint32]*running) {
	listed := map[uint32]bool{}
	for _, p := range on.facts.Processes {
		listed[p.PID] = true
		if p.PID == pid {
			on.own = p.Utilization
			continue
		}
		on.add(w, p, seconds, all[p.PID])
	}
	for other, r := range all {
		if other != pid && !listed[other] && r.sample != nil && r.busyOn(w, on.facts) > 0 {
			on.add(w, DeviceProcess{PID: other, Name: r.process.Name}, seconds, r)
		}
	}
	slices.SortFunc(on.others, func(a, b neighbour) int {
		return cmp.Or(cmp.Compare(b.share+b.copies/seconds, a.share+a.copies/seconds), cmp.Compare(a.pid, b.pid))
	})
}

// add takes in one neighbour. r is what we saw of it, nil if nothing.
func (on *placed) add(w *Window, p DeviceProcess, seconds float64, r *running) {
	n := neighbour{pid: p.PID, name: fmt.Sprintf("%s (pid %d)", p.Name, p.PID)}
	if p.Workload != "" {
		n.name = fmt.Sprintf("%s (pid %d, %s)", p.Name, p.PID, p.Workload)
	}
	share, known := p.Utilization.Get()
	if r != nil && r.sample != nil {
		n.copies, n.rate = r.sample.copies, r.sample.copied/seconds
		// Submitted-to-synced of both: two that are always busy have a half each. A driver
		// that has no sample of a process yet says 0.
		if theirs := r.busyOn(w, on.facts); !known || share == 0 && theirs > 0 {
			share = ratio(theirs, theirs+on.busy)
		}
	}
	n.share = clip(share)
	on.others = append(on.others, n)
}

// running is a process of the window with what it did in it.
type running struct {
	process *tracer.Process
	sample  *sample // nil: it is new, or its counters began anew
	placed  []placed
}

// busyOn returns how long the process was busy on a device.
func (r *running) busyOn(w *Window, f *DeviceFacts) float64 {
	busy := 0.0
	for i := range r.process.Devices {
		d := &r.process.Devices[i]
		if find(w, r.process.PID, d, len(r.process.Devices)) == f {
			busy += r.sample.busy[d.Ordinal]
		}
	}
	return busy
}

// deviceSignals fills in the values of the devices.
func (s *sample) deviceSignals(list []placed) {
	own, known := 0.0, false
	for _, on := range list {
		f := on.facts
		if f == nil {
			continue
		}
		if v, ok := f.SMClock.Get(); ok && v > 0 {
			s.values["clock "+on.uuid] = v
		}
		if v, ok := f.PowerLimit.Get(); ok && v > 0 {
			s.values["limit "+on.uuid] = v
		}
		share, copies := 0.0, 0.0
		for _, n := range on.others {
			share += n.share
			copies += n.copies / s.seconds
		}
		s.values["neighbours "+on.uuid] = min(1, share)
		s.values["neighbour copies "+on.uuid] = min(1, copies)
		if v, ok := on.own.Get(); ok {
			own += clip(v)
			known = true
		}
	}
	if known && s.launches >= minCalls {
		s.values["gpu"] = own * s.seconds / s.launches
	}
}
