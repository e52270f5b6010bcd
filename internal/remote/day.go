package remote

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Day is the usage of a day in JSON: microseconds and millijoules, which are exact.
type Day struct {
	Known   bool    `json:"known"`
	Kept    int64   `json:"kept_until_ms,omitempty"` // absent: all was computed from samples
	Refused int     `json:"refused_values"`
	Dropped int64   `json:"reported_twice_us"`
	Twice   []Twice `json:"reported_twice,omitempty"`
	Rows    []Row   `json:"rows"`
	Late    []Row   `json:"late,omitempty"`
	// Hourly is absent if the usage is not that of whole devices.
	Hourly []Hourly `json:"hourly,omitempty"`
}

// Hourly is the device time of a device by the hour (UTC).
type Hourly struct {
	Device  []string        `json:"device"`            // the parts of its key
	Seconds *fleet.DayHours `json:"seconds,omitempty"` // absent: all of the day
}

var wholeDay = fleet.DayHours(slices.Repeat([]uint16{3600}, 24))

// Twice is the time of a device that was reported more than once.
type Twice struct {
	Device []string `json:"device"` // the parts of its key
	Time   int64    `json:"us"`
}

// Row is the usage of a row, or what an account had when the store first saw it.
type Row struct {
	Labels     query.Labels `json:"labels"`
	At         int64        `json:"at_ms,omitempty"` // of late rows
	Held       int64        `json:"held_us"`
	Unmeasured int64        `json:"unmeasured_us,omitempty"`
	Active     *int64       `json:"active_us,omitempty"` // absent: unknown
	Energy     *int64       `json:"energy_mj,omitempty"` // absent: unknown
}

// separator is between the parts of a device's key, and no UTF-8.
const separator = "\xff"

// NewDay returns the usage of some devices, all of them if uuids is nil.
func NewDay(d *fleet.Day, uuids []string) *Day {
	wanted := func(uuid string) bool { return uuids == nil || slices.Contains(uuids, uuid) }
	out := &Day{Known: d.Known, Refused: d.Refused, Dropped: int64(d.Dropped), Rows: []Row{}}
	if !d.Kept.IsZero() {
		out.Kept = d.Kept.UnixMilli()
	}
	for _, key := range slices.Sorted(maps.Keys(d.Twice)) {
		if parts := strings.Split(key, separator); wanted(parts[0]) {
			out.Twice = append(out.Twice, Twice{parts, int64(d.Twice[key])})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(d.Hourly)) {
		parts := strings.Split(key, separator)
		if !wanted(parts[0]) {
			continue
		}
		h := Hourly{parts, d.Hourly[key]}
		if *h.Seconds == wholeDay {
			h.Seconds = nil
		}
		out.Hourly = append(out.Hourly, h)
	}
	for i := range d.Rows {
		r := &d.Rows[i]
		if !wanted(r.Labels[fleet.LabelUUID]) {
			continue
		}
		x := Row{Labels: r.Labels, Held: int64(r.Held), Unmeasured: int64(r.Unmeasured)}
		if r.HasActive {
			x.Active = (*int64)(&r.Active)
		}
		if r.HasEnergy {
			x.Energy = (*int64)(&r.Energy)
		}
		out.Rows = append(out.Rows, x)
	}
	for _, l := range d.Late {
		if wanted(l.Labels[fleet.LabelUUID]) {
			out.Late = append(out.Late, Row{Labels: l.Labels, At: l.At.UnixMilli(), Held: int64(l.Held)})
		}
	}
	return out
}

// usage is the inverse of NewDay.
func (d *Day) usage() *fleet.Day {
	out := &fleet.Day{Known: d.Known, Refused: d.Refused, Dropped: fleet.Seconds(d.Dropped), Rows: make([]fleet.DayRow, 0, len(d.Rows))}
	if d.Kept != 0 {
		out.Kept = time.UnixMilli(d.Kept).UTC()
	}
	for _, t := range d.Twice {
		if out.Twice == nil {
			out.Twice = map[string]fleet.Seconds{}
		}
		out.Twice[strings.Join(t.Device, separator)] = fleet.Seconds(t.Time)
	}
	for _, x := range d.Hourly {
		if out.Hourly == nil {
			out.Hourly = map[string]*fleet.DayHours{}
		}
		out.Hourly[strings.Join(x.Device, separator)] = cmp.Or(x.Seconds, &wholeDay)
	}
	for _, x := range d.Rows {
		r := fleet.DayRow{Key: fleet.KeyOf(x.Labels), Labels: x.Labels, Sums: fleet.Sums{Held: fleet.Seconds(x.Held), Unmeasured: fleet.Seconds(x.Unmeasured)}}
		if x.Active != nil {
			r.Active, r.HasActive = fleet.Seconds(*x.Active), true
		}
		if x.Energy != nil {
			r.Energy, r.HasEnergy = fleet.Energy(*x.Energy), true
		}
		out.Rows = append(out.Rows, r)
	}
	for _, x := range d.Late {
		out.Late = append(out.Late, fleet.LateRow{Labels: x.Labels, Held: fleet.Seconds(x.Held), At: time.UnixMilli(x.At).UTC()})
	}
	return out
}
