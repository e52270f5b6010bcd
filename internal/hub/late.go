package hub

import (
	"context"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/hub/rollup"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Usage implements fleet.Keeper.
func (s *Store) Usage(ctx context.Context, midnight, at time.Time) (*fleet.Day, error) {
	return s.days.Usage(ctx, midnight, at)
}

// KeepDays computes what is kept of hours that have ended, until ctx is canceled, so that nobody has to
// wait for it.
func (s *Store) KeepDays(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() { s.days.Run(ctx) })
	both.Go(func() {
		s.rollup.Run(ctx, func(err error) { s.opt.Log.Warn("The peaks of past hours cannot be read", "error", err) })
	})
	both.Wait()
}

// OverTime implements query.Aggregator.
func (s *Store) OverTime(ctx context.Context, f, name string, window time.Duration, at time.Time) ([]query.Sample, error) {
	return s.rollup.OverTime(ctx, f, name, window, at)
}

// newRollup keeps the gauges by which waste is judged.
func (s *Store) newRollup() *rollup.Rollup {
	newest := func() time.Time { _, newest := s.Samples(); return newest }
	return rollup.New(s, newest, fleet.SeriesWorkloadUtilization, fleet.SeriesSMActive, fleet.SeriesWorkloadMemory)
}

// Listed implements sighting.Lister.
func (s *Store) Listed(ctx context.Context, selector string, from, to time.Time) ([]query.Labels, error) {
	list, _, err := s.Series(ctx, []string{selector}, from, to, math.MaxInt)
	out := make([]query.Labels, len(list))
	for i := range list {
		out[i] = list[i].Map()
	}
	return out, err
}

// tellLate reports a late sample, in ms, if it is one of a workload's counters.
func (s *Store) tellLate(l Labels, ms int64) error {
	switch l.Get(model.MetricNameLabel) {
	case fleet.SeriesAllocatedTime, fleet.SeriesUnallocatedTime, fleet.SeriesActiveTime, fleet.SeriesEnergy:
		return s.days.Late(l.Get(fleet.LabelUUID), time.UnixMilli(ms))
	}
	return nil
}

// Samples returns the times of the oldest and the newest sample, zero if there is none.
func (s *Store) Samples() (oldest, newest time.Time) {
	head := s.db.Head()
	if head.MaxTime() == math.MinInt64 {
		return time.Time{}, time.Time{}
	}
	first, last := head.MinTime(), head.MaxTime()
	for _, b := range s.db.Blocks() {
		first, last = min(first, b.MinTime()), max(last, b.MaxTime())
	}
	return time.UnixMilli(first).UTC(), time.UnixMilli(min(last, head.MaxTime())).UTC()
}

// Devices returns the UUIDs of the devices with device time counters in a period.
func (s *Store) Devices(ctx context.Context, from, to time.Time) ([]string, error) {
	q, err := s.db.Querier(from.UnixMilli(), to.UnixMilli())
	if err != nil {
		return nil, err
	}
	defer q.Close() //nolint:errcheck // read-only
	names := labels.MustNewMatcher(labels.MatchRegexp, model.MetricNameLabel, fleet.SeriesAllocatedTime+"|"+fleet.SeriesUnallocatedTime)
	list, _, err := q.LabelValues(ctx, fleet.LabelUUID, nil, names)
	for i := range list {
		list[i] = strings.Clone(list[i]) // it is in the memory of a block, which may be deleted
	}
	return list, err
}
