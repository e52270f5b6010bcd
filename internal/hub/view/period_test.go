package view

import (
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/cost"
)

// Catches days and months of the page at midnight UTC, and of 24 hours where clocks change.
func TestCalendar(t *testing.T) {
	t.Parallel()
	zone, err := cost.Zone("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	f := func(now, name, want string, hours float64) {
		t.Helper()
		at, err := time.Parse(time.RFC3339, now)
		if err != nil {
			t.Fatal(err)
		}
		r, err := parse(url.Values{"period": {name}}, at.In(zone))
		if got := r.from.UTC().Format("01-02 15:04"); err != nil || got != want || r.to.Sub(r.from).Hours() != hours || !r.at.Equal(r.to) {
			t.Errorf("%s at %s: %s, %v hours, %v; want %s", name, now, got, r.to.Sub(r.from).Hours(), err, want)
		}
	}
	f("2026-03-29T20:00:00Z", "today", "03-28 23:00", 21)
	f("2026-03-30T10:00:00Z", "yesterday", "03-28 23:00", 23)
	f("2026-10-26T10:00:00Z", "yesterday", "10-24 22:00", 25)
	f("2026-03-31T22:00:00Z", "month", "03-31 22:00", 1./60) // the month has just begun
	f("2026-03-31T22:30:00Z", "last-month", "02-28 23:00", 31*24-1)
	f("2027-01-01T12:00:00Z", "last-month", "11-30 23:00", 31*24)
	if _, err := parse(url.Values{"period": {"year"}}, noon); !errors.Is(err, errBad) {
		t.Error(err)
	}
}
