package cudareceiver

import (
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/receiver/cudareceiver/internal/metadata"
)

// series is one that was shown, so that it can be told to end.
type series struct {
	metric  string
	attrs   pcommon.Map // as recorded
	subject *subject    // nil: of the tracer itself
	start   pcommon.Timestamp
}

// histograms makes histograms of the sums that stand for them: mdatagen has none.
func (e *emitter) histograms(md pmetric.Metrics) {
	eachMetric(md, func(m pmetric.Metric) {
		list := e.spread[m.Name()]
		if len(list) == 0 {
			return
		}
		sums := pmetric.NewNumberDataPointSlice()
		m.Sum().DataPoints().MoveAndAppendTo(sums)
		of := seconds
		if m.Name() == metadata.MetricsInfo.NcclCollectiveMessageSize.Name {
			of = sizes
		}
		if e.cfg.Histograms == exponential {
			m.SetEmptyExponentialHistogram().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		} else {
			m.SetEmptyHistogram().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		}
		for i, sum := range sums.All() {
			var to point
			if e.cfg.Histograms == exponential {
				dp := m.ExponentialHistogram().DataPoints().AppendEmpty()
				list[i].exponential(dp)
				to = dp
			} else {
				dp := m.Histogram().DataPoints().AppendEmpty()
				list[i].explicit(dp, of)
				to = dp
			}
			sum.Attributes().MoveTo(to.Attributes())
			to.SetTimestamp(sum.Timestamp())
		}
	})
}

// finish gives points their identity and counters their start, and ends series that the
// reading before had and this one has not: a database would show them for minutes more.
func (e *emitter) finish(md pmetric.Metrics, l *ledger, s *tracer.Snapshot) {
	subjects := make(map[string]*subject, len(l.subjects))
	for _, sub := range l.subjects {
		subjects[sub.key] = sub
	}
	began := pcommon.NewTimestampFromTime(e.began)
	if s != nil {
		began = pcommon.NewTimestampFromTime(s.Started)
	}
	now := make(map[string]series, len(e.shown))
	metrics := map[string]pmetric.Metric{}
	eachMetric(md, func(m pmetric.Metric) {
		metrics[m.Name()] = m
		if _, ok := e.frames[m.Name()]; !ok {
			e.frames[m.Name()] = frame(m)
		}
		counts := m.Type() != pmetric.MetricTypeGauge
		eachPoint(m, func(dp point) {
			was := series{metric: m.Name(), attrs: pcommon.NewMap()}
			dp.Attributes().CopyTo(was.attrs)
			if counts {
				was.start = began
			}
			if key, ok := dp.Attributes().Get("gpu.uuid"); ok {
				was.subject = subjects[key.Str()]
				if counts {
					was.start = pcommon.NewTimestampFromTime(was.subject.start(dp.Attributes()))
				}
				dress(dp.Attributes(), was.subject)
			}
			dp.SetStartTimestamp(was.start)
			now[m.Name()+"\x00"+flat(was.attrs)] = was
		})
	})
	ended := make([]string, 0)
	for key := range e.shown {
		if _, ok := now[key]; !ok {
			ended = append(ended, key)
		}
	}
	slices.Sort(ended)
	for _, key := range ended {
		was := e.shown[key]
		m, ok := metrics[was.metric]
		if !ok {
			m = md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().AppendEmpty() // the tracer's own are always there
			e.frames[was.metric].CopyTo(m)
			metrics[was.metric] = m
		}
		last := add(m)
		was.attrs.CopyTo(last.Attributes())
		if was.subject != nil {
			dress(last.Attributes(), was.subject)
		}
		last.SetTimestamp(e.ts)
		last.SetStartTimestamp(was.start)
		last.SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
	}
	e.shown = now
}

// start returns when the series of a subject with such attributes began.
func (s *subject) start(attrs pcommon.Map) time.Time {
	if name, ok := attrs.Get("gpu.cuda.kernel.name"); ok {
		if k := s.kernels[name.Str()]; k != nil && !k.since.IsZero() {
			return k.since
		}
	}
	if id, ok := attrs.Get("comm_id_hash"); ok {
		rank, _ := attrs.Get("rank")
		size, _ := attrs.Get("nranks")
		if c := s.comms[commKey{id.Str(), int(rank.Int()), int(size.Int())}]; c != nil && !c.since.IsZero() {
			return c.since
		}
	}
	return s.since
}

// dress puts what a subject is in the place of its key, and takes away what is not known.
func dress(attrs pcommon.Map, s *subject) {
	attrs.RemoveIf(func(key string, v pcommon.Value) bool {
		switch key {
		case "gpu.index", "gpu.model", "gpu.uuid", "gpu.vendor":
			return true
		case "nccl.peer_rank":
			return v.Int() < 0
		}
		return v.Type() == pcommon.ValueTypeStr && v.Str() == ""
	})
	label(attrs, s)
}

// label adds the identity of a subject.
func label(attrs pcommon.Map, s *subject) {
	attrs.EnsureCapacity(attrs.Len() + len(s.pairs) + 2)
	for _, p := range s.pairs {
		attrs.PutStr(p.Key, p.Value)
	}
	if s.id.UUID != "" && s.id.Index >= 0 {
		attrs.PutInt("gpu.index", int64(s.id.Index))
	}
	if s.pid != 0 {
		attrs.PutInt("process.pid", int64(s.pid))
	}
}

// flat returns attributes as one text. They are always recorded in the same order.
func flat(attrs pcommon.Map) string {
	var b strings.Builder
	for _, v := range attrs.All() {
		b.WriteString(v.AsString())
		b.WriteByte(0)
	}
	return b.String()
}

// frame returns a metric like m, without points.
func frame(m pmetric.Metric) pmetric.Metric {
	f := pmetric.NewMetric()
	f.SetName(m.Name())
	f.SetDescription(m.Description())
	f.SetUnit(m.Unit())
	switch m.Type() {
	case pmetric.MetricTypeSum:
		s := f.SetEmptySum()
		s.SetIsMonotonic(true)
		s.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	case pmetric.MetricTypeHistogram:
		f.SetEmptyHistogram().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	case pmetric.MetricTypeExponentialHistogram:
		f.SetEmptyExponentialHistogram().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	default:
		f.SetEmptyGauge()
	}
	return f
}

// point is what the points of all kinds of metrics have in common.
type point interface {
	Attributes() pcommon.Map
	SetStartTimestamp(pcommon.Timestamp)
	SetTimestamp(pcommon.Timestamp)
	SetFlags(pmetric.DataPointFlags)
}

func eachPoint(m pmetric.Metric, f func(point)) {
	switch m.Type() {
	case pmetric.MetricTypeSum:
		for _, dp := range m.Sum().DataPoints().All() {
			f(dp)
		}
	case pmetric.MetricTypeHistogram:
		for _, dp := range m.Histogram().DataPoints().All() {
			f(dp)
		}
	case pmetric.MetricTypeExponentialHistogram:
		for _, dp := range m.ExponentialHistogram().DataPoints().All() {
			f(dp)
		}
	default:
		for _, dp := range m.Gauge().DataPoints().All() {
			f(dp)
		}
	}
}

// add adds a point to m.
func add(m pmetric.Metric) point {
	switch m.Type() {
	case pmetric.MetricTypeSum:
		return m.Sum().DataPoints().AppendEmpty()
	case pmetric.MetricTypeHistogram:
		return m.Histogram().DataPoints().AppendEmpty()
	case pmetric.MetricTypeExponentialHistogram:
		return m.ExponentialHistogram().DataPoints().AppendEmpty()
	}
	return m.Gauge().DataPoints().AppendEmpty()
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
