package scheduler

import (
	"slices"
	"time"
)

// Bounds returns the histogram bounds in seconds, from one second to seven days.
func Bounds() []float64 {
	return []float64{1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 345600, 604800}
}

// Histogram accumulates durations since its creation.
type Histogram struct {
	Counts []uint64 // one more than Bounds
	Count  uint64
	Sum    float64 // seconds
}

// Histograms are histograms by queue.
type Histograms map[string]*Histogram

// maxQueues bounds the histograms. Queues beyond it share one, called other.
const maxQueues = 200

// Add adds a duration. One that is negative, because clocks differ, counts as 0.
func (h Histograms) Add(queue string, d time.Duration) {
	if h[queue] == nil && len(h) >= maxQueues {
		queue = other
	}
	bounds, at := Bounds(), h[queue]
	if at == nil {
		at = &Histogram{Counts: make([]uint64, len(bounds)+1)}
		h[queue] = at
	}
	s := max(0, d.Seconds())
	i, _ := slices.BinarySearch(bounds, s)
	at.Counts[i]++
	at.Count++
	at.Sum += s
}

// Clone returns a copy.
func (h Histograms) Clone() Histograms {
	out := make(Histograms, len(h))
	for queue, at := range h {
		out[queue] = &Histogram{slices.Clone(at.Counts), at.Count, at.Sum}
	}
	return out
}
