package gpuspanprocessor

import (
	"context"
	"slices"
	"sync"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpumeter/gpumeter/internal/sender"
	"github.com/gpumeter/gpumeter/internal/timeline"
)

// ahead is how far a clock may be ahead of ours, in nanoseconds.
const ahead = 10e9

// group are the spans of one sender in a batch. They share joules.
type group struct {
	sender.Sender

	spans  []ptrace.Span
	times  []timeline.Span
	byID   map[pcommon.SpanID]int
	answer timeline.Answer
}

// batch is the work on one batch. It is used again: spans must not allocate.
type batch struct {
	groups []*group
	n      int // groups in use
	tally  tally
}

var batches = sync.Pool{New: func() any { return &batch{} }}

// mostKept is how many spans a group may have had whose memory is kept.
const mostKept = 1 << 14

func (b *batch) release() {
	for _, g := range b.groups[:b.n] {
		clear(g.spans)
		if cap(g.spans) > mostKept {
			*g = group{}
		}
	}
	b.n, b.tally = 0, tally{}
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
	g.Sender, g.spans, g.times = s, g.spans[:0], g.times[:0]
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
		g := b.group(who)
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
				g.spans, g.times = append(g.spans, span), append(g.times, timeline.Span{From: start, To: end, Parent: -1})
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
			}
		}
	}
	p.meters.count(ctx, &b.tally)
	return td, nil
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
	case slices.ContainsFunc(states, func(s timeline.State) bool { return s.Late }):
		return late
	}
	return matched
}
