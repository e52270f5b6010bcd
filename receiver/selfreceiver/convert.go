package selfreceiver

import (
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// convert appends the measurements to rm. Only gauges and sums are converted: histograms of the Collector
// are not kept.
func convert(scopes []metricdata.ScopeMetrics, now pcommon.Timestamp, rm pmetric.ResourceMetrics) {
	for _, scope := range scopes {
		sm := rm.ScopeMetrics().AppendEmpty()
		sm.Scope().SetName(scope.Scope.Name)
		sm.Scope().SetVersion(scope.Scope.Version)
		for _, from := range scope.Metrics {
			m := sm.Metrics().AppendEmpty()
			m.SetName(from.Name)
			m.SetDescription(from.Description)
			m.SetUnit(from.Unit)
			switch data := from.Data.(type) {
			case metricdata.Gauge[int64]:
				convertPoints(data.DataPoints, now, m.SetEmptyGauge().DataPoints(), false)
			case metricdata.Gauge[float64]:
				convertPoints(data.DataPoints, now, m.SetEmptyGauge().DataPoints(), false)
			case metricdata.Sum[int64]:
				convertPoints(data.DataPoints, now, emptySum(m, data.IsMonotonic), true)
			case metricdata.Sum[float64]:
				convertPoints(data.DataPoints, now, emptySum(m, data.IsMonotonic), true)
			}
		}
		sm.Metrics().RemoveIf(func(m pmetric.Metric) bool { return m.Type() == pmetric.MetricTypeEmpty })
	}
}

func emptySum(m pmetric.Metric, monotonic bool) pmetric.NumberDataPointSlice {
	sum := m.SetEmptySum()
	sum.SetIsMonotonic(monotonic)
	sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	return sum.DataPoints()
}

func convertPoints[N int64 | float64](from []metricdata.DataPoint[N], now pcommon.Timestamp, to pmetric.NumberDataPointSlice, started bool) {
	for _, p := range from {
		dp := to.AppendEmpty()
		switch v := any(p.Value).(type) {
		case int64:
			dp.SetIntValue(v)
		case float64:
			dp.SetDoubleValue(v)
		}
		dp.SetTimestamp(now)
		if started {
			dp.SetStartTimestamp(pcommon.NewTimestampFromTime(p.StartTime))
		}
		for _, a := range p.Attributes.ToSlice() {
			putAttribute(dp.Attributes(), a)
		}
	}
}

func putAttribute(to pcommon.Map, a attribute.KeyValue) {
	switch a.Value.Type() {
	case attribute.BOOL:
		to.PutBool(string(a.Key), a.Value.AsBool())
	case attribute.INT64:
		to.PutInt(string(a.Key), a.Value.AsInt64())
	default:
		to.PutStr(string(a.Key), a.Value.String())
	}
}
