package gpuspanprocessor

import (
	"context"

	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/sender"
	"github.com/gpumeter/gpumeter/internal/timeline"
)

// recordNumbers have the names of the metrics whose values they are.
var recordNumbers = []number{
	{"gpu.utilization", func(s *timeline.State) device.Value { return s.Utilization.End }},
	{"gpu.memory.used", func(s *timeline.State) device.Value { return s.Memory.End }},
	{"gpu.temperature", func(s *timeline.State) device.Value { return s.Temperature.End }},
}

// logs adds to log records which devices their process had, and their readings at the time.
func (p *spanProcessor) logs(ctx context.Context, ld plog.Logs) (plog.Logs, error) {
	var t tally
	var answer timeline.Answer
	now := p.clock().UnixNano()
	finder, from := p.finder.Load(), peer(ctx)
	for _, rl := range ld.ResourceLogs().All() {
		who := finder.Find(claims(rl.Resource().Attributes()), from)
		for _, sl := range rl.ScopeLogs().All() {
			if !who.Known() {
				t[unknown] += int64(sl.LogRecords().Len())
				continue
			}
			for _, rec := range sl.LogRecords().All() {
				at := int64(rec.Timestamp())
				if at == 0 {
					at = int64(rec.ObservedTimestamp())
				}
				switch {
				case at <= 0:
					t[invalid]++
					continue
				case at > now+ahead:
					t[future]++
					continue
				}
				states := p.at(who, at, &answer)
				t[p.outcome(states, at)]++
				if _, ours := rec.Attributes().Get(keyUUID); len(states) > 0 && !ours {
					identify(rec.Attributes(), states)
					numbers(rec.Attributes(), recordNumbers, states)
				}
			}
		}
	}
	p.meters.count(ctx, &t)
	return ld, nil
}

// metrics adds to resources which devices their process has. Values would begin a series with each reading.
func (p *spanProcessor) metrics(ctx context.Context, md pmetric.Metrics) (pmetric.Metrics, error) {
	var t tally
	var answer timeline.Answer
	now := p.clock().UnixNano()
	finder, from := p.finder.Load(), peer(ctx)
	for _, rm := range md.ResourceMetrics().All() {
		attrs := rm.Resource().Attributes()
		who := finder.Find(claims(attrs), from)
		if !who.Known() {
			t[unknown]++
			continue
		}
		states := p.at(who, now, &answer)
		t[p.outcome(states, now)]++
		if len(states) > 0 {
			identify(attrs, states)
		}
	}
	p.meters.count(ctx, &t)
	return md, nil
}

// at returns the states of the devices of a sender at a moment.
func (k *memory) at(who sender.Sender, when int64, answer *timeline.Answer) []timeline.State {
	k.timeline.Ask(timeline.Subject{Workloads: who.Workloads, PID: who.PID}, []timeline.Span{{From: when, To: when, Parent: -1}}, answer)
	return answer.Of(0)
}
