package hub

import (
	"errors"
	"math"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
)

// Exponential is an OTLP exponential histogram. It is stored as a native histogram.
type Exponential struct {
	Scale              int32
	Count, Zero        uint64
	ZeroThreshold, Sum float64
	Positive, Negative Buckets
}

// Buckets are counts starting at an index.
type Buckets struct {
	Offset int32
	Counts []uint64
}

// maxBuckets bounds the buckets of a histogram on each side. SDKs send up to 160.
const maxBuckets = 1024

// minZeroThreshold is used for histograms without a zero threshold, as in Prometheus' OTLP
// receiver.
const minZeroThreshold = 1e-128

// Exponential adds the state at t of a histogram that was empty at start, both in ms.
func (a *Appender) Exponential(l Labels, start, t int64, e Exponential) {
	h, err := e.native()
	if err != nil {
		a.Refuse(Invalid, 1, l.Get(model.MetricNameLabel)+": "+err.Error())
		return
	}
	a.pending = append(a.pending, pending{labels: l, start: start, at: t, histogram: h, point: a.point})
}

// native converts e to Prometheus' form, which has fewer scales: finer buckets are merged.
func (e Exponential) native() (*histogram.Histogram, error) {
	if e.Scale < histogram.ExponentialSchemaMin {
		return nil, errors.New("scale is below -4, which native histograms do not support")
	}
	down := max(0, e.Scale-histogram.ExponentialSchemaMax)
	if down > 31 {
		return nil, errors.New("scale is above 39")
	}
	h := &histogram.Histogram{
		Schema: e.Scale - down, Count: e.Count, Sum: e.Sum, ZeroCount: e.Zero, ZeroThreshold: max(e.ZeroThreshold, minZeroThreshold),
	}
	var err, other error
	h.PositiveSpans, h.PositiveBuckets, err = e.Positive.spans(down)
	h.NegativeSpans, h.NegativeBuckets, other = e.Negative.spans(down)
	if err = errors.Join(err, other); err != nil {
		return nil, err
	}
	return h, h.Validate()
}

// spans returns the non-empty buckets after merging groups of 2^down. OTLP's bucket 0 ends
// at the base, Prometheus' at 1.
func (b Buckets) spans(down int32) (spans []histogram.Span, deltas []int64, err error) {
	if len(b.Counts) > maxBuckets {
		return nil, nil, errors.New("more than 1024 buckets")
	}
	if int64(b.Offset)+int64(len(b.Counts)) > math.MaxInt32-1 {
		return nil, nil, errors.New("bucket index out of range")
	}
	var last int64 // count of the previous bucket
	next := int32(0)
	for i := 0; i < len(b.Counts); {
		index := (b.Offset+int32(i))>>down + 1
		var n uint64
		for ; i < len(b.Counts) && (b.Offset+int32(i))>>down+1 == index; i++ {
			n += b.Counts[i]
		}
		if n == 0 {
			continue
		}
		if len(spans) == 0 || index != next {
			offset := index
			if len(spans) > 0 {
				offset = index - next
			}
			spans = append(spans, histogram.Span{Offset: offset})
		}
		spans[len(spans)-1].Length++
		deltas = append(deltas, int64(n)-last)
		last, next = int64(n), index+1
	}
	return spans, deltas, nil
}
