package gpuspanprocessor

import (
	"context"
	"slices"
	"sync"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpumeter/gpumeter/internal/sender"
	"github.com/gpumeter/gpumeter/internal/spans"
	"github.com/gpumeter/gpumeter/internal/timeline"
)

// ahead is how far a clock may be ahead of ours, in nanoseconds.
const ahead = 10e9

// group are the spans of one sender in a batch. They share joules.
type group struct {
	sender.Sender

	spans  []ptrace.Span
	names  []string // of their services
	times  []timeline.Span
	byID   map[pcommon.SpanID]int
	answer timeline.Answer
}

// batch is the work on one batch. It is used again: spans must not allocate.
type batch struct {
	groups []*group
	n      int // groups in use
	judged []spans.Span
	tally  tally
}

var batches = sync.Pool{New: func() any { return &batch{} }}

// mostKept is how many spans a group may have had whose memory is kept.
const mostKept = 1 << 12

func (b *batch) release() {
	for _, g := range b.groups[:b.n] {
		clear(g.spans)
		clear(g.names)
		if cap(g.spans) > mostKept {
			*g = group{}
		}
	}
	clear(b.judged)
	b.n, b.tally, b.judged = 0, tally{}, b.judged[:0]
	batches.Put(b)
}

// group returns the group of a sender.
func (b *batch) group(s sender.Sender) *group {
	for _, g := range b.groups[:b.n] {
		if g.PID == s.PID && slices.Equal(g.Workloads, s.Workloads) {
			return g
		}
	}
	if b.n == len(b.groups) {
		b.groups = append(b.groups, &group{})
	}
	g := b.groups[b.n]
	b.n++
	if g.byID == nil {
		g.byID = map[pcommon.SpanID]int{}
	}
	clear(g.byID)
	g.Sender, g.spans, g.names, g.times = s, g.spans[:0], g.names[:0], g.times[:0]
	return g
}

func (p *spanProcessor) traces(ctx context.Context, td ptrace.Traces) (ptrace.Traces, error) {
	b := batches.Get().(*batch)
	defer b.release()
	now := p.clock().UnixNano()
	finder, from := p.finder.Load(), peer(ctx)
	for _, rs := range td.ResourceSpans().All() {
		who := finder.Find(claims(rs.Resource().Attributes()), from)
		if !who.Known() {
			for _, ss := range rs.ScopeSpans().All() {
				b.tally[unknown] += int64(ss.Spans().Len())
			}
			continue
		}
		g, service := b.group(who), serviceOf(rs)
		for _, ss := range rs.ScopeSpans().All() {
			for _, span := range ss.Spans().All() {
				start, end := int64(span.StartTimestamp()), int64(span.EndTimestamp())
				switch {
				case start <= 0 || end < start:
					b.tally[invalid]++
					continue
				case start > now+ahead:
					b.tally[future]++
					continue
				}
				g.byID[span.SpanID()] = len(g.spans)
				g.spans, g.names, g.times = append(g.spans, span), append(g.names, service), append(g.times, timeline.Span{From: start, To: end, Parent: -1})
			}
		}
	}
	for _, g := range b.groups[:b.n] {
		g.nest()
		p.timeline.Ask(timeline.Subject{Workloads: g.Workloads, PID: g.PID}, g.times, &g.answer)
		for i, span := range g.spans {
			states := g.answer.Of(i)
			b.tally[p.outcome(states, g.times[i].To)]++
			if len(states) > 0 {
				p.dress(span, states, &g.times[i])
				if g.PID != 0 && p.cfg.Names != namesGuide {
					p.called(span.Attributes(), g.PID, &g.times[i])
				}
				b.judged = append(b.judged, g.judged(i, states))
			}
		}
	}
	p.board.See(b.judged)
	p.meters.count(ctx, &b.tally)
	return td, nil
}

func serviceOf(rs ptrace.ResourceSpans) string {
	v, ok := rs.Resource().Attributes().Get("service.name")
	if !ok {
		return ""
	}
	return text(v)
}

// judged returns a span with the facts of the device that may have made it slow: the one with the most
// throttling and work of others.
func (g *group) judged(i int, states []timeline.State) spans.Span {
	span, at := g.spans[i], g.times[i]
	out := spans.Span{
		Trace: span.TraceID(), ID: span.SpanID(), Service: g.names[i], Name: span.Name(), PID: g.PID, From: at.From, To: at.To, Entry: at.Parent < 0,
	}
	worst := -1.0
	for j := range states {
		s := &states[j]
		took := max(float64(at.To-at.From)/1e9, 1e-9)
		power, heat := min(1, s.ByPower/took), min(1, max(s.Thermal, s.HW)/took)
		if score := power + heat + s.Others.Default(0); score > worst {
			worst = score
			out.Workload = s.Holder()
			out.Facts = spans.Facts{Device: s.ID, Own: s.Own, Others: s.Others, Busy: s.Utilization.Mean, Clock: s.Clock, ByPower: power, ByHeat: heat, Neighbours: s.Neighbours}
		}
	}
	return out
}

// nest finds the spans that enclose others.
func (g *group) nest() {
	for i, span := range g.spans {
		if id := span.ParentSpanID(); !id.IsEmpty() {
			if j, ok := g.byID[id]; ok && j != i && g.spans[j].TraceID() == span.TraceID() {
				g.times[i].Parent = j
			}
		}
	}
}

// outcome returns what is known of an item with these states.
func (k *memory) outcome(states []timeline.State, to int64) outcome {
	switch {
	case len(states) == 0 && to < k.timeline.Oldest():
		return expired
	case len(states) == 0:
		return idle
	case anyOf(states, func(s *timeline.State) bool { return s.Late }):
		return late
	}
	return matched
}
