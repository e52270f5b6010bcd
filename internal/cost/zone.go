package cost

import (
	"fmt"
	"time"
	_ "time/tzdata" // 450 KiB: container images have no zone files
)

// Zone returns the time zone with a name of the IANA database, such as Europe/Berlin. An empty name
// is UTC. Local is an error: a bill must not depend on the machine that makes it.
func Zone(name string) (*time.Location, error) {
	if name == "" {
		return time.UTC, nil
	}
	zone, err := time.LoadLocation(name)
	if err != nil || name == "Local" {
		return nil, fmt.Errorf("%.60q is not a time zone such as Europe/Berlin or UTC", name)
	}
	return zone, nil
}

// Midnight returns the first moment of a date. Months and days outside their range are normalized,
// as by time.Date. If clocks go forward over midnight, the date begins when they do; time.Date
// returns a moment of the day before.
func Midnight(year int, month time.Month, day int, zone *time.Location) time.Time {
	t := time.Date(year, month, day, 0, 0, 0, 0, zone)
	date := time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
	if _, end := t.ZoneBounds(); !end.IsZero() && time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, time.UTC).Before(date) {
		return end.In(zone)
	}
	return t
}

// MonthOf returns the first moment of the month of a moment, in the time zone of the moment.
func MonthOf(at time.Time) time.Time { return Midnight(at.Year(), at.Month(), 1, at.Location()) }

// DayOf returns the first moment of the day of a moment, in the time zone of the moment. A day on
// which clocks change has 23 or 25 hours.
func DayOf(at time.Time) time.Time {
	return Midnight(at.Year(), at.Month(), at.Day(), at.Location())
}
