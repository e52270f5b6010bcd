package discover

import (
	"cmp"
	"slices"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// devices returns the devices that an engine works on: those on which it has a process, else those that its
// workload holds. The processes that are nearest to the one that serves the page count: several engines
// can be in one container.
func devices(t *node.Tick, e *engine, w *workload.Workload) []device.ID {
	on := map[device.ID]bool{}
	for _, pids := range []set{e.near, e.tree, e.group} {
		for i := range t.Readings {
			r := &t.Readings[i]
			if slices.ContainsFunc(r.Processes, func(p device.Process) bool { return pids[p.PID] }) {
				on[r.ID] = true
			}
		}
		if len(on) > 0 {
			break
		}
	}
	held := holds(t, w)
	if len(on) == 0 {
		on = held
	}
	var out []device.ID
	for i := range t.Readings {
		if id := t.Readings[i].ID; on[id] && !split(t, id, on) && !split(t, id, held) || held[id] && !on[id] && fills(t, id, on) {
			out = append(out, id)
		}
	}
	return out
}

// split reports whether a partition of a device is among devices. Drivers list the processes of a partition
// on its device, too.
func split(t *node.Tick, id device.ID, among map[device.ID]bool) bool {
	return slices.ContainsFunc(t.Readings, func(r node.Reading) bool { return r.ID.Parent != "" && r.ID.Parent == id.UUID && among[r.ID] })
}

// fills reports whether only the device that a partition belongs to is among devices, for lack of a driver
// that lists processes by partition.
func fills(t *node.Tick, id device.ID, among map[device.ID]bool) bool {
	return slices.ContainsFunc(t.Readings, func(r node.Reading) bool {
		return id.Parent != "" && r.ID.UUID == id.Parent && among[r.ID] && !split(t, r.ID, among)
	})
}

// holds returns the devices and partitions that a workload holds.
func holds(t *node.Tick, w *workload.Workload) map[device.ID]bool {
	out := map[device.ID]bool{}
	if w == nil || !tells(w) {
		return out
	}
	units := map[string]bool{}
	for i := range t.Readings {
		r := &t.Readings[i]
		for _, h := range r.Holders {
			if h.ID == w.ID && !h.Ended {
				units[cmp.Or(h.Partition, r.ID.UUID)] = true
			}
		}
		if len(r.Holders) == 0 && r.Owner != nil && r.Owner.ID == w.ID {
			units[r.ID.UUID] = true
		}
	}
	for i := range t.Readings {
		if id := t.Readings[i].ID; units[id.UUID] {
			out[id] = true
		}
	}
	return out
}
