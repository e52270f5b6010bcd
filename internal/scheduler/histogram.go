package scheduler

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
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

// PhaseKey is the key of a phase of jobs that ask for so many devices.
func PhaseKey(phase string, devices int64) string { return phase + " " + sizeOf(devices) }

// sizeOf returns how many devices a job asks for, in few words.
func sizeOf(devices int64) string {
	switch {
	case devices < 1:
		return "part"
	case devices == 1:
		return "1"
	case devices < 4:
		return "2-3"
	case devices < 8:
		return "4-7"
	case devices < 16:
		return "8-15"
	}
	return "16+"
}

// MarshalJSON implements json.Marshaler: of each, the sum, and then the counts without the zeros at their end.
func (h Histograms) MarshalJSON() ([]byte, error) {
	out := make(map[string][]float64, len(h))
	for key, at := range h {
		list := []float64{at.Sum}
		for _, n := range at.Counts {
			list = append(list, float64(n))
		}
		for list[len(list)-1] == 0 && len(list) > 1 {
			list = list[:len(list)-1]
		}
		out[key] = list
	}
	return json.Marshal(out)
}

// maxStored bounds the histograms that are read. Those that are written have fewer.
const maxStored = 1000

// UnmarshalJSON implements json.Unmarshaler.
func (h *Histograms) UnmarshalJSON(text []byte) error {
	var in map[string][]float64
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	size := len(Bounds()) + 1
	*h = make(Histograms, len(in))
	for key, list := range in {
		if len(list) < 1 || len(list) > size+1 || len(in) > maxStored {
			return errors.New("a histogram has another form")
		}
		at := &Histogram{Sum: list[0], Counts: make([]uint64, size)}
		for i, n := range list[1:] {
			if n < 0 || n > 1<<53 || n != math.Trunc(n) {
				return fmt.Errorf("a histogram counts %v", n)
			}
			at.Counts[i] = uint64(n)
			at.Count += uint64(n)
		}
		if at.Sum < 0 {
			return fmt.Errorf("the sum of a histogram is %v", at.Sum)
		}
		(*h)[key] = at
	}
	return nil
}
