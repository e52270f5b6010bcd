package workloadprocessor

import (
	"context"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// agentScopes is the prefix of the agent's own scopes. The agent sets the owners of its
// series itself, and some must not have one.
const agentScopes = "github.com/gpumeter/gpumeter/"

func (p *workloadProcessor) metrics(ctx context.Context, md pmetric.Metrics) (pmetric.Metrics, error) {
	if p.fleet != nil {
		p.fleet.learn(md)
	}
	w := &pass{workloadProcessor: p}
	for _, rm := range md.ResourceMetrics().All() {
		attrs := rm.Resource().Attributes()
		p.lexicon.read(attrs, &w.base)
		foreign, devices := false, false
		for _, sm := range rm.ScopeMetrics().All() {
			if strings.HasPrefix(sm.Scope().Name(), agentScopes) {
				continue
			}
			foreign = true
			for _, m := range sm.Metrics().All() {
				devices = w.metric(m) || devices
			}
		}
		// The reporter of device metrics does not own the devices.
		if foreign && !devices {
			w.resource(attrs, false)
		}
	}
	p.meters.count(ctx, &w.tally)
	return md, nil
}

// metric adds owners to the points of m, and reports whether they are about devices.
func (p *pass) metric(m pmetric.Metric) (devices bool) {
	skip := counts(m) && !p.cfg.Counters
	eachPoint(m, func(attrs pcommon.Map) bool {
		if skip { // all points of a metric are alike
			p.lexicon.read(attrs, &p.names)
			devices = p.names.device() || p.base.device()
			return false
		}
		devices = p.item(attrs, true) || devices
		return true
	})
	return devices
}

// counts reports whether the points of m are cumulative, so that ending a series loses data.
func counts(m pmetric.Metric) bool {
	switch m.Type() {
	case pmetric.MetricTypeEmpty, pmetric.MetricTypeGauge:
		return false
	case pmetric.MetricTypeSum:
		return m.Sum().IsMonotonic()
	}
	return true
}

// eachPoint calls f with the attributes of each point of m until f returns false.
func eachPoint(m pmetric.Metric, f func(pcommon.Map) bool) {
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		walk(m.Gauge().DataPoints(), f)
	case pmetric.MetricTypeSum:
		walk(m.Sum().DataPoints(), f)
	case pmetric.MetricTypeHistogram:
		walk(m.Histogram().DataPoints(), f)
	case pmetric.MetricTypeExponentialHistogram:
		walk(m.ExponentialHistogram().DataPoints(), f)
	case pmetric.MetricTypeSummary:
		walk(m.Summary().DataPoints(), f)
	}
}

func walk[S interface {
	Len() int
	At(i int) P
}, P interface{ Attributes() pcommon.Map }](list S, f func(pcommon.Map) bool) {
	for i := range list.Len() {
		if !f(list.At(i).Attributes()) {
			return
		}
	}
}
