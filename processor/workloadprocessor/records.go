package workloadprocessor

import (
	"context"

	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/ptrace"
)

func (p *workloadProcessor) logs(ctx context.Context, ld plog.Logs) (plog.Logs, error) {
	w := &pass{workloadProcessor: p}
	for _, rl := range ld.ResourceLogs().All() {
		p.lexicon.read(rl.Resource().Attributes(), &w.base)
		for _, sl := range rl.ScopeLogs().All() {
			for _, record := range sl.LogRecords().All() {
				w.item(record.Attributes(), false)
			}
		}
		w.resource(rl.Resource().Attributes(), true)
	}
	p.meters.count(ctx, &w.tally)
	return ld, nil
}

func (p *workloadProcessor) traces(ctx context.Context, td ptrace.Traces) (ptrace.Traces, error) {
	w := &pass{workloadProcessor: p}
	for _, rs := range td.ResourceSpans().All() {
		p.lexicon.read(rs.Resource().Attributes(), &w.base)
		for _, ss := range rs.ScopeSpans().All() {
			for _, span := range ss.Spans().All() {
				w.item(span.Attributes(), false)
			}
		}
		w.resource(rs.Resource().Attributes(), true)
	}
	p.meters.count(ctx, &w.tally)
	return td, nil
}
