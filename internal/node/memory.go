package node

import (
	"slices"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// remember sets the memory of each share. The shares of a unit add up to the unit.
func (u portion) remember(list []share, named func(uint32) string) {
	if !u.reading.Up {
		return
	}
	used := u.reading.Memory.Used
	if len(list) == 1 {
		list[0].memory = used
		return
	}
	byID, known := map[string]float64{}, false
	for _, p := range u.reading.Processes {
		v, ok := p.MemoryUsed.Get()
		if !ok {
			continue
		}
		known = true
		byID[named(p.PID)] += v
	}
	total, ok := used.Get()
	if !known && total > 0 {
		return // the driver does not report it
	}
	sum := 0.0
	for _, s := range list {
		sum += byID[s.ID]
	}
	scale, rest := 1.0, 0.0
	switch {
	case !ok: // only the processes are known
	case sum > total: // memory that processes share is counted for each, or they were read later
		scale = total / sum
	default:
		rest = total - sum // what the driver itself uses
	}
	for i, part := range restParts(list) {
		list[i].memory = device.Of(byID[list[i].ID]*scale + rest*part)
	}
}

// restParts returns how memory that belongs to no process is divided: all of it to what nobody
// holds, and if everything is held, by allocation.
func restParts(list []share) []float64 {
	parts := make([]float64, len(list))
	if i := slices.IndexFunc(list, func(s share) bool { return s.Kind == workload.Unallocated }); i >= 0 {
		parts[i] = 1
		return parts
	}
	sum := 0.0
	for _, s := range list {
		sum += s.alloc
	}
	for i, s := range list {
		parts[i] = 1 / float64(len(list)) // the size of the unit is unknown
		if sum > 0 {
			parts[i] = s.alloc / sum
		}
	}
	return parts
}
