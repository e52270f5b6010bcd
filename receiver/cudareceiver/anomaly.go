package cudareceiver

import (
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/gpumeter/gpumeter/internal/tracer/anomaly"
	"github.com/gpumeter/gpumeter/internal/tracer/journal"
	"github.com/gpumeter/gpumeter/internal/tracer/ledger"
)

// anomaly records a deviation from the baseline with its explanations.
func (r *recorder) anomaly(l *ledger.Ledger, a *journal.Line) {
	severity := plog.SeverityNumberInfo
	if a.State == anomaly.Open {
		severity = plog.SeverityNumberWarn
	}
	rec, ok := r.add(eventAnomaly, a.Time, severity, a.Words)
	if !ok {
		return
	}
	attrs := rec.Attributes()
	attrs.PutInt("process.pid", int64(a.PID))
	attrs.PutStr("process.executable.name", a.Process)
	for key, v := range a.Attributes {
		attrs.PutStr(key, v)
	}
	attrs.PutStr("cause", string(a.Cause()))
	attrs.PutStr("gpu.cuda.operation", a.Op)
	attrs.PutStr("gpumeter.anomaly.state", string(a.State))
	attrs.PutStr("gpumeter.anomaly.since", a.Since.UTC().Format("2006-01-02T15:04:05.999Z"))
	attrs.PutDouble("gpumeter.anomaly.baseline", a.Baseline)
	attrs.PutDouble("gpumeter.anomaly.observed", a.Observed)
	attrs.PutDouble("gpumeter.anomaly.lost.time", a.Lost.Seconds())
	attrs.PutDouble("gpumeter.anomaly.unexplained", a.Unexplained)
	if p := l.Seen[a.PID]; p != nil && r.board != nil {
		if found := r.board.During(p.Workload(), a.PID, a.Since.UnixNano(), a.Time.UnixNano(), linked); len(found) > 0 {
			rec.SetTraceID(found[0].Trace)
			rec.SetSpanID(found[0].ID)
			link(attrs.PutEmptySlice(keySpans), found)
		}
	}
	parts := attrs.PutEmptySlice("gpumeter.anomaly.explanations")
	for _, x := range a.Explanations {
		m := parts.AppendEmpty().SetEmptyMap()
		m.PutStr("cause", string(x.Cause))
		m.PutDouble("share", x.Share)
		m.PutDouble("seconds", x.Seconds)
		m.PutStr("fact", x.Fact)
	}
}
