package sighting

import (
	"context"
	"errors"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Lister is a store that lists series without reading their samples.
type Lister interface {
	// Listed returns the labels of the series in a period, and of some that have samples only within
	// the hour before or after it, or ErrNotKept.
	Listed(ctx context.Context, selector string, from, to time.Time) ([]query.Labels, error)
}

// lists reports whether a store lists series without reading their samples, as far as is known.
func lists(store query.Store) bool {
	_, ok := store.(Lister)
	return ok && fleet.Keeps(store)
}

// listed returns the labels of the series in a period. Without a Lister their samples are read.
func listed(ctx context.Context, store query.Store, selector string, from, to time.Time) ([]query.Labels, error) {
	if l, ok := store.(Lister); ok {
		if list, err := l.Listed(ctx, selector, from, to); !errors.Is(err, fleet.ErrNotKept) {
			return list, err
		}
	}
	list, err := store.Instant(ctx, "last_over_time("+selector+"["+query.Duration(to.Sub(from))+"])", to)
	out := make([]query.Labels, len(list))
	for i := range list {
		out[i] = list[i].Labels
	}
	return out, err
}
