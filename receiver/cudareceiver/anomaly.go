package cudareceiver

import (
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/gpumeter/gpumeter/internal/tracer/anomaly"
	"github.com/gpumeter/gpumeter/internal/tracer/journal"
)

// name says whose the anomalies are, and counts those that began.
func (l *ledger) name(list []anomaly.Anomaly) []journal.Line {
	lines := make([]journal.Line, 0, len(list))
	for _, a := range list {
		line := journal.Line{Anomaly: a, Attributes: map[string]string{}, Words: a.Text()}
		if s := l.of(&a); s != nil {
			for _, p := range s.pairs {
				line.Attributes[p.Key] = p.Value
			}
			if a.State == anomaly.Open {
				s.anomalies[string(a.Cause())]++
			}
		}
		lines = append(lines, line)
	}
	return lines
}

// of returns whose series an anomaly counts in: of its device, or else of the first that the
// process has.
func (l *ledger) of(a *anomaly.Anomaly) *subject {
	p := l.seen[a.PID]
	if p == nil {
		return nil
	}
	var first *subject
	least := 0
	for ordinal, s := range p.at {
		if s.id.UUID == a.Device {
			return s
		}
		if first == nil || ordinal < least {
			first, least = s, ordinal
		}
	}
	return first
}

// anomaly records a departure from what is usual, with what explains it.
func (r *recorder) anomaly(a *journal.Line) {
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
	parts := attrs.PutEmptySlice("gpumeter.anomaly.explanations")
	for _, x := range a.Explanations {
		m := parts.AppendEmpty().SetEmptyMap()
		m.PutStr("cause", string(x.Cause))
		m.PutDouble("share", x.Share)
		m.PutDouble("seconds", x.Seconds)
		m.PutStr("fact", x.Fact)
	}
}
