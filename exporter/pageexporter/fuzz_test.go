package pageexporter

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// Whatever the input, the page must be valid, and every point must be either shown or counted.
func FuzzPage(f *testing.F) {
	f.Add(uint64(1), "gpu.utilization", "1", "gpu.uuid", "GPU-0", 0.5)
	f.Add(uint64(2), "gpu.energy.total", "J", "a.b", "\"\\\n\xff", -1.0)
	f.Add(uint64(3), "é\n", "°C/{x}", "__name__", "", math.NaN())
	f.Add(uint64(4), "x_bucket", "By/s", "le", "+Inf", math.Inf(1))
	f.Fuzz(func(t *testing.T, seed uint64, name, unit, key, value string, v float64) {
		g := generator{
			Rand:   rand.New(rand.NewPCG(seed, 0)),
			names:  []string{name, name + ".count", name + "_sum", name + "_total", "x", "x.bucket", "x_count", "x_created", "", "gpumeter.page.dropped"},
			units:  []string{unit, "", "1", "By", "s", "By/s", "{gpu}"},
			keys:   []string{key, "a.b", "a_b", "le", "quantile", "__name__", "host.name", ""},
			values: []string{value, "", "1", "a\"b\\c\n", "\xff"},
			floats: []float64{v, 0, 1, 2.5, -1, math.NaN(), math.Inf(1)},
		}
		md := g.metrics()
		var d dropped
		families := merge(split(md), newTranslation([]string{"host.name", key}, &d))
		checkText(t, families, md.DataPointCount(), &d)
		checkOpenMetrics(t, families)
	})
}

func checkText(t *testing.T, families []*dto.MetricFamily, points int, d *dropped) {
	var page bytes.Buffer
	if err := encode(&page, families, textFormat); err != nil {
		t.Fatal(err)
	}
	text := page.String()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	parsed, err := parser.TextToMetricFamilies(&page)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	delete(parsed, droppedName)
	onPage := 0
	for name, f := range parsed {
		slices.SortFunc(f.Metric, func(a, b *dto.Metric) int { return compareLabels(a.Label, b.Label) })
		unique := slices.CompactFunc(slices.Clone(f.Metric), func(a, b *dto.Metric) bool { return compareLabels(a.Label, b.Label) == 0 })
		if len(unique) != len(f.Metric) {
			t.Errorf("%s has one series twice:\n%s", name, text)
		}
		onPage += len(unique)
	}
	for _, r := range []reason{deltaTemporality, exponentialHistogram, invalidPoint, nameConflict, seriesConflict} {
		points -= int(d.counts[r].Load())
	}
	if onPage != points {
		t.Errorf("%d series on the page, want %d:\n%s", onPage, points, text)
	}
}

// checkOpenMetrics checks what expfmt leaves to its caller.
func checkOpenMetrics(t *testing.T, families []*dto.MetricFamily) {
	var page bytes.Buffer
	if err := encode(&page, families, expfmt.TypeOpenMetrics); err != nil {
		t.Fatal(err)
	}
	text := page.String()
	if !strings.HasSuffix(text, "\n# EOF\n") {
		t.Errorf("no end:\n%s", text)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		switch fields := strings.Fields(line); {
		case strings.HasPrefix(line, "# TYPE "):
			if seen[fields[2]] {
				t.Errorf("%s comes twice:\n%s", fields[2], text)
			}
			seen[fields[2]] = true
		case strings.HasPrefix(line, "# UNIT "):
			if len(fields) != 4 || !strings.HasSuffix(fields[2], "_"+fields[3]) {
				t.Errorf("bad unit: %s", line)
			}
		}
	}
}

// generator creates random metrics from few strings and numbers, so that they collide.
type generator struct {
	*rand.Rand
	names, units, keys, values []string
	floats                     []float64
}

func pick[T any](g generator, from []T) T { return from[g.IntN(len(from))] }

func (g generator) metrics() pmetric.Metrics {
	md := pmetric.NewMetrics()
	for range 1 + g.IntN(3) {
		rm := md.ResourceMetrics().AppendEmpty()
		g.attributes(rm.Resource().Attributes())
		for range 1 + g.IntN(2) {
			sm := rm.ScopeMetrics().AppendEmpty()
			sm.Scope().SetName(pick(g, g.values))
			for range g.IntN(5) {
				g.metric(sm.Metrics().AppendEmpty())
			}
		}
	}
	return md
}

func (g generator) attributes(to pcommon.Map) {
	for range g.IntN(4) {
		to.PutStr(pick(g, g.keys), pick(g, g.values))
	}
}

func (g generator) metric(m pmetric.Metric) {
	m.SetName(pick(g, g.names))
	m.SetUnit(pick(g, g.units))
	m.SetDescription(pick(g, g.values))
	temporality := min(pmetric.AggregationTemporality(g.IntN(8)), pmetric.AggregationTemporalityCumulative)
	n := g.IntN(4)
	switch g.IntN(6) {
	case 0:
		g.numbers(m.SetEmptyGauge().DataPoints(), n)
	case 1:
		m.SetEmptySum().SetIsMonotonic(g.IntN(2) == 0)
		m.Sum().SetAggregationTemporality(temporality)
		g.numbers(m.Sum().DataPoints(), n)
	case 2:
		m.SetEmptyHistogram().SetAggregationTemporality(temporality)
		for range n {
			g.histogram(m.Histogram().DataPoints().AppendEmpty())
		}
	case 3:
		for range n {
			g.summary(m.SetEmptySummary().DataPoints().AppendEmpty())
		}
	case 4:
		for range n {
			g.attributes(m.SetEmptyExponentialHistogram().DataPoints().AppendEmpty().Attributes())
		}
	}
}

func (g generator) numbers(to pmetric.NumberDataPointSlice, n int) {
	for range n {
		p := to.AppendEmpty()
		g.attributes(p.Attributes())
		switch g.IntN(8) {
		case 0:
		case 1:
			p.SetIntValue(g.Int64())
		default:
			p.SetDoubleValue(pick(g, g.floats))
		}
	}
}

func (g generator) histogram(p pmetric.HistogramDataPoint) {
	g.attributes(p.Attributes())
	total, bound := uint64(0), pick(g, g.floats)
	for range g.IntN(4) {
		n := g.Uint64N(5)
		total += n
		p.ExplicitBounds().Append(bound)
		p.BucketCounts().Append(n)
		bound += pick(g, g.floats)
	}
	if g.IntN(4) > 0 {
		p.BucketCounts().Append(1)
		total++
	}
	p.SetCount(total)
	if g.IntN(4) > 0 {
		p.SetSum(pick(g, g.floats))
	}
}

func (g generator) summary(p pmetric.SummaryDataPoint) {
	g.attributes(p.Attributes())
	p.SetCount(g.Uint64N(100))
	p.SetSum(pick(g, g.floats))
	for range g.IntN(3) {
		q := p.QuantileValues().AppendEmpty()
		q.SetQuantile(pick(g, g.floats))
		q.SetValue(pick(g, g.floats))
	}
}
