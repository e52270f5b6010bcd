package fleet

import (
	"cmp"
	"slices"

	"github.com/gpumeter/gpumeter/internal/query"
)

// DayHours is the device time of each hour of a day (UTC), in seconds.
type DayHours [24]uint16

// AddHour adds device time of an hour. d.Hourly must not be nil.
func (d *Day) AddHour(device string, hour int, t Seconds) {
	h := d.Hourly[device]
	if h == nil {
		h = &DayHours{}
		d.Hourly[device] = h
	}
	h[hour] = uint16(min(3600, int64(h[hour])+int64(t)/1e6))
}

// AddTo adds the usage of all slots to a day.
func (u *Used) AddTo(d *Day) {
	d.Refused += u.Refused
	for _, x := range u.Devices {
		for _, dropped := range x.Dropped {
			d.Drop(x.Key, dropped)
		}
		for row, labels := range x.Rows {
			var sum Sums
			for _, slot := range x.Slots {
				sum = sum.Plus(slot[row])
			}
			d.Add(KeyOf(labels), labels, sum)
		}
		d.Late = append(d.Late, x.Late...)
		if d.Hourly == nil {
			continue
		}
		for i, slot := range x.Slots {
			var held Seconds
			for _, s := range slot {
				held += s.Held
			}
			d.AddHour(x.Key, u.Edges[i].UTC().Hour(), held)
		}
	}
}

// Plus returns a + b.
func (a Sums) Plus(b Sums) Sums {
	return Sums{
		Held: a.Held + b.Held, Active: a.Active + b.Active, Unmeasured: a.Unmeasured + b.Unmeasured, Energy: a.Energy + b.Energy,
		HasActive: a.HasActive || b.HasActive, HasEnergy: a.HasEnergy || b.HasEnergy,
	}
}

// Add adds usage to a row.
func (d *Day) Add(key RowKey, labels query.Labels, s Sums) {
	r := d.Rows[key]
	if r == nil {
		r = &DayRow{Labels: labels}
		d.Rows[key] = r
	}
	r.Sums = r.Plus(s)
}

// Sort orders late accounts by time: those of a shorter period come first.
func (d *Day) Sort() {
	slices.SortStableFunc(d.Late, func(a, b LateRow) int {
		if c := a.At.Compare(b.At); c != 0 {
			return c
		}
		return cmp.Compare(a.Labels.Key(), b.Labels.Key())
	})
}
