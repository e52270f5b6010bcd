package cudareceiver

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpumeter/gpumeter/internal/series"
	"github.com/gpumeter/gpumeter/internal/spans"
	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/anomaly"
	"github.com/gpumeter/gpumeter/internal/tracer/ledger"
	"github.com/gpumeter/gpumeter/receiver/cudareceiver/internal/metadata"
)

// A call that the tracer reported becomes an exemplar when the span around it has come, once, with the trace
// of that span and not of another process; an anomaly links to the spans that ran meanwhile.
func TestExemplars(t *testing.T) {
	b := newBench(t, machine(1), whoIs{1: llm}, nil)
	b.calls.board = &spans.Board{}
	read := func(seconds int, events ...tracer.Event) (list []pmetric.Exemplar) {
		t.Helper()
		s := tracer.Snapshot{Time: at(seconds), Started: began, Processes: []tracer.Process{proc(1, 0, seconds)}, Events: events}
		tick := *b.tick
		tick.Time = s.Time
		b.Observe(&s, ledger.NewPlaces(&tick))
		for m := range series.Metrics(b.emit(b.Ledger, &s, &tick)) {
			if m.Type() != pmetric.MetricTypeHistogram {
				continue
			}
			for _, dp := range m.Histogram().DataPoints().All() {
				for _, e := range dp.Exemplars().All() {
					if m.Name() != metadata.MetricsInfo.GpuCudaOperationDuration.Name {
						t.Errorf("%s has an exemplar", m.Name())
					}
					list = append(list, e)
				}
			}
		}
		return list
	}
	op := proc(1, 0, 10).Ops[0].Op
	call := tracer.Event{Time: at(12), PID: 1, Type: "outlier", Op: op, Device: 0, Duration: 100 * time.Millisecond}
	if got := read(10); len(got) != 0 {
		t.Fatalf("exemplars of nothing: %d", len(got))
	}
	if got := read(20, call); len(got) != 0 {
		t.Fatalf("an exemplar without a span: %d", len(got))
	}
	span := func(trace byte, pid uint32, from, to int) spans.Span {
		return spans.Span{Trace: [16]byte{trace}, ID: [8]byte{trace}, Workload: llm.ID, PID: pid, Entry: true, From: at(from).UnixNano(), To: at(to).UnixNano()}
	}
	b.calls.board.See([]spans.Span{span(1, 2, 11, 13), span(2, 1, 10, 20), span(3, 1, 11, 14), span(4, 1, 13, 15)})
	got := read(30)
	if len(got) != 1 || got[0].TraceID() != [16]byte{3} || got[0].SpanID() != [8]byte{3} || got[0].DoubleValue() != 0.1 || !got[0].Timestamp().AsTime().Equal(at(12)) {
		t.Errorf("%d exemplars", len(got))
	}
	if got := read(40); len(got) != 0 {
		t.Errorf("the exemplar came again: %d", len(got))
	}
	if calls, ok := b.calls.board.Calls(1, at(15).UnixNano(), at(25).UnixNano()); !ok || calls.Launches == 0 {
		t.Errorf("what the process asked of CUDA is %+v, %t", calls, ok)
	}
	r := newRecorder(b.emitter.cfg, receivertest.NewNopSettings(metadata.Type))
	r.board = b.calls.board
	rec := r.emit(b.Ledger, &tracer.Snapshot{Time: at(20)}, b.Name([]anomaly.Anomaly{slowStep(anomaly.Open)}), b.tick).ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0)
	links, _ := rec.Attributes().Get(keySpans)
	var names []any
	for _, l := range links.Slice().AsRaw() {
		names = append(names, l.(map[string]any)["trace_id"].(string)[:2])
	}
	if diff := cmp.Diff([]any{"02", "03", "04"}, names); diff != "" || rec.TraceID() != [16]byte{2} {
		t.Errorf("the anomaly links to (-want +got):\n%s", diff)
	}
}
