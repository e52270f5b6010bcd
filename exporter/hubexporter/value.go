package hubexporter

import (
	"strconv"

	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/hub"
)

// metric adds the points of one metric.
func (c *converter) metric(m pmetric.Metric) {
	k, ok := kindOf(m)
	if !ok {
		c.to.Refuse(hub.Invalid, 1, "metric "+quoted(m.Name())+" has no data of a known kind")
		return
	}
	switch {
	case k.temporality == pmetric.AggregationTemporalityDelta:
		c.to.Refuse(hub.Delta, k.points, "metric "+quoted(m.Name())+" has delta temporality, the hub accepts cumulative only")
		return
	case k.temporality != pmetric.AggregationTemporalityCumulative:
		c.to.Refuse(hub.Invalid, k.points, "metric "+quoted(m.Name())+" has no temporality")
		return
	}
	name := c.metricName(m, k.naming)
	if name == "" {
		c.to.Refuse(hub.Invalid, k.points, "metric "+quoted(m.Name())+" has an invalid name")
		return
	}
	c.store.Describe(name, hub.Family{Type: k.prometheus, Help: valid(m.Description()), Unit: unitNamer.Build(m.Unit())})
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		c.numbers(name, m.Gauge().DataPoints(), false)
	case pmetric.MetricTypeSum:
		c.numbers(name, m.Sum().DataPoints(), m.Sum().IsMonotonic())
	case pmetric.MetricTypeHistogram:
		c.histograms(name, m.Histogram().DataPoints())
	case pmetric.MetricTypeExponentialHistogram:
		c.exponentials(name, m.ExponentialHistogram().DataPoints())
	default:
		c.summaries(name, m.Summary().DataPoints())
	}
}

// kind is the type that a metric is converted to.
type kind struct {
	prometheus  string
	naming      otlptranslator.MetricType
	points      int
	temporality pmetric.AggregationTemporality
}

func kindOf(m pmetric.Metric) (kind, bool) {
	const cumulative = pmetric.AggregationTemporalityCumulative
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		return kind{"gauge", otlptranslator.MetricTypeGauge, m.Gauge().DataPoints().Len(), cumulative}, true
	case pmetric.MetricTypeSum:
		s := m.Sum()
		if s.IsMonotonic() {
			return kind{"counter", otlptranslator.MetricTypeMonotonicCounter, s.DataPoints().Len(), s.AggregationTemporality()}, true
		}
		return kind{"gauge", otlptranslator.MetricTypeNonMonotonicCounter, s.DataPoints().Len(), s.AggregationTemporality()}, true
	case pmetric.MetricTypeHistogram:
		return kind{"histogram", otlptranslator.MetricTypeHistogram, m.Histogram().DataPoints().Len(), m.Histogram().AggregationTemporality()}, true
	case pmetric.MetricTypeExponentialHistogram:
		h := m.ExponentialHistogram()
		return kind{"histogram", otlptranslator.MetricTypeExponentialHistogram, h.DataPoints().Len(), h.AggregationTemporality()}, true
	case pmetric.MetricTypeSummary:
		return kind{"summary", otlptranslator.MetricTypeSummary, m.Summary().DataPoints().Len(), cumulative}, true
	default:
		return kind{}, false
	}
}

func quoted(name string) string { return strconv.Quote(cut(name, 200)) }

func ms(t pcommon.Timestamp) int64 { return int64(t / 1e6) }

// put adds one value of a point.
func (c *converter) put(l hub.Labels, counter bool, start, t int64, ended bool, v float64) {
	switch {
	case ended:
		c.to.End(l, t)
	case counter:
		c.to.Counter(l, start, t, v)
	default:
		c.to.Gauge(l, t, v)
	}
}

func (c *converter) numbers(name string, points pmetric.NumberDataPointSlice, counter bool) {
	for _, p := range points.All() {
		if !c.fits(name, p.Attributes(), 1) {
			continue
		}
		t, ended := ms(p.Timestamp()), p.Flags().NoRecordedValue()
		var v float64
		switch p.ValueType() {
		case pmetric.NumberDataPointValueTypeInt:
			v = float64(p.IntValue())
		case pmetric.NumberDataPointValueTypeDouble:
			v = p.DoubleValue()
		default: // absent is not zero
			if !ended {
				c.to.Refuse(hub.Invalid, 1, name+" has a point without a value")
				continue
			}
		}
		c.seen(t)
		c.put(c.series(name, p.Attributes(), "", ""), counter, ms(p.StartTimestamp()), t, ended, v)
	}
}

