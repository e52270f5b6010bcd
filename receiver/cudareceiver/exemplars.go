package cudareceiver

import (
	"encoding/hex"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/spans"
	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/ledger"
)

const (
	maxCalls  = 256              // that wait for their span
	spanAfter = 60 * time.Second // how long after a call its span may come: it comes when it has ended
	perPoint  = 4                // exemplars
	linked    = 5                // spans that the record of an anomaly links to
	keySpans  = "gpu.spans"
)

// call is a single call that the tracer reported, which may become an exemplar.
type call struct {
	subject  string // key
	op       ledger.OpKey
	at       time.Time
	took     time.Duration
	pid      uint32
	workload string
	span     spans.Link
}

// exemplars finds the spans of calls. They come later than the calls.
type exemplars struct {
	board   *spans.Board // nil: no spans
	waiting []call
	ready   []call
}

// see adds the calls of a reading, and finds the spans of earlier ones.
func (x *exemplars) see(l *ledger.Ledger, s *tracer.Snapshot) {
	x.ready = nil
	if x.board == nil || s == nil {
		return
	}
	for i := range s.Events {
		e := &s.Events[i]
		p := l.Seen[e.PID]
		if p == nil || e.Duration <= 0 || p.At[e.Device] == nil {
			continue
		}
		sub := p.At[e.Device]
		for k := range sub.Ops {
			if k.Op == e.Op {
				x.waiting = append(x.waiting, call{subject: sub.Key, op: k, at: e.Time, took: e.Duration, pid: e.PID, workload: p.Workload()})
				break
			}
		}
	}
	x.waiting = x.waiting[max(0, len(x.waiting)-maxCalls):]
	left := x.waiting[:0]
	for _, c := range x.waiting {
		from := c.at.UnixNano()
		found := x.board.During(c.workload, c.pid, from, from+int64(c.took), 1<<10)
		inside := false
		for _, link := range found { // the longest first: the last one is the innermost
			if link.From <= from && link.To >= from+int64(c.took) {
				c.span, inside = link, true
			}
		}
		switch {
		case inside:
			x.ready = append(x.ready, c)
		case s.Time.Sub(c.at) < spanAfter:
			left = append(left, c)
		}
	}
	x.waiting = left
}

// publish makes what each process asked of CUDA known to whoever asks for the time of a span.
func (x *exemplars) publish(s *tracer.Snapshot) {
	if x.board == nil || s == nil {
		return
	}
	all := make(map[uint32]spans.Calls, len(s.Processes))
	for i := range s.Processes {
		p := &s.Processes[i]
		var c spans.Calls
		for _, d := range p.Devices {
			c.Busy += d.Busy.Seconds()
			c.Waited += d.Wait.Seconds()
		}
		for j := range p.Ops {
			switch o := &p.Ops[j]; o.Class {
			case tracer.Launch, tracer.Graph:
				c.Launches += float64(o.Time.Count)
			case tracer.Copy:
				c.Copied += float64(o.Bytes)
			default:
			}
		}
		all[p.PID] = c
	}
	x.board.Traced(s.Time.UnixNano(), all)
}

// put adds the exemplars of a point whose attributes are those before finish.
func (x *exemplars) put(attrs pcommon.Map, to pmetric.ExemplarSlice) {
	if len(x.ready) == 0 {
		return
	}
	key, _ := attrs.Get("gpu.uuid")
	class, _ := attrs.Get("gpu.cuda.class")
	op, _ := attrs.Get("gpu.cuda.operation")
	for _, c := range x.ready {
		if to.Len() == perPoint {
			return
		}
		if c.subject != key.Str() || string(c.op.Class) != class.Str() || op.Str() != "" && op.Str() != c.op.Op {
			continue
		}
		e := to.AppendEmpty()
		e.SetDoubleValue(c.took.Seconds())
		e.SetTimestamp(pcommon.NewTimestampFromTime(c.at))
		e.SetTraceID(c.span.Trace)
		e.SetSpanID(c.span.ID)
	}
}

// link adds spans to a list.
func link(list pcommon.Slice, found []spans.Link) {
	for _, s := range found {
		m := list.AppendEmpty().SetEmptyMap()
		m.PutStr("trace_id", hex.EncodeToString(s.Trace[:]))
		m.PutStr("span_id", hex.EncodeToString(s.ID[:]))
		m.PutStr("service.name", s.Service)
		m.PutStr("name", s.Name)
		m.PutDouble("duration", float64(s.To-s.From)/1e9)
	}
}
