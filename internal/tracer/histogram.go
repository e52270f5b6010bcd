package tracer

import (
	"math"
	"math/bits"
)

// Layout of the kernel's histograms: Histogram.Offset and the number of buckets. Times range
// from 2^-24 s, less than a probe itself takes, to 256 s; sizes from 1 byte to 48 GiB. Values
// outside the range are in the first or the last bucket.
const (
	TimeOffset  = -48
	TimeBuckets = 64
	SizeOffset  = -1
	SizeBuckets = 72
)

// TimeBucket returns the bucket of a duration as the kernel computes it: in units of
// 2^-30 s, so bucket bounds are powers of sqrt(2) seconds. The conversion error is less than
// one unit and 10^-7.
func TimeBucket(ns uint64) int {
	ns = min(ns, 1<<40)
	u := ns + (ns*19331)>>18
	return min(max(bucket(u)-1-(2*30+TimeOffset), 0), TimeBuckets-1)
}

// SizeBucket returns the exact bucket of a number of bytes.
func SizeBucket(n uint64) int {
	return min(bucket(n), SizeBuckets-1)
}

// bucket returns 0 for n up to 1, and i for n above 2^((i-1)/2) up to 2^(i/2).
func bucket(n uint64) int {
	if n <= 1 {
		return 0
	}
	n--
	log := bits.Len64(n) - 1
	i := 1 + 2*log
	if n >= root2>>(63-log) {
		i++
	}
	return i
}

const root2 = 0xb504f333f9de6484 // floor(sqrt(2) * 2^63)

// Add returns the sum of both histograms, which must have the same offset.
func (h Histogram) Add(o Histogram) Histogram {
	if o.Count == 0 {
		return h
	}
	if h.Count == 0 {
		return o
	}
	sum := Histogram{Count: h.Count + o.Count, Sum: h.Sum + o.Sum, Offset: h.Offset, Buckets: make([]uint64, max(len(h.Buckets), len(o.Buckets)))}
	copy(sum.Buckets, h.Buckets)
	for i, n := range o.Buckets {
		sum.Buckets[i] += n
	}
	return sum
}

// Sub returns the increase since before. After a counter reset it returns all of h.
func (h Histogram) Sub(before Histogram) Histogram {
	if before.Count == 0 || before.Count > h.Count || len(before.Buckets) > len(h.Buckets) {
		return h
	}
	d := Histogram{Count: h.Count - before.Count, Sum: max(h.Sum-before.Sum, 0), Offset: h.Offset, Buckets: make([]uint64, len(h.Buckets))}
	copy(d.Buckets, h.Buckets)
	for i, n := range before.Buckets {
		if n > d.Buckets[i] {
			return h
		}
		d.Buckets[i] -= n
	}
	return d
}

// Quantile returns the upper bound of the bucket that contains quantile q; 0 if the histogram
// is empty. The result is at most a factor of sqrt(2) too high.
func (h Histogram) Quantile(q float64) float64 {
	rank := uint64(math.Ceil(q * float64(h.Count)))
	for i, n := range h.Buckets {
		if n >= max(rank, 1) {
			return math.Exp2(float64(i+1+h.Offset) / 2)
		}
		rank -= n
	}
	return 0
}

// NewHistogram returns a histogram of buckets counted by the kernel. Trailing empty buckets
// are dropped.
func NewHistogram(sum float64, offset int, buckets []uint64) Histogram {
	h := Histogram{Sum: sum, Offset: offset}
	last := 0
	for i, n := range buckets {
		h.Count += n
		if n > 0 {
			last = i + 1
		}
	}
	if last > 0 {
		h.Buckets = append(h.Buckets, buckets[:last]...)
	}
	return h
}
