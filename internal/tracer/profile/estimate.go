package profile

import (
	"math"
	"time"
)

// Estimate divides the busy time of each process among its launches, by the threads that they have on the
// device; launches of which no threads are known, such as those of graphs, by the mean of the others.
func (p *Profile) Estimate() {
	for _, process := range p.Processes {
		if process.Busy <= 0 {
			continue
		}
		var threads, calls, unknown float64
		for i := range p.Samples {
			if s := &p.Samples[i]; s.PID == process.PID && s.leaf().Kind == Kernel {
				if s.Threads > 0 {
					threads += float64(s.Threads)
					calls += float64(s.Calls)
				} else {
					unknown += float64(s.Calls)
				}
			}
		}
		mean := 1.0
		if calls > 0 {
			mean = threads / calls
		}
		all := threads + mean*unknown
		for i := range p.Samples {
			s := &p.Samples[i]
			if s.PID != process.PID || s.leaf().Kind != Kernel || all == 0 {
				continue
			}
			weight := float64(s.Threads)
			if s.Threads == 0 {
				weight = mean * float64(s.Calls)
			}
			s.GPU = time.Duration(math.Round(float64(process.Busy) * weight / all))
		}
	}
}
