//go:build linux

package inspect

import (
	"context"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer/anomaly"
	"github.com/gpumeter/gpumeter/internal/tracer/journal"
	"github.com/gpumeter/gpumeter/internal/tracer/watch"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Anomalies searches the chosen processes for anomalies over a number of windows, or until ctx ends,
// and calls found with each. proc is the host's /proc.
func (s *Session) Anomalies(ctx context.Context, c *Choice, proc string, window time.Duration, windows int, found func(*journal.Line) error) error {
	watcher := watch.New(proc)
	watcher.Owner = s.Process
	ticker := time.NewTicker(window)
	defer ticker.Stop()
	for range windows {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		now, tick := s.Look(ctx)
		watcher.See(&tick)
		for _, a := range watcher.Judge(&now) {
			l := journal.Line{Anomaly: a, Words: a.Text()}
			if owner, ok := s.Process(a.PID); ok {
				l.Attributes = owner.Attributes
			}
			if !c.TakesLine(&l) || a.State == anomaly.Adopted {
				continue
			}
			if err := found(&l); err != nil {
				return err
			}
		}
	}
	return nil
}

// TakesLine reports whether an anomaly belongs to a chosen process.
func (c *Choice) TakesLine(l *journal.Line) bool {
	if len(l.Attributes) == 0 {
		return c.Takes(l.PID, nil)
	}
	return c.Takes(l.PID, &workload.Workload{Attributes: l.Attributes})
}
