package pageexporter

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// scope adds a resource with one scope to md.
func scope(md pmetric.Metrics, host, name string) pmetric.MetricSlice {
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr("host.name", host)
	sm := rm.ScopeMetrics().AppendEmpty()
	sm.Scope().SetName(name)
	return sm.Metrics()
}

func addGauge(ms pmetric.MetricSlice, name string, v float64, attrs ...string) pmetric.NumberDataPoint {
	m := ms.AppendEmpty()
	m.SetName(name)
	p := m.SetEmptyGauge().DataPoints().AppendEmpty()
	p.SetDoubleValue(v)
	putAll(p.Attributes(), attrs)
	return p
}

func addSum(ms pmetric.MetricSlice, name string, v float64, attrs ...string) pmetric.Sum {
	m := ms.AppendEmpty()
	m.SetName(name)
	s := m.SetEmptySum()
	s.SetIsMonotonic(true)
	s.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	p := s.DataPoints().AppendEmpty()
	p.SetDoubleValue(v)
	putAll(p.Attributes(), attrs)
	return s
}

// addHistogram adds a valid histogram, which the caller may spoil.
func addHistogram(ms pmetric.MetricSlice, name string) pmetric.HistogramDataPoint {
	m := ms.AppendEmpty()
	m.SetName(name)
	h := m.SetEmptyHistogram()
	h.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	p := h.DataPoints().AppendEmpty()
	p.ExplicitBounds().FromRaw([]float64{0, 2})
	p.BucketCounts().FromRaw([]uint64{1, 2, 3})
	p.SetCount(6)
	p.SetSum(9)
	return p
}

// addSummary adds a valid summary, which the caller may spoil.
func addSummary(ms pmetric.MetricSlice, name string) pmetric.SummaryDataPoint {
	m := ms.AppendEmpty()
	m.SetName(name)
	p := m.SetEmptySummary().DataPoints().AppendEmpty()
	p.SetCount(2)
	p.SetSum(3)
	q := p.QuantileValues().AppendEmpty()
	q.SetQuantile(0.5)
	q.SetValue(1)
	return p
}

func putAll(to pcommon.Map, attrs []string) {
	for i := 0; i < len(attrs); i += 2 {
		to.PutStr(attrs[i], attrs[i+1])
	}
}

// shown is a text page without the lines common to all pages, the header and the zeros of the
// drop counter, and with the drops at the end.
func shown(page string) string {
	var series, drops strings.Builder
	for line := range strings.Lines(page) {
		switch own := strings.Contains(line, droppedName); {
		case !own:
			series.WriteString(line)
		case !strings.HasPrefix(line, "#") && !strings.HasSuffix(line, " 0\n"):
			drops.WriteString(line)
		}
	}
	return series.String() + drops.String()
}

// expectPage fills one scope of host h and compares the whole page.
func expectPage(t *testing.T, fill func(pmetric.MetricSlice), want string) {
	t.Helper()
	md := pmetric.NewMetrics()
	fill(scope(md, "h", "s"))
	if diff := cmp.Diff(want, shown(render(t, md, false))); diff != "" {
		t.Errorf("page (-want +got):\n%s", diff)
	}
}

// Attributes that Prometheus cannot represent must neither break the page nor void their point.
func TestLabels(t *testing.T) {
	f := func(want string, attrs ...string) {
		t.Helper()
		expectPage(t, func(ms pmetric.MetricSlice) { addGauge(ms, "x", 1, attrs...) }, "# TYPE x gauge\n"+want)
	}
	f(`x{a_b="1",host_name="h"} 1`+"\n", "a.b", "1")
	f(`x{host_name="h"} 1`+"\n", "a", "")                                        // empty is absent
	f(`x{host_name="p"} 1`+"\n", "host.name", "p")                               // the point wins over the resource
	f(`x{a_b="2;1",host_name="h"} 1`+"\n", "a_b", "1", "a.b", "2")               // joined by key, as Prometheus does
	f(`x{a="`+"\uFFFD"+`",host_name="h"} 1`+"\n", "a", "\xff")                   // invalid UTF-8
	f(`x{a="\"\\\n",host_name="h"} 1`+"\n", "a", "\"\\\n")                       // what the format escapes
	f(`x{host_name="h",key_1="a"} 1`+"\n", "1", "a")                             // a name can not start with a digit
	f(`x{host_name="h",le="a",quantile="b"} 1`+"\n", "le", "a", "quantile", "b") // plain labels of a gauge

	const oneLabel = droppedName + `{reason="label"} 1` + "\n"
	f(`x{host_name="h"} 1`+"\n"+oneLabel, "", "a")
	f(`x{host_name="h"} 1`+"\n"+oneLabel, "__name__", "a")
	f(`x{host_name="h"} 1`+"\n"+oneLabel, "._.", "a")
	f(`x{a="`+strings.Repeat("a", maxLabelValue-1)+`",host_name="h"} 1`+"\n"+oneLabel,
		"a", strings.Repeat("a", maxLabelValue-1)+"ü and more") // not half a character
}

// Values other than strings must look as they do when pushed.
func TestLabelValues(t *testing.T) {
	expectPage(t, func(ms pmetric.MetricSlice) {
		attrs := addGauge(ms, "x", 1).Attributes()
		attrs.PutBool("bool", true)
		attrs.PutDouble("double", 0.5)
		attrs.PutInt("int", -7)
		attrs.PutEmptySlice("slice").AppendEmpty().SetStr("a")
		attrs.PutEmpty("unset")
	}, `# TYPE x gauge
x{bool="true",double="0.5",host_name="h",int="-7",slice="[\"a\"]"} 1
`)
}

