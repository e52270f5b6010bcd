package trainingprocessor

import (
	"math"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/tracer/training"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// looseScope is the name of the meter whose metrics may have the names that training loops use, such as loss:
// elsewhere these can be anything.
const looseScope = "training"

const (
	prefix     = "training_"
	keySource  = "training.source"
	keyRank    = "training.rank"
	keyRun     = "training.run"
	reported   = "reported"
	mostPoints = 1000 // of a metric in one request
)

func wordOf(name string, loose bool) (training.Word, bool) { return training.Named(name, loose) }

// ours reports whether a name would be stored below training. Stores with Prometheus names turn all that is neither
// a letter nor a digit into underscores, and drop those in front.
func ours(name string) bool {
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, name)
	return strings.HasPrefix(strings.TrimLeft(name, "_")+"_", prefix)
}

func quote(name string) string { return strconv.QuoteToASCII(name[:min(len(name), 200)]) }

func pointsOf(m pmetric.Metric) int {
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		return m.Gauge().DataPoints().Len()
	case pmetric.MetricTypeSum:
		return m.Sum().DataPoints().Len()
	case pmetric.MetricTypeHistogram:
		return m.Histogram().DataPoints().Len()
	case pmetric.MetricTypeExponentialHistogram:
		return m.ExponentialHistogram().DataPoints().Len()
	case pmetric.MetricTypeSummary:
		return m.Summary().DataPoints().Len()
	}
	return 0
}

// point is what the points of all kinds have in common.
type point interface {
	Attributes() pcommon.Map
	Timestamp() pcommon.Timestamp
	SetStartTimestamp(v pcommon.Timestamp)
}

// translate makes m a metric of the vocabulary, and removes the points that cannot be meant.
func (t *translator) translate(m pmetric.Metric, w *training.Word, from *sender, tally *[outcomes]int64) {
	factor, ok := factorOf(m.Unit(), w)
	if !ok || !shape(m, w) {
		t.refuse(tally, malformed, pointsOf(m), m.Name())
		m.SetEmptyGauge()
		return
	}
	name := m.Name()
	m.SetName(w.Name)
	m.SetUnit(w.Unit)
	m.SetDescription("")
	n, now := 0, time.Now()
	watched := false
	if t.reports != nil && from.job != "" {
		watched = t.reports.Report(from.job, w.Name, now)
	}
	drop := func(p point, fits bool) bool {
		o := accepted
		switch n++; {
		case !fits || n > mostPoints:
			o = absurd
		case w.Once && rankOf(p.Attributes(), from.rank) != 0:
			o = notFirst
		case len(from.pairs) == 0:
			o = unowned
		}
		if o > unowned {
			t.refuse(tally, o, 1, name)
			return true
		}
		tally[o]++
		dress(p.Attributes(), from)
		if watched { // its beginning has been counted from outside: the store must not add it again
			p.SetStartTimestamp(0)
		}
		return false
	}
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		m.Gauge().DataPoints().RemoveIf(func(p pmetric.NumberDataPoint) bool { return drop(p, scale(p, w, factor)) })
	case pmetric.MetricTypeSum:
		m.Sum().DataPoints().RemoveIf(func(p pmetric.NumberDataPoint) bool { return drop(p, scale(p, w, factor)) })
	case pmetric.MetricTypeHistogram:
		m.Histogram().DataPoints().RemoveIf(func(p pmetric.HistogramDataPoint) bool { return drop(p, stretch(p, w, factor)) })
	case pmetric.MetricTypeExponentialHistogram:
		m.ExponentialHistogram().DataPoints().RemoveIf(func(p pmetric.ExponentialHistogramDataPoint) bool { return drop(p, plausible(p.Sum(), p.Count(), w)) })
	}
}

// factorOf returns what a value in a unit has to be multiplied by. A metric without a unit has the right one.
func factorOf(unit string, w *training.Word) (float64, bool) {
	if unit == "" || unit == w.Unit || strings.HasPrefix(unit, "{") && strings.HasPrefix(w.Unit, "{") {
		return 1, true
	}
	switch w.Unit + " " + unit {
	case "s ms":
		return 1e-3, true
	case "s us":
		return 1e-6, true
	case "1 %":
		return 1e-2, true
	case "By KiBy":
		return 1 << 10, true
	case "By MiBy":
		return 1 << 20, true
	case "By GiBy":
		return 1 << 30, true
	}
	return 1, strings.HasPrefix(w.Unit, "{") && unit == "1"
}

