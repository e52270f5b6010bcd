package gpureceiver

import (
	"encoding/hex"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/gpumeter/gpumeter/internal/health"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/spans"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// eventSlowSpan is a span that took longer than spans of its name usually do, while its device was
// throttled, full or shared.
const eventSlowSpan = "gpu.slow_span"

// keySpans are the longest spans of applications that something happened to.
const keySpans = "gpu.spans"

// linked is how many spans a record links to.
const linked = 5

// slowSpan fills in the record of a slow span.
func slowSpan(rec plog.LogRecord, s *spans.Slow, t node.Tick) {
	attrs := rec.Attributes()
	bare(attrs, s.Device)
	whose(attrs, holding(&t, s.Workload))
	if s.Service != "" {
		attrs.PutStr("service.name", s.Service)
	}
	attrs.PutStr("gpu.slow_span.name", s.Name)
	attrs.PutDouble("gpu.slow_span.duration", float64(s.To-s.From)/1e9)
	attrs.PutDouble("gpu.slow_span.usual", s.Usual)
	attrs.PutDouble("gpu.slow_span.lost.time", s.Lost)
	attrs.PutStr("cause", string(s.Cause()))
	attrs.PutDouble("gpu.slow_span.unexplained", s.Unexplained)
	if len(s.Neighbours) > 0 {
		list := attrs.PutEmptySlice("gpu.span.neighbours")
		for _, name := range s.Neighbours {
			list.AppendEmpty().SetStr(name)
		}
	}
	parts := attrs.PutEmptySlice("gpu.slow_span.explanations")
	for _, e := range s.Explanations {
		m := parts.AppendEmpty().SetEmptyMap()
		m.PutStr("cause", string(e.Cause))
		m.PutDouble("share", e.Share)
		m.PutDouble("seconds", e.Seconds)
		m.PutStr("fact", e.Fact)
	}
	rec.SetTraceID(s.Trace)
	rec.SetSpanID(s.ID)
	rec.SetTimestamp(pcommon.Timestamp(s.To))
	complete(rec, eventSlowSpan, plog.SeverityNumberWarn, s.Text(), t)
}

// holding returns the workload with an ID, if it is on a device.
func holding(t *node.Tick, id string) []workload.Workload {
	for i := range t.Readings {
		for _, h := range t.Readings[i].Holders {
			if h.ID == id {
				return []workload.Workload{h.Workload}
			}
		}
	}
	return nil
}

// hit links the record of a finding to the spans that ran while it was open.
func hit(rec plog.LogRecord, b *spans.Board, c *health.Change) {
	if b == nil {
		return
	}
	var list []spans.Link
	for i := range c.Workloads {
		list = append(list, b.During(c.Workloads[i].ID, 0, c.Since.UnixNano(), c.Time.UnixNano(), linked)...)
	}
	if len(list) == 0 {
		return
	}
	rec.SetTraceID(list[0].Trace)
	rec.SetSpanID(list[0].ID)
	out := rec.Attributes().PutEmptySlice(keySpans)
	for _, s := range list[:min(linked, len(list))] {
		m := out.AppendEmpty().SetEmptyMap()
		m.PutStr("trace_id", hex.EncodeToString(s.Trace[:]))
		m.PutStr("span_id", hex.EncodeToString(s.ID[:]))
		m.PutStr("service.name", s.Service)
		m.PutStr("name", s.Name)
		m.PutDouble("duration", time.Duration(s.To-s.From).Seconds())
	}
}
