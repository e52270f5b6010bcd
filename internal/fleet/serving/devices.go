package serving

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
)

// unitKey identifies a unit at its host: for minutes after a device moved, the store has it at two.
type unitKey struct{ device, host, partition string }

func (u *EngineDevice) key() unitKey { return unitKey{u.Device, u.Host, u.Partition} }

// unitValues are what a unit did in a window.
type unitValues struct{ sm, tensor, utilization, memory, power optional.Float }

// devices fills in what the devices of the rows do.
func (s *serving) devices(ctx context.Context, store query.Store, at time.Time, window time.Duration) error {
	var whole, parts []string // UUIDs
	for _, x := range s.rows {
		x.Devices = slices.SortedFunc(maps.Values(x.units), func(a, b EngineDevice) int {
			return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.UUID, b.UUID), cmp.Compare(a.Partition, b.Partition))
		})
		for _, u := range x.Devices {
			if u.Partition == "" {
				whole = append(whole, u.UUID)
			} else {
				parts = append(parts, u.UUID)
			}
		}
	}
	values := map[unitKey]*unitValues{}
	mean := func(field func(*unitValues) *optional.Float, series, match string, more ...string) {
		selector := fleet.Over("avg_over_time", fleet.Select(series, nil, append(more, match)...), s.window)
		s.ask("max by ("+fleet.KeyLabels()+", "+fleet.LabelPartition+") ("+selector+")", func(v query.Sample) { *field(valuesOf(values, v.Labels)) = optional.Of(v.Value) })
	}
	tensor := fleet.Equals(fleet.LabelPipe, fleet.PipeTensor)
	for _, match := range fleet.AnyOf(fleet.LabelUUID, whole) {
		mean(func(v *unitValues) *optional.Float { return &v.sm }, fleet.SeriesSMActive, match)
		mean(func(v *unitValues) *optional.Float { return &v.tensor }, fleet.SeriesPipeActive, match, tensor)
		mean(func(v *unitValues) *optional.Float { return &v.utilization }, fleet.SeriesUtilization, match)
		mean(func(v *unitValues) *optional.Float { return &v.memory }, fleet.SeriesMemoryUsed, match)
		mean(func(v *unitValues) *optional.Float { return &v.power }, fleet.SeriesPower, match)
	}
	for _, match := range fleet.AnyOf(fleet.LabelUUID, parts) {
		mean(func(v *unitValues) *optional.Float { return &v.sm }, fleet.SeriesPartitionSMActive, match)
		mean(func(v *unitValues) *optional.Float { return &v.tensor }, fleet.SeriesPartitionPipeActive, match, tensor)
		mean(func(v *unitValues) *optional.Float { return &v.utilization }, fleet.SeriesPartitionUtilization, match)
		mean(func(v *unitValues) *optional.Float { return &v.memory }, fleet.SeriesPartitionMemoryUsed, match)
		// A partition has no meter. Its power is what its holders are charged for of that of the device. Some of them may
		// have held it for a part of the window only, so their sums are averaged, not each of them.
		expr := "sum by (" + fleet.KeyLabels() + ", " + fleet.LabelPartition + ") " + fleet.Once(fleet.Select(fleet.SeriesWorkloadPower, nil, match, fleet.LabelPartition+`!=""`))
		step := window / 10
		list, err := store.Range(ctx, expr, at.Add(step-window), at, step)
		if err != nil {
			return err
		}
		for _, one := range list {
			var sum, n optional.Float
			for _, p := range one.Points {
				sum, n = plus(sum, p.Value), plus(n, 1)
			}
			valuesOf(values, one.Labels).power = sum.Ratio(n)
		}
	}
	if err := s.run(ctx, store, at); err != nil {
		return err
	}
	for _, x := range s.rows {
		x.meanwhile(values)
	}
	return nil
}

func valuesOf(values map[unitKey]*unitValues, l query.Labels) *unitValues {
	key := unitKey{fleet.DeviceKey(l), l[fleet.LabelHost], l[fleet.LabelPartition]}
	if values[key] == nil {
		values[key] = &unitValues{}
	}
	return values[key]
}

// meanwhile fills in what the units of a row did.
func (x *servedRow) meanwhile(values map[unitKey]*unitValues) {
	var list []*unitValues
	for _, u := range x.Devices {
		if v := values[u.key()]; v != nil {
			list = append(list, v)
		}
	}
	sum := func(field func(*unitValues) optional.Float) (sum optional.Float, n float64) {
		for _, v := range list {
			if f, ok := field(v).Get(); ok {
				sum, n = plus(sum, f), n+1
			}
		}
		return sum, n
	}
	mean := func(field func(*unitValues) optional.Float) optional.Float {
		total, n := sum(field)
		return total.Ratio(optional.Of(n))
	}
	x.SM = mean(func(v *unitValues) optional.Float { return v.sm })
	x.Tensor = mean(func(v *unitValues) optional.Float { return v.tensor })
	x.Utilization = mean(func(v *unitValues) optional.Float { return v.utilization })
	x.Memory, _ = sum(func(v *unitValues) optional.Float { return v.memory })
	x.Power, _ = sum(func(v *unitValues) optional.Float { return v.power })
}
