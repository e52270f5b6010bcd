package gpureceiver

import (
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// dataPoint is what the points of gauges, sums and histograms have in common.
type dataPoint interface {
	Attributes() pcommon.Map
	StartTimestamp() pcommon.Timestamp
	SetStartTimestamp(pcommon.Timestamp)
	Timestamp() pcommon.Timestamp
	SetTimestamp(pcommon.Timestamp)
	Flags() pmetric.DataPointFlags
	SetFlags(pmetric.DataPointFlags)
}

// points are those of one metric, whatever its kind.
type points interface {
	Len() int
	each(f func(dataPoint))
	add() dataPoint
	keep(n int)
}

// list implements points.
type list[P dataPoint] struct {
	slice[P]
}

type slice[P dataPoint] interface {
	Len() int
	At(i int) P
	AppendEmpty() P
	RemoveIf(f func(P) bool)
}

func (l list[P]) each(f func(dataPoint)) {
	for i := range l.Len() {
		f(l.At(i))
	}
}

func (l list[P]) add() dataPoint { return l.AppendEmpty() }

// keep removes all but the first n points.
func (l list[P]) keep(n int) {
	i := 0
	l.RemoveIf(func(P) bool {
		i++
		return i > n
	})
}

// pointsOf returns the points of a metric, and whether they count up from a beginning.
func pointsOf(m pmetric.Metric) (p points, counts bool) {
	switch m.Type() {
	case pmetric.MetricTypeSum:
		return list[pmetric.NumberDataPoint]{m.Sum().DataPoints()}, true
	case pmetric.MetricTypeHistogram:
		return list[pmetric.HistogramDataPoint]{m.Histogram().DataPoints()}, true
	}
	return list[pmetric.NumberDataPoint]{m.Gauge().DataPoints()}, false
}

func eachMetric(md pmetric.Metrics, f func(pmetric.Metric)) {
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				f(m)
			}
		}
	}
}
