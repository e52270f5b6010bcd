package scheduler

import "github.com/gpumeter/gpumeter/internal/optional"

// Pool is the whole devices of one model.
type Pool struct {
	Devices map[DeviceState]int64
	// Free are the free devices of each node that takes jobs.
	Free Free
	// Stranded are free devices that nobody can use, each under one cause.
	Stranded map[Cause]int64
}

// NewPool returns a Pool without devices. causes are those that the scheduler can tell: the numbers of others are absent,
// not 0.
func NewPool(causes ...Cause) *Pool {
	p := &Pool{Devices: map[DeviceState]int64{Allocated: 0, Idle: 0, Drained: 0, Down: 0}, Stranded: map[Cause]int64{}}
	for _, c := range causes {
		p.Stranded[c] = 0
	}
	return p
}

// Room is where there is room for jobs.
type Room struct {
	Pools map[string]*Pool // by model
	// Unusable is the fraction of the free devices that a job of the last day cannot use, averaged over those
	// jobs: the measure of FGD. Absent if nothing is free, nobody asked for devices, or it is not known.
	Unusable optional.Float
}

// Sizes returns the numbers of devices on one node for which room is counted.
func Sizes() []int64 { return []int64{1, 2, 4, 8, 16} }

// Free is the number of free devices of each node that takes jobs.
type Free []int64

// Placeable returns how many jobs of size devices on one node fit at once.
func (f Free) Placeable(size int64) int64 {
	n := int64(0)
	for _, free := range f {
		n += free / size
	}
	return n
}

// Fragmentation returns the fraction of the free devices that jobs of size devices cannot
// use; 0 means a perfect fit. ok is false if no device is free.
func (f Free) Fragmentation(size int64) (v float64, ok bool) {
	all := f.Sum()
	if all == 0 {
		return 0, false
	}
	return 1 - float64(size*f.Placeable(size))/float64(all), true
}

// Sum returns the number of free devices.
func (f Free) Sum() int64 {
	n := int64(0)
	for _, free := range f {
		n += free
	}
	return n
}
