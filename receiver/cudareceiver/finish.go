package cudareceiver

import (
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/series"
	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/ledger"
	"github.com/gpumeter/gpumeter/receiver/cudareceiver/internal/metadata"
)

// histograms replaces placeholder sums by histograms, which mdatagen does not support.
func (e *emitter) histograms(md pmetric.Metrics) {
	for m := range series.Metrics(md) {
		list := e.spread[m.Name()]
		if len(list) == 0 {
			continue
		}
		sums := pmetric.NewNumberDataPointSlice()
		m.Sum().DataPoints().MoveAndAppendTo(sums)
		of := seconds
		switch m.Name() {
		case metadata.MetricsInfo.NcclCollectiveMessageSize.Name:
			of = sizes
		case metadata.MetricsInfo.TrainingStepDuration.Name:
			of = steps
		}
		if e.cfg.Histograms == exponential {
			m.SetEmptyExponentialHistogram().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		} else {
			m.SetEmptyHistogram().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		}
		for i, sum := range sums.All() {
			var to series.Point
			var exemplars pmetric.ExemplarSlice
			if e.cfg.Histograms == exponential {
				dp := m.ExponentialHistogram().DataPoints().AppendEmpty()
				fillExponential(dp, list[i])
				to, exemplars = dp, dp.Exemplars()
			} else {
				dp := m.Histogram().DataPoints().AppendEmpty()
				fillExplicit(dp, list[i], of)
				to, exemplars = dp, dp.Exemplars()
			}
			if m.Name() == metadata.MetricsInfo.GpuCudaOperationDuration.Name {
				e.calls.put(sum.Attributes(), exemplars)
			}
			sum.Attributes().MoveTo(to.Attributes())
			to.SetTimestamp(sum.Timestamp())
		}
	}
}

// finish adds identities to points and start times to counters.
func (e *emitter) finish(md pmetric.Metrics, l *ledger.Ledger, s *tracer.Snapshot) {
	subjects := make(map[string]*ledger.Subject, len(l.Subjects))
	for _, sub := range l.Subjects {
		subjects[sub.Key] = sub
	}
	tracing := e.began
	if s != nil {
		tracing = s.Started
	}
	for m := range series.Metrics(md) {
		for dp := range series.Points(m) {
			began := tracing
			if key, ok := dp.Attributes().Get("gpu.uuid"); ok {
				sub := subjects[key.Str()]
				began = start(sub, dp.Attributes())
				dress(dp.Attributes(), sub)
			}
			series.Start(m, dp, began)
		}
	}
}

// start returns the start time of the series of a subject with these attributes.
func start(s *ledger.Subject, attrs pcommon.Map) time.Time {
	if name, ok := attrs.Get("gpu.cuda.kernel.name"); ok {
		if k := s.Kernels[name.Str()]; k != nil && !k.Since.IsZero() {
			return k.Since
		}
	}
	if id, ok := attrs.Get("comm_id_hash"); ok {
		rank, _ := attrs.Get("rank")
		size, _ := attrs.Get("nranks")
		if c := s.Comms[ledger.CommKey{ID: id.Str(), Rank: int(rank.Int()), Size: int(size.Int())}]; c != nil && !c.Since.IsZero() {
			return c.Since
		}
	}
	return s.Since
}

// dress replaces the key of a subject by its identity and removes unknown attributes.
func dress(attrs pcommon.Map, s *ledger.Subject) {
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
func label(attrs pcommon.Map, s *ledger.Subject) {
	attrs.EnsureCapacity(attrs.Len() + len(s.Pairs) + 2)
	for _, p := range s.Pairs {
		attrs.PutStr(p.Key, p.Value)
	}
	if s.ID.UUID != "" && s.ID.Index >= 0 {
		attrs.PutInt("gpu.index", int64(s.ID.Index))
	}
	if s.PID != 0 {
		attrs.PutInt("process.pid", int64(s.PID))
	}
}
