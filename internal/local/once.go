//go:build linux

package local

import (
	"context"
	"time"

	"github.com/gpumeter/gpumeter/internal/node"
)

// between is the time between the two readings of ReadOnce.
const between = time.Second

// ReadOnce reads every device twice, a second apart: activity counters are meaningful only as
// the difference between two readings.
func ReadOnce(ctx context.Context, cfg Config) (node.Tick, error) {
	cfg.Interval = between * 5 // the deadline of a device
	view, err := Open(cfg, nil)
	if err != nil {
		return node.Tick{}, err
	}
	defer view.Close() //nolint:errcheck // the process is about to exit
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go view.Learn(ctx)
	t := view.Tick(ctx, time.Now())
	if len(t.Readings) == 0 {
		return t, nil
	}
	select {
	case <-ctx.Done():
		return node.Tick{}, ctx.Err()
	case <-time.After(between):
	}
	return view.Tick(ctx, time.Now()), nil
}
