package sizing

import (
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
)

// What must be known before anything smaller is proposed, and when a device counts as unused. Findings of waste use the same.
const (
	// Headroom is added to a peak: what remains free of anything smaller that is proposed.
	Headroom = 0.1
	// Period and Held are how long the period must be, and how long a device must have been held in it: peaks of less say
	// little about the next day.
	Period = 6 * time.Hour
	Held   = 4 * time.Hour
	// Low is the activity up to which a device counts as inactive, and usedAtLeast the part of the time that it was held for
	// which it must have been active to count as used.
	Low         = 0.05
	usedAtLeast = 0.01
)

// Unused reports whether a device that was held had no use: hardly any active time, and no peak of activity.
func Unused(active, held fleet.Seconds, peak, low float64) bool {
	return float64(active) < usedAtLeast*float64(held) && peak <= low
}

// Facts are what is known of models of devices beyond what their drivers report. Memory is in bytes.
type Facts interface {
	// Slices calls each for the partitions that a device can be cut into, the smallest first: their memory in bytes, their part
	// of its compute units, and the part of the device that they count as.
	Slices(model string, memory float64, each func(profile string, memory, compute, part float64))
	// Strength returns the peaks of arithmetic and of memory bandwidth of a device. They compare devices of one vendor.
	Strength(model string, memory float64) (compute, bandwidth float64, ok bool)
}

// Need is the most that a workload took of a device.
type Need struct {
	Model    string
	Size     float64 // memory of the device in bytes
	Activity float64 // 0 to 1, see Peaks
	Memory   float64 // bytes
}

// Slice is a kind of partition of a device.
type Slice struct {
	Profile string
	Memory  float64 // bytes
	Part    float64 // of the device
}

// Slice returns the smallest partition of the device that would have carried the peaks with headroom, and whether there is one. can is
// set if the device has partitions at all, as far as is known.
func (n Need) Slice(f Facts) (least Slice, can, fits bool) {
	if f == nil {
		return Slice{}, false, false
	}
	f.Slices(n.Model, n.Size, func(profile string, memory, compute, part float64) {
		can = true
		if n.within(memory, compute) && (!fits || part < least.Part) {
			least, fits = Slice{profile, memory, part}, true
		}
	})
	return least, can, fits
}

// Fits reports whether another device, of this model and memory, would have carried the peaks with headroom. Both peaks of the
// other device count for its strength: whether arithmetic or memory limits the workload is not known.
func (n Need) Fits(f Facts, model string, memory float64) bool {
	if f == nil {
		return false
	}
	compute, bandwidth, ok := f.Strength(n.Model, n.Size)
	itsCompute, itsBandwidth, known := f.Strength(model, memory)
	return ok && known && n.within(memory, min(itsCompute/compute, itsBandwidth/bandwidth))
}

// within reports whether the peaks and their headroom fit some memory and a part of the device's strength.
func (n Need) within(memory, strength float64) bool {
	return n.Memory*(1+Headroom) <= memory && n.Activity*(1+Headroom) <= strength
}
