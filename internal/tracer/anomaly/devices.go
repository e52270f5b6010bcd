package anomaly

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/tracer"
)

// placed is a process on a device.
type placed struct {
	uuid  string
	facts *DeviceFacts   // nil if the driver does not report the device
	busy  float64        // seconds of this process
	own   optional.Float // fraction of the device's time
	// others are the neighbors, ordered by what they take.
	others []neighbour
}

// neighbour is another process on the same device.
type neighbour struct {
	pid    uint32
	name   string
	share  float64 // fraction of the device's time
	copies float64 // seconds
	rate   float64 // bytes per second copied
}

func (n neighbour) String() string {
	if n.rate > 1e9 && n.copies > 0 {
		return fmt.Sprintf("%s uses %s of the device's time and copies %.1f GB/s", n.name, percent(n.share), n.rate/1e9)
	}
	return fmt.Sprintf("%s uses %s of the device's time", n.name, percent(n.share))
}

// find returns the facts of the device that a process calls d. If CUDA did not report its
// UUID, it is the device on which the driver lists the process, provided there is only one.
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

// place finds the devices of a process and the other processes on them. all are the
// processes of the window by pid.
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

// neighbours finds the other processes on the device: those listed by the driver, and traced
// ones, which a driver in another pid namespace does not list.
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
	if !on.own.OK() && len(on.others) == 0 { // alone on the device
		on.own = on.facts.Utilization
	}
	slices.SortFunc(on.others, func(a, b neighbour) int {
		return cmp.Or(cmp.Compare(b.share+b.copies/seconds, a.share+a.copies/seconds), cmp.Compare(a.pid, b.pid))
	})
}

// add adds one neighbor. r is what was traced of it, or nil.
func (on *placed) add(w *Window, p DeviceProcess, seconds float64, r *running) {
	n := neighbour{pid: p.PID, name: fmt.Sprintf("%s (pid %d)", p.Name, p.PID)}
	if p.Workload != "" {
		n.name = fmt.Sprintf("%s (pid %d, %s)", p.Name, p.PID, p.Workload)
	}
	share, known := p.Utilization.Get()
	if r != nil && r.sample != nil {
		n.copies, n.rate = r.sample.copies, r.sample.copied/seconds
		// Both are submitted-to-synced: two processes that are always busy have half each. A
		// driver without a sample of a process reports 0.
		if theirs := r.busyOn(w, on.facts); !known || share == 0 && theirs > 0 {
			share = ratio(theirs, theirs+on.busy)
		}
	}
	n.share = clip(share)
	on.others = append(on.others, n)
}

// running is a process in a window.
type running struct {
	process *tracer.Process
	sample  *sample // nil for a new process or after a counter reset
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

// deviceSignals adds the device signals.
func (s *sample) deviceSignals(list []placed) {
	own, cycles, power := 0.0, 0.0, 0.0
	known, clocked, powered := false, true, true
	for _, on := range list {
		f := on.facts
		if f == nil {
			clocked, powered = false, false
			continue
		}
		clock, ok := f.SMClock.Get()
		if ok = ok && clock > 0 && !math.IsInf(clock, 0); ok {
			s.values["clock "+on.uuid] = clock
		} else {
			clocked = false
		}
		if v, ok := f.PowerLimit.Get(); ok && v > 0 {
			s.values["limit "+on.uuid] = v
		}
		if v, ok := f.Power.Get(); ok && v > 0 {
			power += v
		} else {
			powered = false
		}
		share, copies := 0.0, 0.0
		for _, n := range on.others {
			share += n.share
			copies += n.copies / s.seconds
		}
		s.values["neighbours "+on.uuid] = min(1, share)
		s.values["neighbour copies "+on.uuid] = min(1, copies)
		// A driver without a sample of a process reports 0.
		if v := clip(on.own.Default(0)); v > 0 {
			own += v
			cycles += v * clock
			known = true
		}
	}
	if powered && len(list) > 0 {
		s.values["power"] = power
	}
	if !known || s.launches < minCalls {
		return
	}
	s.values["gpu"] = own * s.seconds / s.launches
	if clocked {
		s.values["cycles"] = cycles * s.seconds / s.launches
	}
	if len(list) == 1 { // with several devices it is unknown which of them is waited for
		s.values["rest"] = (1 - own) * s.seconds / s.launches
	}
}
