package fleet

import (
	"cmp"
	"slices"
)

// DayHours is the device time of each hour of a day (UTC), in seconds.
type DayHours [24]uint16

// AddHours adds device time by the hour. d.Hourly must not be nil.
func (d *Day) AddHours(device string, held [24]Seconds) {
	h := d.Hourly[device]
	if h == nil {
		h = &DayHours{}
		d.Hourly[device] = h
	}
	for hour, t := range held {
		h[hour] = uint16(min(3600, int64(h[hour])+int64(t)/1e6))
	}
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
			d.Add(DayRow{Key: x.Keys[row], Labels: labels, Sums: sum})
		}
		d.Late = append(d.Late, x.Late...)
		if d.Hourly == nil {
			continue
		}
		var held [24]Seconds
		for i, slot := range x.Slots {
			hour := u.Edges[i].UTC().Hour()
			for _, s := range slot {
				held[hour] += s.Held
			}
		}
		d.AddHours(x.Key, held)
	}
}

// Plus returns a + b.
func (a Sums) Plus(b Sums) Sums {
	return Sums{
		Held: a.Held + b.Held, Active: a.Active + b.Active, Unmeasured: a.Unmeasured + b.Unmeasured, Energy: a.Energy + b.Energy,
		HasActive: a.HasActive || b.HasActive, HasEnergy: a.HasEnergy || b.HasEnergy,
	}
}

// Add adds usage to the row of the same key, or adds the row if there is none.
func (d *Day) Add(r DayRow) {
	if d.places == nil {
		d.places = make(map[RowKey]int, len(d.Rows))
		for i := range d.Rows {
			d.places[d.Rows[i].Key] = i
		}
	}
	i, ok := d.places[r.Key]
	if !ok {
		d.places[r.Key] = len(d.Rows)
		d.Rows = append(d.Rows, r)
		return
	}
	d.Rows[i].Sums = d.Rows[i].Plus(r.Sums)
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
