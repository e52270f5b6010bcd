package view

import (
	"context"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
)

const (
	// sinceSpan is the longest period that the page shows unasked.
	sinceSpan = 24 * time.Hour
	// sinceStep is the precision of the answer, the shortest period of the page.
	sinceStep = 15 * time.Minute
)

type sinceAnswer struct {
	// Seconds is the age of the oldest data in the last 24 hours, rounded up to 15 minutes; 0 if
	// the store has no data.
	Seconds int64 `json:"seconds"`
}

// sincePage returns how far back the page should look: a chart of 24 hours shows nothing of a store
// that is minutes old.
func (v *viewer) sincePage(ctx context.Context, _ request) (any, error) {
	now := v.opts.Now().Truncate(time.Minute)
	return v.since.get(ctx, now.Unix(), now, time.Minute, func(ctx context.Context) (sinceAnswer, error) {
		series, err := v.store.Range(ctx, "count("+fleet.SeriesUp+")", now.Add(-sinceSpan), now, sinceStep)
		if err != nil {
			return sinceAnswer{}, err
		}
		var oldest time.Duration
		for _, s := range series {
			for _, p := range s.Points {
				// The data at a step begins after the step before.
				oldest = max(oldest, min(now.Sub(p.Time)+sinceStep, sinceSpan))
			}
		}
		return sinceAnswer{int64(oldest.Seconds())}, nil
	})
}