// A value that is not a number, or not valid for a counter, must not be shown and must not hide
// others.
func TestValues(t *testing.T) {
	const invalid = droppedName + `{reason="invalid"} 1` + "\n"
	f := expectPage
	f(t, func(ms pmetric.MetricSlice) {
		addGauge(ms, "x", math.NaN(), "a", "1")
		addGauge(ms, "x", math.Inf(1), "a", "2")
		addGauge(ms, "x", math.Inf(-1), "a", "3")
	}, `# TYPE x gauge
x{a="1",host_name="h"} NaN
x{a="2",host_name="h"} +Inf
x{a="3",host_name="h"} -Inf
`)
	f(t, func(ms pmetric.MetricSlice) {
		addSum(ms, "a", math.NaN())
		addSum(ms, "b", 1)
	}, "# TYPE b_total counter\nb_total{host_name=\"h\"} 1\n"+invalid)
	f(t, func(ms pmetric.MetricSlice) { addSum(ms, "a", -1) }, invalid)
	f(t, func(ms pmetric.MetricSlice) { addGauge(ms, "", 1) }, invalid)
	f(t, func(ms pmetric.MetricSlice) { addGauge(ms, "...", 1) }, invalid)
	f(t, func(ms pmetric.MetricSlice) { ms.AppendEmpty().SetName("no data") }, "")
	f(t, func(ms pmetric.MetricSlice) {
		addGauge(ms, "ended", 1).SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
	}, "")
	f(t, func(ms pmetric.MetricSlice) {
		m := ms.AppendEmpty()
		m.SetName("unset")
		m.SetEmptyGauge().DataPoints().AppendEmpty()
	}, invalid)
}

// Prometheus would read a delta as a counter that is reset every time.
func TestTemporality(t *testing.T) {
	f := func(temporality pmetric.AggregationTemporality, want string) {
		t.Helper()
		expectPage(t, func(ms pmetric.MetricSlice) {
			addSum(ms, "x", 1).SetAggregationTemporality(temporality)
			addHistogram(ms, "y")
			ms.At(1).Histogram().SetAggregationTemporality(temporality)
		}, want)
	}
	f(pmetric.AggregationTemporalityDelta, droppedName+`{reason="delta"} 2`+"\n")
	f(pmetric.AggregationTemporalityUnspecified, droppedName+`{reason="invalid"} 2`+"\n")
}

// An inconsistent histogram would make a page that parsers reject, or wrong quantiles.
func TestHistograms(t *testing.T) {
	const (
		buckets = `# TYPE x histogram
x_bucket{host_name="h",le="0"} 1
x_bucket{host_name="h",le="2"} 3
`
		tail = `x_bucket{host_name="h",le="+Inf"} 6
x_sum{host_name="h"} 9
x_count{host_name="h"} 6
`
		invalid = droppedName + `{reason="invalid"} 1` + "\n"
		label   = droppedName + `{reason="label"} 1` + "\n"
	)
	f := func(want string, spoil func(pmetric.HistogramDataPoint)) {
		t.Helper()
		expectPage(t, func(ms pmetric.MetricSlice) { spoil(addHistogram(ms, "x")) }, want)
	}
	type point = pmetric.HistogramDataPoint
	f(buckets+tail, func(point) {})
	f(buckets+tail+label, func(p point) { p.Attributes().PutStr("le", "1") })
	f("# TYPE x histogram\n"+tail, func(p point) { p.ExplicitBounds().FromRaw(nil); p.BucketCounts().FromRaw(nil) })
	f(invalid, func(p point) { p.RemoveSum() })
	f(invalid, func(p point) { p.SetSum(math.NaN()) })
	f(invalid, func(p point) { p.SetSum(-1) })
	f(invalid, func(p point) { p.SetCount(7) })
	f(invalid, func(p point) { p.BucketCounts().FromRaw(nil) })
	f(invalid, func(p point) { p.BucketCounts().FromRaw([]uint64{6}) })
	f(invalid, func(p point) { p.BucketCounts().FromRaw([]uint64{math.MaxUint64, 7, 0}) })
	f(invalid, func(p point) { p.ExplicitBounds().FromRaw([]float64{2, 2}) })
	f(invalid, func(p point) { p.ExplicitBounds().FromRaw([]float64{-1, 2}) })
	f(invalid, func(p point) { p.ExplicitBounds().FromRaw([]float64{1, math.NaN()}) })
	f(invalid, func(p point) { p.ExplicitBounds().FromRaw([]float64{1, math.Inf(1)}) })
}

// The same for summaries.
func TestSummaries(t *testing.T) {
	const (
		valid = `# TYPE x summary
x{host_name="h",quantile="0.5"} 1
x_sum{host_name="h"} 3
x_count{host_name="h"} 2
`
		invalid = droppedName + `{reason="invalid"} 1` + "\n"
		label   = droppedName + `{reason="label"} 1` + "\n"
	)
	f := func(want string, spoil func(pmetric.SummaryDataPoint)) {
		t.Helper()
		expectPage(t, func(ms pmetric.MetricSlice) { spoil(addSummary(ms, "x")) }, want)
	}
	type point = pmetric.SummaryDataPoint
	f(valid, func(point) {})
	f(valid+label, func(p point) { p.Attributes().PutStr("quantile", "1") })
	f(invalid, func(p point) { p.SetSum(math.NaN()) })
	f(invalid, func(p point) { p.QuantileValues().At(0).SetQuantile(2) })
	f(invalid, func(p point) { p.QuantileValues().At(0).SetQuantile(math.NaN()) })
	f(invalid, func(p point) { p.QuantileValues().At(0).SetValue(-1) })
	f(invalid, func(p point) { p.QuantileValues().At(0).CopyTo(p.QuantileValues().AppendEmpty()) })
}
