package series

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

var began = time.Unix(1000, 0)

// batch returns metrics of all types, each with one point per owner.
func batch(owners ...string) pmetric.Metrics {
	md := pmetric.NewMetrics()
	list := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics()
	always := list.AppendEmpty()
	always.SetName("up")
	always.SetEmptyGauge().DataPoints().AppendEmpty()
	if len(owners) == 0 {
		return md
	}
	for _, name := range []string{"gauge", "sum", "histogram", "exponential"} {
		m := list.AppendEmpty()
		m.SetName(name)
		m.SetUnit("s")
		m.SetDescription("text")
		switch name {
		case "gauge":
			m.SetEmptyGauge()
		case "sum":
			m.SetEmptySum().SetIsMonotonic(true)
			m.Sum().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		case "histogram":
			m.SetEmptyHistogram().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		case "exponential":
			m.SetEmptyExponentialHistogram().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		}
		for _, owner := range owners {
			p := pointsOf(m).add()
			p.Attributes().PutStr("owner", owner)
			p.Attributes().PutInt("index", 1)
			Start(m, p, began)
			if h, ok := p.(pmetric.HistogramDataPoint); ok {
				h.ExplicitBounds().FromRaw([]float64{1, 2})
				h.BucketCounts().FromRaw([]uint64{3, 4, 5})
			}
		}
	}
	return md
}

func render(md pmetric.Metrics) []string {
	var list []string
	for m := range Metrics(md) {
		kind := m.Type().String()
		if m.Type() == pmetric.MetricTypeSum {
			kind += fmt.Sprint(" ", m.Sum().IsMonotonic(), " ", m.Sum().AggregationTemporality())
		}
		for p := range Points(m) {
			var attrs []string
			for key, v := range p.Attributes().All() {
				attrs = append(attrs, key+"="+v.AsString())
			}
			slices.Sort(attrs)
			state := "there"
			if p.Flags().NoRecordedValue() {
				state = fmt.Sprint("ends at ", uint64(p.Timestamp()))
				if h, ok := p.(pmetric.HistogramDataPoint); ok {
					state += fmt.Sprint(", buckets ", h.ExplicitBounds().AsRaw(), " ", h.BucketCounts().AsRaw())
				}
			}
			list = append(list, fmt.Sprintf("%s [%s %s] %s since %d: %s", m.Name(), kind, m.Unit(), strings.Join(attrs, ","), uint64(p.StartTimestamp())/1e9, state))
		}
	}
	return list
}

// Catches a series, or the bucket of a histogram, that disappears without a final point and is shown for minutes
// more. If its metric is gone too, the final point needs the metric's type, or a backend rejects the batch.
func TestEnd(t *testing.T) {
	now := batch()
	End(now, batch("a"), 7)
	want := []string{
		"up [Gauge ]  since 0: there",
		"gauge [Gauge s] index=1,owner=a since 0: ends at 7",
		"sum [Sum true Cumulative s] index=1,owner=a since 1000: ends at 7",
		"histogram [Histogram s] index=1,owner=a since 1000: ends at 7, buckets [1 2] [0 0 0]",
		"exponential [ExponentialHistogram s] index=1,owner=a since 1000: ends at 7",
	}
	if diff := cmp.Diff(want, render(now)); diff != "" {
		t.Errorf("a batch without owners (-want +got):\n%s", diff)
	}
}

// Catches a final point repeated in every following batch, and the order of attributes taken for
// part of the identity.
func TestMemory(t *testing.T) {
	m := Memory{Only: func(m pmetric.Metric) bool { return !Cumulative(m) }}
	m.End(batch("a", "b"), 1)
	second := batch()
	gauge := second.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().AppendEmpty()
	gauge.SetName("gauge")
	p := gauge.SetEmptyGauge().DataPoints().AppendEmpty()
	p.Attributes().PutInt("index", 1)
	p.Attributes().PutStr("owner", "b")
	m.End(second, 2)
	want := []string{
		"up [Gauge ]  since 0: there",
		"gauge [Gauge ] index=1,owner=b since 0: there",
		"gauge [Gauge ] index=1,owner=a since 0: ends at 2",
	}
	if diff := cmp.Diff(want, render(second)); diff != "" {
		t.Errorf("second batch (-want +got):\n%s", diff)
	}
	third := batch("b")
	m.End(third, 3)
	for _, line := range render(third) {
		if strings.Contains(line, "ends") {
			t.Errorf("third batch has %q", line)
		}
	}
}

// Catches a final point with the start and the buckets that a series once had: it began anew since, in other buckets.
func TestMemoryOfChangedSeries(t *testing.T) {
	var m Memory
	m.End(batch("a"), 1)
	changed := batch("a")
	for metric := range Metrics(changed) {
		for p := range Points(metric) {
			Start(metric, p, began.Add(time.Hour))
			if h, ok := p.(pmetric.HistogramDataPoint); ok {
				h.ExplicitBounds().FromRaw([]float64{1, 4})
			}
		}
	}
	m.End(changed, 2)
	last := batch()
	m.End(last, 3)
	want := []string{
		"up [Gauge ]  since 0: there",
		"gauge [Gauge s] index=1,owner=a since 0: ends at 3",
		"sum [Sum true Cumulative s] index=1,owner=a since 4600: ends at 3",
		"histogram [Histogram s] index=1,owner=a since 4600: ends at 3, buckets [1 4] [0 0 0]",
		"exponential [ExponentialHistogram s] index=1,owner=a since 4600: ends at 3",
	}
	if diff := cmp.Diff(want, render(last)); diff != "" {
		t.Errorf("the end of series that changed (-want +got):\n%s", diff)
	}
}

func TestTruncate(t *testing.T) {
	md := batch("a", "b", "c")
	for m := range Metrics(md) {
		Truncate(m, 2)
		if want := min(2, max(1, len(slices.Collect(Attributes(m))))); Len(m) != want {
			t.Errorf("%s has %d points, want %d", m.Name(), Len(m), want)
		}
	}
	if n := md.DataPointCount(); n != 9 {
		t.Errorf("%d points, want 9", n)
	}
}

// Catches the zero time, which as a timestamp is a date in the far future.
func TestStart(t *testing.T) {
	m := pmetric.NewMetric()
	p := m.SetEmptySum().DataPoints().AppendEmpty()
	Start(m, p, time.Time{})
	if p.StartTimestamp() != 0 {
		t.Errorf("starts at %s", p.StartTimestamp())
	}
	Start(m, p, began)
	if p.StartTimestamp() != pcommon.NewTimestampFromTime(began) {
		t.Errorf("starts at %s", p.StartTimestamp())
	}
}

// Catches allocations in the workload processor, which visits every point of every batch.
func TestAttributesDoNotAllocate(t *testing.T) {
	md := batch("a", "b", "c")
	n := 0
	if allocs := testing.AllocsPerRun(100, func() {
		for m := range Metrics(md) {
			for attrs := range Attributes(m) {
				n += attrs.Len()
			}
		}
	}); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}
