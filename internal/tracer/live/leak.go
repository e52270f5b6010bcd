//go:build linux

package live

import (
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

type memoryKey struct {
	pid    uint32
	device int
}

// Parameters of leak detection.
const (
	sampleEvery = 10 * time.Second
	maxSamples  = 30 // five minutes
	leakSamples = 13 // at least two minutes
)

// history is the recent memory use of a process on one device.
type history struct {
	samples []sample
}

type sample struct {
	time          time.Time
	reserved      uint64
	allocs, frees uint64
}

func (h *history) add(now time.Time, m tracer.Memory) {
	s := sample{now, m.Reserved, m.Allocations, m.Frees}
	if n := len(h.samples); n > 0 && now.Sub(h.samples[n-1].time) < sampleEvery {
		return
	}
	if len(h.samples) == maxSamples {
		h.samples = append(h.samples[:0], h.samples[1:]...)
	}
	h.samples = append(h.samples, s)
}

// growth returns the slope of memory use by least squares, in bytes per second, and whether
// it looks like a leak: memory grew over at least two minutes, each quarter has a new
// maximum, none returns to the earlier level, and less is freed than allocated. A program
// that warms up reaches a plateau and is not a leak.
func (h *history) growth() (slope float64, leak bool) {
	n := len(h.samples)
	if n < 3 {
		return 0, false
	}
	first := h.samples[0]
	var st, sm, stt, stm float64
	for _, s := range h.samples {
		t := s.time.Sub(first.time).Seconds()
		m := float64(s.reserved)
		st, sm, stt, stm = st+t, sm+m, stt+t*t, stm+t*m
	}
	if d := float64(n)*stt - st*st; d > 0 {
		slope = (float64(n)*stm - st*sm) / d
	}
	last := h.samples[n-1]
	allocs, frees := last.allocs-first.allocs, last.frees-first.frees
	if n < leakSamples || slope <= 0 || frees >= allocs {
		return slope, false
	}
	var before, low uint64
	for q := range 4 {
		part := h.samples[q*n/4 : (q+1)*n/4]
		most, least := part[0].reserved, part[0].reserved
		for _, s := range part {
			most, least = max(most, s.reserved), min(least, s.reserved)
		}
		if q > 0 && (most <= before || least <= low) {
			return slope, false
		}
		before, low = most, least
	}
	return slope, true
}
