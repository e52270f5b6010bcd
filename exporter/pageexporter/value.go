package pageexporter

import (
	"cmp"
	"math"
	"slices"

	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// The set functions write the value of a point, or report that it is invalid. They reject
// what OpenMetrics forbids: counters, and sums and counts that act as counters, are never
// negative or NaN.

func number(p pmetric.NumberDataPoint) (float64, bool) {
	switch p.ValueType() {
	case pmetric.NumberDataPointValueTypeInt:
		return float64(p.IntValue()), true
	case pmetric.NumberDataPointValueTypeDouble:
		return p.DoubleValue(), true
	default:
		return 0, false // absent is not zero
	}
}

func setGauge(m *dto.Metric, p pmetric.NumberDataPoint) bool {
	v, ok := number(p)
	m.Gauge = &dto.Gauge{Value: &v}
	return ok
}

func setCounter(m *dto.Metric, p pmetric.NumberDataPoint) bool {
	v, ok := number(p)
	m.Counter = &dto.Counter{Value: &v}
	return ok && v >= 0
}

// setHistogram rejects a histogram without a sum: the format cannot omit it, and 0 would be
// wrong.
func setHistogram(m *dto.Metric, p pmetric.HistogramDataPoint) bool {
	bounds, counts := p.ExplicitBounds(), p.BucketCounts()
	if !p.HasSum() || !(p.Sum() >= 0) || counts.Len() > 0 && counts.Len() != bounds.Len()+1 {
		return false
	}
	h := &dto.Histogram{SampleSum: new(p.Sum()), SampleCount: new(p.Count())}
	m.Histogram = h
	if counts.Len() == 0 { // only count and sum
		return bounds.Len() == 0
	}
	var total uint64
	lowest := 0.0 // with negative bounds the sum is not a counter
	for i, n := range counts.All() {
		if total+n < total {
			return false
		}
		total += n
		if i == bounds.Len() {
			break // expfmt writes the +Inf bucket from the count
		}
		le := bounds.At(i)
		if !(le > lowest || i == 0 && le == 0) || math.IsInf(le, 1) {
			return false
		}
		lowest = le
		h.Bucket = append(h.Bucket, &dto.Bucket{UpperBound: &le, CumulativeCount: new(total)})
	}
	return total == p.Count()
}

func setSummary(m *dto.Metric, p pmetric.SummaryDataPoint) bool {
	s := &dto.Summary{SampleSum: new(p.Sum()), SampleCount: new(p.Count())}
	m.Summary = s
	for _, q := range p.QuantileValues().All() {
		if !(q.Quantile() >= 0 && q.Quantile() <= 1) || q.Value() < 0 {
			return false
		}
		s.Quantile = append(s.Quantile, &dto.Quantile{Quantile: new(q.Quantile()), Value: new(q.Value())})
	}
	slices.SortFunc(s.Quantile, func(a, b *dto.Quantile) int { return cmp.Compare(a.GetQuantile(), b.GetQuantile()) })
	for i := 1; i < len(s.Quantile); i++ {
		if s.Quantile[i].GetQuantile() == s.Quantile[i-1].GetQuantile() {
			return false
		}
	}
	return p.Sum() >= 0
}
