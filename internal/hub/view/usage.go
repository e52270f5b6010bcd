package view

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/remote"
)

// usagePage returns the usage of a day (UTC), up to a moment in Unix milliseconds: what every bill is
// made of, of all devices or of those with the given UUIDs. There is none if the hub's samples are in another store.
func (v *viewer) usagePage(ctx context.Context, r request) (any, error) {
	day, err := time.Parse(time.DateOnly, r.values.Get("day"))
	if err != nil {
		return nil, fmt.Errorf("%w: day=%q is not a date such as 2026-10-25", errBad, r.values.Get("day"))
	}
	end := day.Add(24 * time.Hour)
	if text := r.values.Get("until"); text != "" {
		ms, err := strconv.ParseInt(text, 10, 64)
		until := time.UnixMilli(ms).UTC()
		if err != nil || until.Before(day) || until.After(end) {
			return nil, fmt.Errorf("%w: until=%q is not a Unix time in milliseconds of that day", errBad, text)
		}
		end = until
	}
	keeper, ok := v.store.(fleet.Keeper)
	if !ok {
		return nil, fmt.Errorf("%w: this hub keeps no usage", errNone)
	}
	used, err := keeper.Usage(ctx, day, end)
	if errors.Is(err, fleet.ErrNotKept) {
		return nil, fmt.Errorf("%w: this hub keeps no usage", errNone)
	}
	if err != nil {
		return nil, err
	}
	return remote.NewDay(used, r.values["uuid"]), nil
}
