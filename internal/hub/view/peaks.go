package view

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/remote"
)

// peaksPage returns what the hub keeps of a gauge by the hour, so that a report made elsewhere reads no samples of a week.
func (v *viewer) peaksPage(ctx context.Context, r request) (any, error) {
	seconds, err := strconv.ParseInt(r.values.Get("window"), 10, 64)
	if err != nil || seconds < 1 || seconds > int64(maxSpan/time.Second) {
		return nil, fmt.Errorf("%w: window=%q is not a number of seconds", errBad, r.values.Get("window"))
	}
	ms, err := strconv.ParseInt(r.values.Get("until"), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%w: until=%q is not a Unix time in milliseconds", errBad, r.values.Get("until"))
	}
	a, ok := v.store.(query.Aggregator)
	if !ok {
		return nil, fmt.Errorf("%w: this hub keeps no peaks", errNone)
	}
	list, err := a.OverTime(ctx, r.values.Get("f"), r.values.Get("name"), time.Duration(seconds)*time.Second, time.UnixMilli(ms))
	if errors.Is(err, fleet.ErrNotKept) {
		return nil, fmt.Errorf("%w: this hub keeps no such peaks", errNone)
	}
	if err != nil {
		return nil, err
	}
	return remote.NewPeaks(list), nil
}
