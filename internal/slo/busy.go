package slo

import (
	"context"
	"math"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/serving"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
)

// unit is a device at its host, or a partition of one.
type unit struct{ uuid, host, partition string }

func unitOf(l query.Labels) unit {
	return unit{l[fleet.LabelUUID], l[fleet.LabelHost], l[fleet.LabelPartition]}
}

// running is in which minutes requests of a row ran all the time, by engine.
type running map[serving.Engine]map[int64]bool

// on returns in which minutes a device had requests all the time: those of the engines on it. Where these say nothing, as on the
// machines that only help an engine, it is in those of any engine of the row.
func (r running) on(engines map[serving.Engine]bool) map[int64]bool {
	own, row := map[int64]bool{}, map[int64]bool{}
	known := false
	for e, minutes := range r {
		known = known || engines[e]
		for at, busy := range minutes {
			row[at] = row[at] || busy
			own[at] = own[at] || busy && engines[e]
		}
	}
	if known {
		return own
	}
	return row
}

// devices asks what the devices of the rows do while requests run on them. Load that comes in bursts leaves them idle
// in between, and the mean of the hour would blame the host, or a clock that is low because there is nothing to do.
func (a *asking) devices(ctx context.Context, rows []*serving.Row) {
	var whole, parts []string // UUIDs
	for _, s := range rows {
		for _, d := range s.Devices {
			if d.Partition == "" {
				whole = append(whole, d.UUID)
			} else {
				parts = append(parts, d.UUID)
			}
		}
	}
	if len(whole)+len(parts) == 0 {
		return
	}
	busy, engines := a.running(ctx), a.engines(ctx, append(whole, parts...))
	const (
		sm = iota
		utilization
		dram
		power
		thermal
		clock
		fields
	)
	var values [fields]minutes[unit]
	for i := range values {
		values[i] = minutes[unit]{}
	}
	mean := func(field int, series string, uuids []string) {
		for _, match := range fleet.AnyOf(fleet.LabelUUID, uuids) {
			expr := "max by (" + strings.Join([]string{fleet.LabelUUID, fleet.LabelHost, fleet.LabelPartition}, ", ") + ") (" + over("avg_over_time", fleet.Select(series, nil, match), time.Minute) + ")"
			a.each(ctx, expr, func(l query.Labels, points []query.Point) { values[field].put(unitOf(l), points, math.Max) })
		}
	}
	mean(sm, fleet.SeriesSMActive, whole)
	mean(utilization, fleet.SeriesUtilization, whole)
	// Partitions have neither throttling nor clocks of their own.
	mean(dram, fleet.SeriesDRAMActive, whole)
	mean(power, fleet.SeriesThrottlePower, whole)
	mean(thermal, fleet.SeriesThrottleThermal, whole)
	mean(clock, fleet.SeriesClock, whole)
	mean(sm, fleet.SeriesPartitionSMActive, parts)
	mean(utilization, fleet.SeriesPartitionUtilization, parts)
	for _, s := range rows {
		var all [fields]struct{ sum, n float64 }
		k := keyOfRow(s)
		for _, d := range s.Devices {
			u := unit{d.UUID, d.Host, d.Partition}
			when := busy[k].on(engines[u])
			highest := 0.0
			for _, v := range values[clock][u] {
				highest = max(highest, v)
			}
			for field := range values {
				for at, v := range values[field][u] {
					if !when[at] || field == clock && highest == 0 {
						continue
					}
					if field == clock {
						v /= highest
					}
					all[field].sum, all[field].n = all[field].sum+v, all[field].n+1
				}
			}
		}
		f := a.facts[k]
		for field, to := range []*optional.Float{&f.SM, &f.Utilization, &f.DRAM, &f.Power, &f.Thermal, &f.Clock} {
			*to = optional.Of(all[field].sum).Ratio(optional.Of(all[field].n))
		}
		a.facts[k] = f
	}
}

// running asks in which minutes requests ran all the time.
func (a *asking) running(ctx context.Context) map[key]running {
	out := map[key]running{}
	requests := fleet.Select(fleet.SeriesRequests, nil, fleet.OfEngines, fleet.Equals(fleet.LabelState, fleet.StateRunning))
	a.each(ctx, "sum by ("+serving.EngineLabels()+") "+fleet.Once(over("min_over_time", requests, time.Minute)), func(l query.Labels, points []query.Point) {
		k, e := keyOf(l), serving.Engine{Host: l[fleet.LabelHost], ID: l[fleet.LabelEngine]}
		if out[k] == nil {
			out[k] = running{}
		}
		if out[k][e] == nil {
			out[k][e] = map[int64]bool{}
		}
		for _, p := range points {
			out[k][e][p.Time.UnixMilli()] = p.Value >= 1
		}
	})
	return out
}

// engines asks which engines work on devices.
func (a *asking) engines(ctx context.Context, uuids []string) map[unit]map[serving.Engine]bool {
	out := map[unit]map[serving.Engine]bool{}
	for _, match := range fleet.AnyOf(fleet.LabelUUID, uuids) {
		expr := "max by (" + strings.Join([]string{fleet.LabelEngine, fleet.LabelUUID, fleet.LabelHost, fleet.LabelPartition}, ", ") + ") (" + fleet.Select(fleet.SeriesEngineDevice, nil, match) + ")"
		a.instant(ctx, expr, func(l query.Labels, v float64) {
			u := unitOf(l)
			if out[u] == nil {
				out[u] = map[serving.Engine]bool{}
			}
			out[u][serving.Engine{Host: l[fleet.LabelHost], ID: l[fleet.LabelEngine]}] = v > 0
		})
	}
	return out
}
