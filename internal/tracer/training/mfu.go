package training

// MFU estimates the model FLOP/s utilization from the part of the time in which the tensor pipe was active
// and from the clock. The peak of the data type that runs is proportional to the clock, whatever the type:
// activity x peak at the clock / peak at the highest clock.
func MFU(active, clock, highest float64) float64 {
	return min(1, max(0, active*clock/highest))
}
