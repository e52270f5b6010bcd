package tracer_test

import (
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// Snapshots are cumulative: subtract two of them to get what happened in between. The
// quantile is the upper bound of its bucket, at most a factor of sqrt(2) too high.
func ExampleHistogram_Sub() {
	var buckets [tracer.TimeBuckets]uint64
	buckets[tracer.TimeBucket(uint64(10*time.Microsecond))] = 100
	before := tracer.NewHistogram(100*10e-6, tracer.TimeOffset, buckets[:])
	buckets[tracer.TimeBucket(uint64(40*time.Microsecond))] = 50
	after := tracer.NewHistogram(100*10e-6+50*40e-6, tracer.TimeOffset, buckets[:])

	window := after.Sub(before)
	fmt.Printf("%d calls, %.0f us on average, median below %.0f us\n",
		window.Count, 1e6*window.Sum/float64(window.Count), 1e6*window.Quantile(0.5))
	// Output:
	// 50 calls, 40 us on average, median below 43 us
}
