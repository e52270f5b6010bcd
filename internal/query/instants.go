package query

import (
	"context"
	"sync"
	"time"
)

// Instants evaluates several expressions at one moment, two at a time.
func Instants(ctx context.Context, store Store, at time.Time, exprs ...string) ([][]Sample, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	answers := make([][]Sample, len(exprs))
	turns := make(chan struct{}, 2)
	var done sync.WaitGroup
	for i, expr := range exprs {
		done.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			if ctx.Err() != nil {
				return
			}
			var err error
			if answers[i], err = store.Instant(ctx, expr, at); err != nil {
				cancel(err)
			}
		})
	}
	done.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return answers, nil
}
