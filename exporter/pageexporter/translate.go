package pageexporter

import (
	"iter"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// simulatedAttribute marks a resource whose devices are simulated.
const simulatedAttribute = "gpumeter.simulated"

// Names follow Prometheus' default for pushed OTLP, so push and pull yield the same series.
var (
	metricNamer = otlptranslator.NewMetricNamer("", otlptranslator.UnderscoreEscapingWithSuffixes)
	unitNamer   = otlptranslator.UnitNamer{}
)

// batch is the last data of one scope of one resource.
type batch struct {
	// key is the resource and the scope. Batches are merged in the order of keys, which decides
	// conflicts regardless of the order of arrival.
	key       string
	scope     string
	simulated bool

	// The data is kept unconverted until a page needs it: most batches are replaced before a
	// scrape.
	resource pcommon.Map
	metrics  []pmetric.MetricSlice
	// families are the converted data in order of arrival; names may repeat. Only the page
	// that merges the batch uses them. Losses are counted once, when families are created.
	families []*dto.MetricFamily
	made     bool
	// counted is set when the conflicts of this batch are counted.
	counted bool
}

// split returns one batch per resource and scope. A resource that occurs twice in one call
// yields one batch: its second part does not replace the first.
func split(md pmetric.Metrics) []*batch {
	byKey := map[string]*batch{}
	var batches []*batch
	for _, rm := range md.ResourceMetrics().All() {
		attrs := rm.Resource().Attributes()
		for _, sm := range rm.ScopeMetrics().All() {
			key := batchKey(attrs, sm.Scope())
			b := byKey[key]
			if b == nil {
				b = &batch{key: key, scope: sm.Scope().Name(), simulated: isTrue(attrs, simulatedAttribute), resource: attrs}
				byKey[key] = b
				batches = append(batches, b)
			}
			b.metrics = append(b.metrics, sm.Metrics())
		}
	}
	return batches
}

// translation converts batches to families. The batches of one page share its labels.
type translation struct {
	wanted  []string // resource attributes that become labels
	labels  labeler
	dropped *dropped
	// resource holds these attributes of the current batch.
	resource []attribute
}

func newTranslation(resourceLabels []string, d *dropped) *translation {
	return &translation{wanted: resourceLabels, labels: newLabeler(d), dropped: d}
}

// translate returns the families of b, created on first use.
func (t *translation) translate(b *batch) []*dto.MetricFamily {
	if b.made {
		return b.families
	}
	t.resource = t.labels.promoted(b.resource, t.wanted)
	for _, metrics := range b.metrics {
		for _, m := range metrics.All() {
			if f := t.family(m); f != nil {
				b.families = append(b.families, f)
			}
		}
	}
	b.made, b.metrics = true, nil
	return b.families
}

func isTrue(attrs pcommon.Map, name string) bool {
	v, ok := attrs.Get(name)
	return ok && v.AsString() == "true"
}

func batchKey(resource pcommon.Map, scope pcommon.InstrumentationScope) string {
	b := appendAttributes(nil, resource)
	b = strconv.AppendQuote(b, scope.Name())
	b = strconv.AppendQuote(b, scope.Version())
	return string(appendAttributes(b, scope.Attributes()))
}

func appendAttributes(b []byte, attrs pcommon.Map) []byte {
	pairs := make([][2]string, 0, attrs.Len())
	for k, v := range attrs.All() {
		pairs = append(pairs, [2]string{k, v.AsString()})
	}
	slices.SortFunc(pairs, func(x, y [2]string) int { return slices.Compare(x[:], y[:]) })
	for _, p := range pairs {
		b = strconv.AppendQuote(b, p[0])
		b = append(b, '=')
		b = strconv.AppendQuote(b, p[1])
	}
	return append(b, ';')
}

// family returns what the page shows of m, or nil.
func (t *translation) family(m pmetric.Metric) *dto.MetricFamily {
	k := kindOf(m)
	name, err := prometheusName(m)
	switch {
	case k.refused != nil:
		t.dropped.add(*k.refused, k.points, m.Name())
		return nil
	case err != nil:
		t.dropped.add(invalidPoint, k.points, m.Name())
		return nil
	}
	series := t.series(m)
	if len(series) == 0 {
		return nil
	}
	f := &dto.MetricFamily{Name: &name, Type: k.prometheus.Enum(), Metric: series}
	if m.Description() != "" {
		f.Help = new(strings.ToValidUTF8(m.Description(), "\uFFFD"))
	}
	// OpenMetrics requires the unit at the end of the family's name; a name with the unit
	// elsewhere (bytes_read) has no UNIT line.
	if unit := unitNamer.Build(m.Unit()); unit != "" && strings.HasSuffix(openMetricsName(f), "_"+unit) {
		f.Unit = &unit
	}
	return f
}

// kind is the type that a metric has on the page.
// prometheusName returns the name of m on the page.
func prometheusName(m pmetric.Metric) (string, error) {
	return metricNamer.Build(otlptranslator.Metric{Name: m.Name(), Unit: m.Unit(), Type: kindOf(m).naming})
}

type kind struct {
	prometheus dto.MetricType
	naming     otlptranslator.MetricType
	points     int
	refused    *reason
}

func kindOf(m pmetric.Metric) kind {
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		return kind{dto.MetricType_GAUGE, otlptranslator.MetricTypeGauge, m.Gauge().DataPoints().Len(), nil}
	case pmetric.MetricTypeSum:
		n, refused := m.Sum().DataPoints().Len(), refusedTemporality(m.Sum().AggregationTemporality())
		if m.Sum().IsMonotonic() {
			return kind{dto.MetricType_COUNTER, otlptranslator.MetricTypeMonotonicCounter, n, refused}
		}
		return kind{dto.MetricType_GAUGE, otlptranslator.MetricTypeNonMonotonicCounter, n, refused}
	case pmetric.MetricTypeHistogram:
		n, refused := m.Histogram().DataPoints().Len(), refusedTemporality(m.Histogram().AggregationTemporality())
		return kind{dto.MetricType_HISTOGRAM, otlptranslator.MetricTypeHistogram, n, refused}
	case pmetric.MetricTypeSummary:
		return kind{dto.MetricType_SUMMARY, otlptranslator.MetricTypeSummary, m.Summary().DataPoints().Len(), nil}
	case pmetric.MetricTypeExponentialHistogram:
		return kind{points: m.ExponentialHistogram().DataPoints().Len(), refused: new(exponentialHistogram)}
	default:
		return kind{refused: new(invalidPoint)}
	}
}

