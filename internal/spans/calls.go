package spans

import (
	"cmp"
	"slices"
)

// Calls counts what a process asked of CUDA since it was first seen.
type Calls struct {
	Launches float64
	Busy     float64 // seconds from the first launch to the synchronization that waited for it
	Copied   float64 // bytes
	Waited   float64 // seconds in synchronizing calls
}

// sub returns c less o; false if a count fell, because the process is another one.
func (c Calls) sub(o Calls) (Calls, bool) {
	d := Calls{c.Launches - o.Launches, c.Busy - o.Busy, c.Copied - o.Copied, c.Waited - o.Waited}
	return d, d.Launches >= 0 && d.Copied >= 0
}

func (c Calls) plus(o Calls, times float64) Calls {
	return Calls{c.Launches + times*o.Launches, c.Busy + times*o.Busy, c.Copied + times*o.Copied, c.Waited + times*o.Waited}
}

const (
	maxProcesses = 256 // that are traced
	maxReadings  = 128 // of each
)

// reading is what the tracer counted until a moment.
type reading struct {
	at int64
	Calls
}

// Traced adds a reading of the tracer: the counts of all processes at a moment.
func (b *Board) Traced(at int64, all map[uint32]Calls) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.traced == nil {
		b.traced = map[uint32][]reading{}
	}
	for pid := range b.traced {
		if _, ok := all[pid]; !ok {
			if list := b.traced[pid]; at-list[len(list)-1].at > history*1e9 {
				delete(b.traced, pid) // it ended
			}
		}
	}
	for pid, c := range all {
		list, known := b.traced[pid]
		if !known && len(b.traced) >= maxProcesses {
			continue
		}
		if n := len(list); n > 0 {
			if _, ok := c.sub(list[n-1].Calls); !ok || at <= list[n-1].at {
				list = nil
			}
		}
		if len(list) >= maxReadings {
			list = slices.Delete(list, 0, 1)
		}
		b.traced[pid] = append(list, reading{at, c})
	}
}

// Calls estimates what a process asked of CUDA between two moments: what it did between two readings is
// spread evenly over the time between them, and after the last one goes on for as long as that took. It reports
// false if part of the time is not known.
func (b *Board) Calls(pid uint32, from, to int64) (Calls, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.traced[pid]
	n := len(list)
	if n < 2 || from < list[0].at || to > 2*list[n-1].at-list[n-2].at {
		return Calls{}, false
	}
	i, _ := slices.BinarySearchFunc(list[:n-1], from+1, func(r reading, at int64) int { return cmp.Compare(r.at, at) })
	sum := Calls{}
	for i = max(i, 1); i < n; i++ {
		a, z := list[i-1], list[i]
		end := z.at
		if i == n-1 {
			end = to
		}
		if part := min(to, end) - max(from, a.at); part > 0 {
			grown, _ := z.sub(a.Calls)
			sum = sum.plus(grown, float64(part)/float64(z.at-a.at))
		}
		if z.at >= to {
			break
		}
	}
	return sum, true
}
