package workloadprocessor

import (
	"context"
	"strings"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/series"
)

// agentScopes begins the names of the agent's own scopes. It has said whose its series
// are, and which must have no owner.
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
		// Who reports of devices is not who has them.
		if foreign && !devices {
			w.resource(attrs, false)
		}
	}
	p.meters.count(ctx, &w.tally)
	return md, nil
}

// metric says whose the points of m are, and returns whether they are of devices.
func (p *pass) metric(m pmetric.Metric) (devices bool) {
	skip := counts(m) && !p.cfg.Counters
	for attrs := range series.Attributes(m) {
		if skip { // one is like the others
			p.lexicon.read(attrs, &p.names)
			return p.names.device() || p.base.device()
		}
		devices = p.item(attrs, true) || devices
	}
	return devices
}

// counts reports whether the points of m go on from one another, so that a series which
// ends loses something.
func counts(m pmetric.Metric) bool {
	switch m.Type() {
	case pmetric.MetricTypeEmpty, pmetric.MetricTypeGauge:
		return false
	case pmetric.MetricTypeSum:
		return m.Sum().IsMonotonic()
	}
	return true
}
