package series

import (
	"slices"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// End adds to now a final point without a value for each series that before has and now lacks:
// otherwise a database would show such a series for minutes more. now has at least one scope.
func End(now, before pmetric.Metrics, ts pcommon.Timestamp) {
	var m Memory
	m.remember(before)
	m.End(now, ts)
}

// Memory remembers the series of the last batch. The zero value is empty.
type Memory struct {
	// Only selects the metrics whose series get a final point; nil selects all.
	Only func(pmetric.Metric) bool

	last   []shown
	places map[string]int            // in last, by identity
	frames map[string]pmetric.Metric // metrics without points, by name
}

// shown is one series of a batch.
type shown struct {
	metric, identity string
	attrs            pcommon.Map
	start            pcommon.Timestamp
	bounds           []float64 // of a histogram: a database has a series for each
}

// End adds to md a final point without a value for each series of the previous batch that md
// lacks, and then remembers the series of md. md has at least one scope.
func (m *Memory) End(md pmetric.Metrics, ts pcommon.Timestamp) {
	before, frames := m.last, m.frames
	there, metrics := m.remember(md)
	for _, was := range before {
		if _, ok := there[was.identity]; ok {
			continue
		}
		to, ok := metrics[was.metric]
		if !ok {
			to = md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().AppendEmpty()
			frames[was.metric].CopyTo(to)
			metrics[was.metric] = to
		}
		p := pointsOf(to).add()
		if h, ok := p.(pmetric.HistogramDataPoint); ok {
			h.ExplicitBounds().FromRaw(was.bounds)
			h.BucketCounts().FromRaw(make([]uint64, len(was.bounds)+1))
		}
		was.attrs.CopyTo(p.Attributes())
		p.SetTimestamp(ts)
		p.SetStartTimestamp(was.start)
		p.SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
	}
}

// remember replaces the remembered series by those of md. It returns their identities and their
// metrics by name.
func (m *Memory) remember(md pmetric.Metrics) (there map[string]int, metrics map[string]pmetric.Metric) {
	before, places := m.last, m.places
	there, metrics = make(map[string]int, len(before)), map[string]pmetric.Metric{}
	m.last, m.places, m.frames = make([]shown, 0, len(before)), there, map[string]pmetric.Metric{}
	for metric := range Metrics(md) {
		if m.Only != nil && !m.Only(metric) {
			continue
		}
		name := metric.Name()
		metrics[name], m.frames[name] = metric, frame(metric)
		for p := range Points(metric) {
			s := shown{metric: name, identity: identity(name, p.Attributes())}
			if i, ok := places[s.identity]; ok {
				s = before[i]
			} else {
				s.attrs = pcommon.NewMap()
				p.Attributes().CopyTo(s.attrs)
			}
			s.start = p.StartTimestamp()
			if h, ok := p.(pmetric.HistogramDataPoint); ok && !equal(s.bounds, h.ExplicitBounds()) {
				s.bounds = h.ExplicitBounds().AsRaw()
			}
			there[s.identity] = len(m.last)
			m.last = append(m.last, s)
		}
	}
	return there, metrics
}

func equal(a []float64, b pcommon.Float64Slice) bool {
	if len(a) != b.Len() {
		return false
	}
	for i, bound := range a {
		if bound != b.At(i) {
			return false
		}
	}
	return true
}

// identity returns a key of the name and the attributes of a series.
func identity(metric string, attrs pcommon.Map) string {
	parts := make([][2]string, 0, 16)
	size := len(metric)
	for key, v := range attrs.All() {
		text := v.AsString()
		parts = append(parts, [2]string{key, text})
		size += 2 + len(key) + len(text)
	}
	slices.SortFunc(parts, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) }) // keys are unique
	var b strings.Builder
	b.Grow(size)
	b.WriteString(metric)
	for _, part := range parts {
		b.WriteByte(0)
		b.WriteString(part[0])
		b.WriteByte(0)
		b.WriteString(part[1])
	}
	return b.String()
}

// frame returns a copy of m without points.
func frame(m pmetric.Metric) pmetric.Metric {
	f := pmetric.NewMetric()
	f.SetName(m.Name())
	f.SetDescription(m.Description())
	f.SetUnit(m.Unit())
	switch m.Type() {
	case pmetric.MetricTypeSum:
		s := f.SetEmptySum()
		s.SetIsMonotonic(m.Sum().IsMonotonic())
		s.SetAggregationTemporality(m.Sum().AggregationTemporality())
	case pmetric.MetricTypeHistogram:
		f.SetEmptyHistogram().SetAggregationTemporality(m.Histogram().AggregationTemporality())
	case pmetric.MetricTypeExponentialHistogram:
		f.SetEmptyExponentialHistogram().SetAggregationTemporality(m.ExponentialHistogram().AggregationTemporality())
	default:
		f.SetEmptyGauge()
	}
	return f
}