// maxBounds bounds the buckets of a classic histogram and the quantiles of a summary, each of
// which is a series.
const maxBounds = 1024

// histograms writes classic histograms: count, sum and a counter per bucket.
func (c *converter) histograms(name string, points pmetric.HistogramDataPointSlice) {
	for _, p := range points.All() {
		bounds, counts := p.ExplicitBounds(), p.BucketCounts()
		ended := p.Flags().NoRecordedValue()
		if counts.Len() > 0 && counts.Len() != bounds.Len()+1 && !ended {
			c.to.Refuse(hub.Invalid, 1, name+" has "+strconv.Itoa(counts.Len())+" counts for "+strconv.Itoa(bounds.Len())+" bounds")
			continue
		}
		if bounds.Len() > maxBounds {
			c.to.Refuse(hub.Invalid, 1, name+" has more than "+strconv.Itoa(maxBounds)+" bounds")
			continue
		}
		if !c.fits(name, p.Attributes(), bounds.Len()+3) {
			continue
		}
		t, start := ms(p.Timestamp()), ms(p.StartTimestamp())
		c.seen(t)
		add := func(name, special, value string, v float64) {
			c.put(c.series(name, p.Attributes(), special, value), true, start, t, ended, v)
		}
		if p.HasSum() || ended {
			add(name+"_sum", "", "", p.Sum())
		}
		add(name+"_count", "", "", float64(p.Count()))
		total := uint64(0)
		for i := 0; i < bounds.Len() && i < counts.Len(); i++ {
			total += counts.At(i)
			add(name+"_bucket", bucketLabel, strconv.FormatFloat(bounds.At(i), 'f', -1, 64), float64(total))
		}
		add(name+"_bucket", bucketLabel, "+Inf", float64(p.Count()))
	}
}

// exponentials writes native histograms: one series each, regardless of buckets.
func (c *converter) exponentials(name string, points pmetric.ExponentialHistogramDataPointSlice) {
	for _, p := range points.All() {
		buckets := p.Positive().BucketCounts().Len() + p.Negative().BucketCounts().Len()
		if !c.fits(name, p.Attributes(), 1) {
			continue
		}
		l, t := c.series(name, p.Attributes(), "", ""), ms(p.Timestamp())
		c.room -= 16 * buckets
		c.seen(t)
		if p.Flags().NoRecordedValue() {
			c.to.End(l, t)
			continue
		}
		c.to.Exponential(l, ms(p.StartTimestamp()), t, hub.Exponential{
			Scale: p.Scale(), Count: p.Count(), Sum: p.Sum(), Zero: p.ZeroCount(), ZeroThreshold: p.ZeroThreshold(),
			Positive: hub.Buckets{Offset: p.Positive().Offset(), Counts: p.Positive().BucketCounts().AsRaw()},
			Negative: hub.Buckets{Offset: p.Negative().Offset(), Counts: p.Negative().BucketCounts().AsRaw()},
		})
	}
}

func (c *converter) summaries(name string, points pmetric.SummaryDataPointSlice) {
	for _, p := range points.All() {
		n := p.QuantileValues().Len()
		if n > maxBounds {
			c.to.Refuse(hub.Invalid, 1, name+" has more than "+strconv.Itoa(maxBounds)+" quantiles")
			continue
		}
		if !c.fits(name, p.Attributes(), n+2) {
			continue
		}
		t, start, ended := ms(p.Timestamp()), ms(p.StartTimestamp()), p.Flags().NoRecordedValue()
		c.seen(t)
		c.put(c.series(name+"_sum", p.Attributes(), "", ""), true, start, t, ended, p.Sum())
		c.put(c.series(name+"_count", p.Attributes(), "", ""), true, start, t, ended, float64(p.Count()))
		for _, q := range p.QuantileValues().All() {
			l := c.series(name, p.Attributes(), quantileLabel, strconv.FormatFloat(q.Quantile(), 'f', -1, 64))
			c.put(l, false, 0, t, ended, q.Value())
		}
	}
}
