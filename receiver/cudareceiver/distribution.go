package cudareceiver

import (
	"math"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// distribution is the sum of histograms of processes, which come and go. Its buckets are
// those of tracer.Histogram: counts[i] is of index low+i.
type distribution struct {
	count  uint64
	sum    float64
	low    int
	counts []uint64
}

// add adds what now has more than before had. One that has less began anew.
func (d *distribution) add(now, before tracer.Histogram) {
	if now.Count < before.Count {
		before = tracer.Histogram{}
	}
	if delta := now.Sum - before.Sum; delta > 0 {
		d.sum += delta
	}
	if len(now.Buckets) == 0 {
		d.count += now.Count - before.Count
		return
	}
	// The kernel counts while we read: the buckets are the truth, of which the count must
	// be the sum.
	for i, n := range now.Buckets {
		index := now.Offset + i
		if j := index - before.Offset; j >= 0 && j < len(before.Buckets) {
			n -= min(n, before.Buckets[j])
		}
		if n > 0 {
			*d.at(index) += n
			d.count += n
		}
	}
}

// merge adds o.
func (d *distribution) merge(o *distribution) {
	d.count += o.count
	d.sum += o.sum
	for i, n := range o.counts {
		if n > 0 {
			*d.at(o.low + i) += n
		}
	}
}

// at returns the count of an index.
func (d *distribution) at(index int) *uint64 {
	switch {
	case len(d.counts) == 0:
		d.low, d.counts = index, make([]uint64, 1)
	case index < d.low:
		d.counts = append(make([]uint64, d.low-index), d.counts...)
		d.low = index
	case index >= d.low+len(d.counts):
		d.counts = append(d.counts, make([]uint64, index-d.low-len(d.counts)+1)...)
	}
	return &d.counts[index-d.low]
}

// scale is of explicit buckets: their bounds are 2 to the power of first, first+step ...
// last. Each is one of the kernel's bounds, so nothing is estimated.
type scale struct{ first, step, last int }

var (
	seconds = scale{-20, 2, 4} // 1 microsecond to 16 s
	sizes   = scale{6, 2, 34}  // 64 B to 16 GiB
)

func (s scale) bounds() []float64 {
	var list []float64
	for e := s.first; e <= s.last; e += s.step {
		list = append(list, math.Ldexp(1, e))
	}
	return list
}

// bucket returns in which explicit bucket the index is: the upper bound of index is
// 2^((index+1)/2).
func (s scale) bucket(index int) int {
	for i, e := 0, s.first; ; i, e = i+1, e+s.step {
		if e > s.last || index+1 <= 2*e {
			return i
		}
	}
}

// explicit fills in a point with the buckets of s.
func (d *distribution) explicit(dp pmetric.HistogramDataPoint, s scale) {
	bounds := s.bounds()
	counts := make([]uint64, len(bounds)+1)
	for i, n := range d.counts {
		counts[s.bucket(d.low+i)] += n
	}
	dp.SetCount(d.count)
	dp.SetSum(d.sum)
	if len(d.counts) > 0 {
		dp.ExplicitBounds().FromRaw(bounds)
		dp.BucketCounts().FromRaw(counts)
	}
}

// exponential fills in a point with the buckets of the kernel.
func (d *distribution) exponential(dp pmetric.ExponentialHistogramDataPoint) {
	dp.SetCount(d.count)
	dp.SetSum(d.sum)
	dp.SetScale(1)
	dp.Positive().SetOffset(int32(d.low))
	dp.Positive().BucketCounts().FromRaw(d.counts)
}
