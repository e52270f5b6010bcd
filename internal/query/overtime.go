package query

import (
	"context"
	"time"
)

// Aggregator is a store that keeps extremes and means of some gauges by the hour.
type Aggregator interface {
	// OverTime returns the result of max_over_time, min_over_time or avg_over_time for each series with this
	// name that has samples in the last day, or the error of package fleet for what is not kept.
	OverTime(ctx context.Context, f, name string, window time.Duration, at time.Time) ([]Sample, error)
}