func refusedTemporality(t pmetric.AggregationTemporality) *reason {
	switch t {
	case pmetric.AggregationTemporalityCumulative:
		return nil
	case pmetric.AggregationTemporalityDelta:
		return new(deltaTemporality)
	default:
		return new(invalidPoint)
	}
}

func (t *translation) series(m pmetric.Metric) []*dto.Metric {
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		return series(t, m.Name(), m.Gauge().DataPoints().All(), "", setGauge)
	case pmetric.MetricTypeSum:
		set := setGauge
		if m.Sum().IsMonotonic() {
			set = setCounter
		}
		return series(t, m.Name(), m.Sum().DataPoints().All(), "", set)
	case pmetric.MetricTypeHistogram:
		return series(t, m.Name(), m.Histogram().DataPoints().All(), bucketLabel, setHistogram)
	default:
		return series(t, m.Name(), m.Summary().DataPoints().All(), quantileLabel, setSummary)
	}
}

// dataPoint is the common part of OTLP data points.
type dataPoint interface {
	Attributes() pcommon.Map
	Flags() pmetric.DataPointFlags
}

// series converts points with set, which reports whether Prometheus can represent the value.
// The label reserved belongs to the format.
func series[P dataPoint](t *translation, metric string, points iter.Seq2[int, P], reserved string, set func(*dto.Metric, P) bool) []*dto.Metric {
	var out []*dto.Metric
	for _, p := range points {
		if p.Flags().NoRecordedValue() {
			continue // the series ended: it leaves the page
		}
		m := &dto.Metric{}
		if !set(m, p) {
			t.dropped.add(invalidPoint, 1, metric)
			continue
		}
		m.Label = t.labels.pairs(p.Attributes(), t.resource, reserved)
		out = append(out, m)
	}
	return out
}
