// Package series works on the time series of a batch of metrics of any type: it iterates over
// points, sets the start time of counters, and ends series that have disappeared.
package series

import (
	"iter"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// Point is the common interface of the points of gauges, sums and histograms.
type Point interface {
	Attributes() pcommon.Map
	StartTimestamp() pcommon.Timestamp
	SetStartTimestamp(pcommon.Timestamp)
	Timestamp() pcommon.Timestamp
	SetTimestamp(pcommon.Timestamp)
	Flags() pmetric.DataPointFlags
	SetFlags(pmetric.DataPointFlags)
}

// Metrics returns an iterator over the metrics of all resources and scopes.
func Metrics(md pmetric.Metrics) iter.Seq[pmetric.Metric] {
	return func(yield func(pmetric.Metric) bool) {
		for _, rm := range md.ResourceMetrics().All() {
			for _, sm := range rm.ScopeMetrics().All() {
				for _, m := range sm.Metrics().All() {
					if !yield(m) {
						return
					}
				}
			}
		}
	}
}

// Points returns an iterator over the points of a gauge, sum or histogram.
func Points(m pmetric.Metric) iter.Seq[Point] {
	return func(yield func(Point) bool) {
		p := pointsOf(m)
		for i := range p.Len() {
			if !yield(p.at(i)) {
				return
			}
		}
	}
}

// Attributes returns an iterator over the attributes of the points of m, of any type, without an
// allocation per point.
func Attributes(m pmetric.Metric) iter.Seq[pcommon.Map] {
	return func(yield func(pcommon.Map) bool) {
		switch m.Type() {
		case pmetric.MetricTypeGauge:
			attributes(m.Gauge().DataPoints(), yield)
		case pmetric.MetricTypeSum:
			attributes(m.Sum().DataPoints(), yield)
		case pmetric.MetricTypeHistogram:
			attributes(m.Histogram().DataPoints(), yield)
		case pmetric.MetricTypeExponentialHistogram:
			attributes(m.ExponentialHistogram().DataPoints(), yield)
		case pmetric.MetricTypeSummary:
			attributes(m.Summary().DataPoints(), yield)
		}
	}
}

func attributes[S interface {
	Len() int
	At(i int) P
}, P interface{ Attributes() pcommon.Map }](list S, yield func(pcommon.Map) bool) {
	for i := range list.Len() {
		if !yield(list.At(i).Attributes()) {
			return
		}
	}
}

// Len returns the number of points of a gauge, sum or histogram.
func Len(m pmetric.Metric) int { return pointsOf(m).Len() }

// Truncate removes all but the first n points of a gauge, sum or histogram.
func Truncate(m pmetric.Metric, n int) { pointsOf(m).truncate(n) }

// Cumulative reports whether the points of m accumulate from a start time, unlike those of a
// gauge.
func Cumulative(m pmetric.Metric) bool { return m.Type() != pmetric.MetricTypeGauge }

// Start sets the start time of a point of m. Gauges and counters with a zero start have none.
func Start(m pmetric.Metric, p Point, began time.Time) {
	start := pcommon.Timestamp(0)
	if Cumulative(m) && !began.IsZero() {
		start = pcommon.NewTimestampFromTime(began)
	}
	p.SetStartTimestamp(start)
}

// points are the points of one metric. pdata has a separate slice type for each type of metric.
type points interface {
	Len() int
	at(i int) Point
	add() Point
	truncate(n int)
}

// list implements points.
type list[P Point] struct{ slice[P] }

type slice[P Point] interface {
	Len() int
	At(i int) P
	AppendEmpty() P
	RemoveIf(f func(P) bool)
}

func (l list[P]) at(i int) Point { return l.At(i) }
func (l list[P]) add() Point     { return l.AppendEmpty() }

func (l list[P]) truncate(n int) {
	i := 0
	l.RemoveIf(func(P) bool {
		i++
		return i > n
	})
}

func pointsOf(m pmetric.Metric) points {
	switch m.Type() {
	case pmetric.MetricTypeSum:
		return list[pmetric.NumberDataPoint]{m.Sum().DataPoints()}
	case pmetric.MetricTypeHistogram:
		return list[pmetric.HistogramDataPoint]{m.Histogram().DataPoints()}
	case pmetric.MetricTypeExponentialHistogram:
		return list[pmetric.ExponentialHistogramDataPoint]{m.ExponentialHistogram().DataPoints()}
	}
	return list[pmetric.NumberDataPoint]{m.Gauge().DataPoints()}
}
