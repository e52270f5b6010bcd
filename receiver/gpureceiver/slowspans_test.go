package gpureceiver

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/spans"
)

// Catches a slow span whose record does not say which span, whose GPU and which neighbor, or that is
// reported twice, and a finding without the spans that it hit.
func TestSlowSpans(t *testing.T) {
	r := newTestRecorder(false)
	r.board = &spans.Board{}
	tick := eventTick()
	const work = "slurm/c/7"
	span := func(second int64, took float64, f spans.Facts) spans.Span {
		f.Device = tick.Readings[0].ID
		end := now.UnixNano() + (second-100)*1e9
		return spans.Span{Trace: [16]byte{1, byte(second)}, ID: [8]byte{2, byte(second)}, Service: "api", Name: "generate", Workload: work, Entry: true, From: end - int64(took*1e9), To: end, Facts: f}
	}
	quiet := spans.Facts{Own: device.Of(0.5), Others: device.Of(0)}
	for i := range int64(99) {
		r.board.See([]spans.Span{span(i, 0.1, quiet)})
	}
	r.board.See([]spans.Span{span(99, 0.2, spans.Facts{Own: device.Of(0.5), Others: device.Of(0.5), Neighbours: []string{"other"}})})
	byEvent := map[string]plog.LogRecord{}
	n := 0
	for _, rec := range r.emit(tick).ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().All() {
		if rec.EventName() == eventSlowSpan {
			n++
		}
		if _, there := byEvent[rec.EventName()]; !there {
			byEvent[rec.EventName()] = rec
		}
	}
	rec := byEvent[eventSlowSpan]
	if n != 1 || rec.TraceID() != [16]byte{1, 99} || rec.SpanID() != [8]byte{2, 99} || rec.SeverityText() != "WARN" {
		t.Fatalf("%d records, such as %v", n, rec.Attributes().AsRaw())
	}
	got := rec.Attributes().AsRaw()
	for key, want := range map[string]any{
		"service.name": "api", "gpu.slow_span.name": "generate", "gpu.uuid": "GPU-0", "cause": "neighbour", "gpu.span.neighbours": []any{"other"}, "gpu.slow_span.duration": 0.2,
	} {
		if diff := cmp.Diff(want, got[key]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", key, diff)
		}
	}
	parts := got["gpu.slow_span.explanations"].([]any)
	share := got["gpu.slow_span.unexplained"].(float64)
	for _, p := range parts {
		share += p.(map[string]any)["share"].(float64)
	}
	if len(parts) != 1 || share < 1-1e-9 || share > 1+1e-9 {
		t.Errorf("shares add up to %v: %v", share, parts)
	}
	finding := byEvent[eventFinding]
	links, _ := finding.Attributes().Get(keySpans)
	if links.Slice().Len() == 0 || finding.TraceID() != [16]byte{1, 99} {
		t.Errorf("the finding links to %v", links.AsRaw())
	}
	for _, rec := range r.emit(tick).ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().All() {
		if rec.EventName() == eventSlowSpan {
			t.Error("a slow span is reported twice")
		}
	}
}
