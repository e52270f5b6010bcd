package cost

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/query"
)

// fold counts sums of which the edges do not say enough, sample by sample: those that went
// back, changed their labels, or come by more than one way.
func (b *biller) fold(ctx context.Context, keys []string, found map[string]*seen, silent map[string]bool, from, to time.Time) error {
	wanted := map[string]bool{}
	var gone, there []string // devices, by whether to look further back
	for _, key := range keys {
		wanted[key] = true
		if silent[key] {
			gone = append(gone, found[key].uuid)
		} else {
			there = append(there, found[key].uuid)
		}
	}
	for _, match := range anyOf("gpu_uuid", there) {
		all, err := b.samples(ctx, match, from.Add(-back), to, func(key string) bool { return wanted[key] && !silent[key] })
		if err != nil {
			return err
		}
		for _, key := range slices.Sorted(maps.Keys(all)) {
			b.follow(all[key], from)
		}
	}
	for _, match := range anyOf("gpu_uuid", gone) {
		if err := b.resume(ctx, match, func(key string) bool { return wanted[key] && silent[key] }, from, to); err != nil {
			return err
		}
	}
	return nil
}

// resume counts sums that were silent before the chunk. Where they stood is looked for
// ever further back, as far as memory goes.
func (b *biller) resume(ctx context.Context, match string, wanted func(string) bool, from, to time.Time) error {
	all, err := b.samples(ctx, match, from, to, wanted)
	if err != nil {
		return err
	}
	before := map[string][]reading{}
	end := from
	for d := back; end.After(from.Add(-b.o.Memory)) && len(before) < len(all); d *= 4 {
		begin := end.Add(-min(d, 24*time.Hour))
		if oldest := from.Add(-b.o.Memory); begin.Before(oldest) {
			begin = oldest
		}
		part, err := b.samples(ctx, match, begin, end, func(key string) bool { return wanted(key) && before[key] == nil })
		if err != nil {
			return err
		}
		for key, list := range part {
			if slices.ContainsFunc(list, func(r reading) bool { return r.hasHeld }) {
				before[key] = list
			}
		}
		end = begin
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		b.follow(append(before[key], all[key]...), from)
	}
	return nil
}

// samples reads the counters of the devices that match, by sum.
func (b *biller) samples(ctx context.Context, match string, from, to time.Time, wanted func(key string) bool) (map[string][]reading, error) {
	out := map[string][]reading{}
	for _, name := range []string{heldSeries, activeSeries, energySeries} {
		list, err := b.store.Raw(ctx, b.selector(name, match), from, to)
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			key := sumKey(s.Labels)
			if !wanted(key) {
				continue
			}
			row, series := b.row(rowLabels(s.Labels)), way(s.Labels)
			for _, p := range s.Points {
				r := reading{at: p.Time, row: row, series: series}
				var ok bool
				switch name {
				case heldSeries:
					r.held, ok = micro(p.Value)
					r.hasHeld = ok
				case activeSeries:
					r.active, ok = micro(p.Value)
					r.hasActive = ok
				default:
					r.energy, ok = milli(p.Value)
					r.hasEnergy = ok
				}
				if ok {
					out[key] = append(out[key], r)
				}
			}
		}
	}
	return out, nil
}

// way is what tells two series of one counter apart.
func way(l query.Labels) string {
	l = maps.Clone(l)
	maps.DeleteFunc(l, func(name, _ string) bool { return strings.HasPrefix(name, "__") }) // name, type and unit
	return l.Key()
}

// follow counts the readings of one sum after from. Those before say where it stood.
func (b *biller) follow(list []reading, from time.Time) {
	var r run
	for _, s := range timeline(list) {
		begin, end, older, ok := r.step(&s)
		if !s.at.After(from) {
			continue
		}
		if older > 0 {
			b.older++
			b.olderOn += older
		}
		if ok {
			b.count(r.row, from, begin, end)
		}
	}
}
