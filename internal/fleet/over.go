package fleet

import (
	"context"
	"errors"
	"time"

	"github.com/gpumeter/gpumeter/internal/query"
)

// Lister is a store that lists series without reading their samples.
type Lister interface {
	// Listed returns the labels of the series in a period, and of some that have samples only within
	// the hour before or after it, or ErrNotKept.
	Listed(ctx context.Context, selector string, from, to time.Time) ([]query.Labels, error)
}

// Aggregator is a store that keeps extremes and means of some gauges by the hour.
type Aggregator interface {
	// OverTime returns the result of max_over_time, min_over_time or avg_over_time for each series with this
	// name that has samples in the last day, or ErrNotKept.
	OverTime(ctx context.Context, f, name string, window time.Duration, at time.Time) ([]query.Sample, error)
}

// lists reports whether a store lists series without reading their samples, as far as is known.
func lists(store query.Store) bool {
	_, ok := store.(Lister)
	return ok && Keeps(store)
}

// listed returns the labels of the series in a period. Without a Lister their samples are read.
func listed(ctx context.Context, store query.Store, selector string, from, to time.Time) ([]query.Labels, error) {
	if l, ok := store.(Lister); ok {
		if list, err := l.Listed(ctx, selector, from, to); !errors.Is(err, ErrNotKept) {
			return list, err
		}
	}
	list, err := store.Instant(ctx, over("last_over_time", selector, query.Duration(to.Sub(from))), to)
	out := make([]query.Labels, len(list))
	for i := range list {
		out[i] = list[i].Labels
	}
	return out, err
}
