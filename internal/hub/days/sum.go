package days

import (
	"math/bits"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
)

// device converts computed usage.
func (d *Days) device(x *fleet.UsedDevice) *device {
	out := &device{key: x.Key, seen: x.Seen.UnixMilli(), dropped: x.Dropped}
	index := map[fleet.RowKey]int{}
	for i := range x.Rows {
		r := row{rowID: d.intern([]byte(x.Keys[i].Value())), hours: make([]fleet.Sums, len(x.Slots))}
		used := false
		for h := range x.Slots {
			r.hours[h] = x.Slots[h][i]
			used = used || r.hours[h] != (fleet.Sums{})
		}
		if used || slices.ContainsFunc(x.Late, func(l fleet.LateRow) bool { return l.Labels.Key() == r.key.Value() }) {
			index[r.key] = len(out.rows)
			out.rows = append(out.rows, r)
		}
	}
	for _, l := range x.Late {
		out.late = append(out.late, late{index[fleet.KeyOf(l.Labels)], l.At.UnixMilli(), l.Held})
	}
	return out
}

// append returns a device with further hours. x may be nil.
func (x *device) append(more *device, hours int) *device {
	out := &device{key: more.key, seen: more.seen, dropped: make([]fleet.Seconds, hours)}
	index := map[fleet.RowKey]int{}
	if x != nil {
		copy(out.dropped, x.dropped)
		out.rows, out.late = x.rows, x.late
		for i := range x.rows {
			index[x.rows[i].key] = i
		}
	}
	out.dropped = append(out.dropped, more.dropped...)
	to := make([]int, len(more.rows))
	for i, r := range more.rows {
		n, ok := index[r.key]
		if !ok {
			n = len(out.rows)
			out.rows = append(out.rows, row{rowID: r.rowID, hours: make([]fleet.Sums, hours)})
		}
		to[i] = n
		out.rows[n].hours = append(out.rows[n].hours, r.hours...)
	}
	for _, l := range more.late {
		out.late = append(out.late, late{to[l.row], l.at, l.held})
	}
	return out
}

// pad adds hours without usage.
func (x *device) pad(hours int) {
	for len(x.dropped) < hours {
		x.dropped = append(x.dropped, 0)
	}
	for i := range x.rows {
		r := &x.rows[i]
		for len(r.hours) < hours {
			r.hours = append(r.hours, fleet.Sums{})
		}
	}
}

// upTo returns the usage of the first hours of a day, which end at a moment. Whole days are asked for
// again and again.
func (k *kept) upTo(hours int, end time.Time) *fleet.Day {
	if hours < 24 {
		return k.sum(hours, end)
	}
	if k.whole == nil {
		k.whole = k.sum(hours, end)
		k.whole.Sort()
	}
	out := *k.whole
	out.Rows = slices.Clip(out.Rows) // shared
	return &out
}

// sum returns the usage of the first hours of a day, which end at a moment.
func (k *kept) sum(hours int, end time.Time) *fleet.Day {
	out := k.newDay(len(k.devices))
	for _, x := range k.devices {
		x.addTo(out, hours, end)
	}
	return out
}

func (k *kept) newDay(devices int) *fleet.Day {
	return &fleet.Day{Rows: make([]fleet.DayRow, 0, devices), Refused: k.refused, Hourly: make(map[string]*fleet.DayHours, devices)}
}

// addTo adds the usage of the first hours of a day, which end at a moment. It keeps nothing of x but labels.
func (x *device) addTo(out *fleet.Day, hours int, end time.Time) {
	for _, v := range x.dropped[:hours] {
		out.Drop(x.key, v)
	}
	var held [24]fleet.Seconds
	for i := range x.rows {
		r := &x.rows[i]
		var sum fleet.Sums
		for h := range r.hours[:hours] {
			sum = sum.Plus(r.hours[h])
			held[h] += r.hours[h].Held
		}
		if sum != (fleet.Sums{}) {
			out.Rows = append(out.Rows, fleet.DayRow{Key: r.key, Labels: r.labels, Number: r.number, Sums: sum}) // no other device has the row
		}
	}
	out.AddHours(x.key, held)
	for _, l := range x.late {
		if at := time.UnixMilli(l.at).UTC(); !at.After(end) {
			out.Late = append(out.Late, fleet.LateRow{Labels: x.rows[l.row].labels, Held: l.held, At: at})
		}
	}
}

// gone reports whether samples of the day's hours no longer exist: the oldest one, which is at the given
// moment, is newer than it was, and there is usage in hours before it.
func (k *kept) gone(oldest time.Time) bool {
	if oldest.UnixMilli() <= k.begin {
		return false
	}
	hours := min(k.hours, int((oldest.Sub(k.day)+time.Hour-1)/time.Hour))
	if hours <= 0 {
		return false
	}
	used := k.usage()
	return slices.Contains(used[:hours], true)
}

// usage returns in which hours there is any.
func (k *kept) usage() (used [24]bool) {
	if k.lean {
		return k.used
	}
	for _, x := range k.devices {
		x.mark(&used)
	}
	return used
}

// mark sets the hours in which there is usage.
func (x *device) mark(used *[24]bool) {
	for i := range x.rows {
		for h, s := range x.rows[i].hours {
			used[h] = used[h] || s != fleet.Sums{}
		}
	}
}

// interpolate returns the usage from the start of an hour to moments in it, for an hour whose samples
// are gone.
func (k *kept) interpolate(from time.Time, edges []time.Time) *fleet.Used {
	out := &fleet.Used{Edges: append([]time.Time{from}, edges...)}
	h := int(from.Sub(k.day) / time.Hour)
	if h >= k.hours {
		return out
	}
	for _, x := range k.devices {
		u := &fleet.UsedDevice{Key: x.key, Slots: make([][]fleet.Sums, len(edges)), Dropped: make([]fleet.Seconds, len(edges))}
		for i := range x.rows {
			u.Rows, u.Keys = append(u.Rows, x.rows[i].labels), append(u.Keys, x.rows[i].key)
			var before fleet.Sums
			for slot, at := range edges {
				s := x.rows[i].hours[h]
				s.Held, s.Active = part(s.Held, at.Sub(from)), part(s.Active, at.Sub(from))
				s.Unmeasured, s.Energy = part(s.Unmeasured, at.Sub(from)), part(s.Energy, at.Sub(from))
				rest := s
				rest.Held, rest.Active, rest.Unmeasured, rest.Energy = s.Held-before.Held, s.Active-before.Active, s.Unmeasured-before.Unmeasured, s.Energy-before.Energy
				u.Slots[slot] = append(u.Slots[slot], rest)
				before = s
			}
		}
		out.Devices = append(out.Devices, u)
	}
	return out
}

// part returns the part of an hour's usage that belongs to its beginning.
func part[T ~int64](v T, d time.Duration) T {
	hi, lo := bits.Mul64(uint64(max(0, v)), uint64(min(d, time.Hour)))
	q, _ := bits.Div64(hi, lo, uint64(time.Hour))
	return T(q)
}