// shape makes the kind of m that of the word, if it can be: a gauge of a count, such as a global step, is a
// counter whose beginning is unknown. Deltas are not: the same request may come twice.
func shape(m pmetric.Metric, w *training.Word) bool {
	switch w.Kind {
	case training.Gauge:
		return m.Type() == pmetric.MetricTypeGauge
	case training.Durations:
		switch m.Type() {
		case pmetric.MetricTypeHistogram:
			return m.Histogram().AggregationTemporality() == pmetric.AggregationTemporalityCumulative
		case pmetric.MetricTypeExponentialHistogram: // its buckets cannot be converted to another unit
			return m.ExponentialHistogram().AggregationTemporality() == pmetric.AggregationTemporalityCumulative && (m.Unit() == "" || m.Unit() == w.Unit)
		}
		return false
	}
	switch m.Type() {
	case pmetric.MetricTypeSum:
		return m.Sum().IsMonotonic() && m.Sum().AggregationTemporality() == pmetric.AggregationTemporalityCumulative
	case pmetric.MetricTypeGauge:
		points := pmetric.NewNumberDataPointSlice()
		m.Gauge().DataPoints().MoveAndAppendTo(points)
		sum := m.SetEmptySum()
		sum.SetIsMonotonic(true)
		sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		points.MoveAndAppendTo(sum.DataPoints())
		for _, p := range sum.DataPoints().All() {
			p.SetStartTimestamp(0)
		}
		return true
	}
	return false
}

// scale converts a value, and reports whether it can be meant.
func scale(p pmetric.NumberDataPoint, w *training.Word, factor float64) bool {
	if p.Flags().NoRecordedValue() {
		return true
	}
	var v float64
	switch p.ValueType() {
	case pmetric.NumberDataPointValueTypeInt:
		v = float64(p.IntValue())
	case pmetric.NumberDataPointValueTypeDouble:
		v = p.DoubleValue()
	default:
		return false
	}
	v *= factor
	if !(v >= w.Low && v <= w.High) { // also no number
		return false
	}
	if factor != 1 {
		p.SetDoubleValue(v)
	}
	return true
}

func plausible(sum float64, count uint64, w *training.Word) bool {
	return count < 1<<53 && sum >= 0 && !math.IsInf(sum, 0) && sum <= w.High*float64(count)
}

// stretch converts a histogram.
func stretch(p pmetric.HistogramDataPoint, w *training.Word, factor float64) bool {
	if p.Flags().NoRecordedValue() {
		return true
	}
	if !p.HasSum() || !plausible(p.Sum()*factor, p.Count(), w) {
		return false
	}
	if factor == 1 {
		return true
	}
	p.SetSum(p.Sum() * factor)
	if p.HasMin() {
		p.SetMin(p.Min() * factor)
	}
	if p.HasMax() {
		p.SetMax(p.Max() * factor)
	}
	for i, b := range p.ExplicitBounds().All() {
		p.ExplicitBounds().SetAt(i, b*factor)
	}
	return true
}

// rankOf returns the rank that attributes name.
func rankOf(attrs pcommon.Map, otherwise int64) int64 {
	for _, key := range []string{keyRank, "rank"} {
		v, ok := attrs.Get(key)
		if !ok {
			continue
		}
		if v.Type() == pcommon.ValueTypeInt {
			return v.Int()
		}
		if n, err := strconv.ParseInt(v.AsString(), 10, 32); err == nil {
			return n
		}
	}
	return otherwise
}

// dress replaces what only the agent may say: the owner, the device and the source.
func dress(attrs pcommon.Map, from *sender) {
	rank := rankOf(attrs, from.rank)
	attrs.RemoveIf(func(key string, _ pcommon.Value) bool {
		switch key {
		case keySource, keyRun, keyRank, "rank":
			return true
		}
		for _, own := range []string{workload.OwnPrefix, "gpu.", "gpumeter.", "k8s.", "slurm.", "container.", "user."} {
			if strings.HasPrefix(key, own) {
				return true
			}
		}
		return false
	})
	attrs.PutStr(keySource, reported)
	attrs.PutInt(keyRank, rank)
	if from.run != "" {
		attrs.PutStr(keyRun, from.run)
	}
	for _, p := range from.pairs {
		attrs.PutStr(p.Key, p.Value)
	}
}
