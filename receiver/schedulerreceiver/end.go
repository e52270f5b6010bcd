package schedulerreceiver

import (
	"slices"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// end adds to the gauges of a round one point without a value for each series that the
// round before had and this one has not: a database would show it for minutes more, beside
// what took its place. Sums are of things that do not go.
func (e *emitter) end(md pmetric.Metrics) {
	list := md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics() // slurm.up is always there
	now := map[string]pmetric.Metric{}
	for _, m := range list.All() {
		if m.Type() == pmetric.MetricTypeGauge {
			now[m.Name()] = m
		}
	}
	shown := pmetric.NewMetricSlice()
	for _, m := range now {
		m.CopyTo(shown.AppendEmpty())
	}
	for _, before := range e.shown.All() {
		m, ok := now[before.Name()]
		there := map[string]bool{}
		if ok {
			for _, dp := range m.Gauge().DataPoints().All() {
				there[identity(dp.Attributes())] = true
			}
		}
		for _, dp := range before.Gauge().DataPoints().All() {
			if there[identity(dp.Attributes())] {
				continue
			}
			if !ok {
				m = list.AppendEmpty()
				m.SetName(before.Name())
				m.SetUnit(before.Unit())
				m.SetDescription(before.Description())
				m.SetEmptyGauge()
				ok = true
			}
			last := m.Gauge().DataPoints().AppendEmpty()
			dp.Attributes().CopyTo(last.Attributes())
			last.SetTimestamp(e.ts)
			last.SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
		}
	}
	e.shown = shown
}

// identity returns the attributes of a series as one text.
func identity(attrs pcommon.Map) string {
	var pairs []string
	for key, v := range attrs.All() {
		pairs = append(pairs, key+"\x00"+v.AsString())
	}
	slices.Sort(pairs)
	return strings.Join(pairs, "\x00")
}
