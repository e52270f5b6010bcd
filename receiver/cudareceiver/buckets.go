package cudareceiver

import (
	"math"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/tracer/ledger"
)

// scale defines explicit buckets with bounds 2^first, 2^(first+step) ... 2^last. Each bound is also a
// bound of the kernel's buckets, so nothing is estimated.
type scale struct{ first, step, last int }

var (
	seconds = scale{-20, 2, 4} // 1 microsecond to 16 s
	sizes   = scale{6, 2, 34}  // 64 B to 16 GiB
	steps   = scale{-8, 1, 8}  // 4 ms to 256 s
)

func (s scale) bounds() []float64 {
	var list []float64
	for e := s.first; e <= s.last; e += s.step {
		list = append(list, math.Ldexp(1, e))
	}
	return list
}

// bucket returns the explicit bucket of a kernel bucket, whose upper bound is 2^((index+1)/2).
func (s scale) bucket(index int) int {
	for i, e := 0, s.first; ; i, e = i+1, e+s.step {
		if e > s.last || index+1 <= 2*e {
			return i
		}
	}
}

// fillExplicit sets the buckets of s on a point.
func fillExplicit(dp pmetric.HistogramDataPoint, d *ledger.Distribution, s scale) {
	bounds := s.bounds()
	counts := make([]uint64, len(bounds)+1)
	for i, n := range d.Counts {
		counts[s.bucket(d.Low+i)] += n
	}
	dp.SetCount(d.Count)
	dp.SetSum(d.Sum)
	if len(d.Counts) > 0 {
		dp.ExplicitBounds().FromRaw(bounds)
		dp.BucketCounts().FromRaw(counts)
	}
}

// fillExponential sets the kernel's buckets on a point.
func fillExponential(dp pmetric.ExponentialHistogramDataPoint, d *ledger.Distribution) {
	dp.SetCount(d.Count)
	dp.SetSum(d.Sum)
	dp.SetScale(1)
	dp.Positive().SetOffset(int32(d.Low))
	dp.Positive().BucketCounts().FromRaw(d.Counts)
}
