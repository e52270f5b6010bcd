package ledger

import (
	"github.com/gpumeter/gpumeter/internal/tracer/anomaly"
	"github.com/gpumeter/gpumeter/internal/tracer/journal"
)

// Name attributes anomalies to workloads and counts those that opened.
func (l *Ledger) Name(list []anomaly.Anomaly) []journal.Line {
	lines := make([]journal.Line, 0, len(list))
	for _, a := range list {
		line := journal.Line{Anomaly: a, Attributes: map[string]string{}, Words: a.Text()}
		if s := l.of(&a); s != nil {
			for _, p := range s.Pairs {
				line.Attributes[p.Key] = p.Value
			}
			if a.State == anomaly.Open {
				s.Anomalies[string(a.Cause())]++
			}
		}
		lines = append(lines, line)
	}
	return lines
}

// of returns the subject whose series count an anomaly: that of its device, or of the process's first
// device.
func (l *Ledger) of(a *anomaly.Anomaly) *Subject {
	p := l.Seen[a.PID]
	if p == nil {
		return nil
	}
	var first *Subject
	least := 0
	for ordinal, s := range p.At {
		if s.ID.UUID == a.Device {
			return s
		}
		if first == nil || ordinal < least {
			first, least = s, ordinal
		}
	}
	return first
}
