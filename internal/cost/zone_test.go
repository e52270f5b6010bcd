package cost

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

func mustZone(t *testing.T, name string) *time.Location {
	t.Helper()
	zone, err := Zone(name)
	if err != nil {
		t.Fatal(err)
	}
	return zone
}

// Catches days of 24 hours where clocks change, months that begin at midnight UTC, and a bill of days
// that does not add up to the bill of their month.
func TestBillInZones(t *testing.T) {
	t.Parallel()
	m := querytest.NewMemory()
	begin, end := time.Date(2026, 3, 25, 0, 0, 0, 0, time.UTC), time.Date(2026, 4, 3, 0, 0, 0, 0, time.UTC)
	write := func(begin, end time.Time) {
		for at := begin; !at.After(end); at = at.Add(4 * time.Minute) {
			s := at.Sub(begin).Seconds()
			one(m, at, s, s, "k8s_pod_uid", begin.Format(time.DateOnly))
		}
	}
	write(begin, end)
	autumn := time.Date(2026, 10, 23, 0, 0, 0, 0, time.UTC)
	write(autumn, autumn.AddDate(0, 0, 5))
	p := mustParse(t, "{currency: EUR, prices: [{rates: [{from: 2020-01-01, kind: spot, per_hour: 2}]}]}")
	f := func(zone string, year int, month time.Month, day, hours int) {
		t.Helper()
		z := mustZone(t, zone)
		from, to := Midnight(year, month, day, z), Midnight(year, month, day+1, z)
		got := mustBill(t, m, p, from, to).Total
		got.Energy, got.Uncounted = 0, 0
		if diff := cmp.Diff(Amounts{Used: Seconds(hours) * 3600e6, UsedCost: Money(hours) * 2e6}, got); diff != "" {
			t.Errorf("%s in %s (-want +got):\n%s", from, zone, diff)
		}
	}
	f("UTC", 2026, 3, 29, 24)
	f("Europe/Berlin", 2026, 3, 28, 24)
	f("Europe/Berlin", 2026, 3, 29, 23)
	f("Europe/Berlin", 2026, 3, 30, 24)
	f("Europe/Berlin", 2026, 10, 25, 25)
	f("Asia/Kolkata", 2026, 3, 29, 24)
	f("Australia/Lord_Howe", 2026, 3, 29, 24) // clocks change by half an hour, on another day

	// March ends on its last local midnight, and its days add up to it.
	for _, name := range []string{"Europe/Berlin", "Asia/Kolkata", "America/New_York"} {
		z := mustZone(t, name)
		from, to := begin.In(z).Add(24*time.Hour), Midnight(2026, 4, 1, z)
		whole := mustBill(t, m, p, from, to).Total
		var sum Amounts
		for at := from; at.Before(to); {
			next := Midnight(at.Year(), at.Month(), at.Day()+1, z)
			sum = sum.Add(mustBill(t, m, p, at, next).Total)
			at = next
		}
		if diff := cmp.Diff(whole, sum); diff != "" || whole.Used != Seconds(to.Sub(from).Microseconds()) {
			t.Errorf("%s: %v (-month +days):\n%s", name, whole.Used, diff)
		}
	}
}

// Catches the bill of a month that begins with another month in the time zone of the quotas, and rows
// that keep the prices of a file that was replaced.
func TestMonthInZone(t *testing.T) {
	t.Parallel()
	m := querytest.NewMemory()
	begin := time.Date(2026, 9, 30, 0, 0, 0, 0, time.UTC)
	for i := range 5*24*30 + 1 {
		at := begin.Add(time.Duration(i) * 2 * time.Minute)
		one(m, at, at.Sub(begin).Seconds(), 0)
	}
	price := func(n string) Prices {
		return mustParse(t, "{currency: EUR, prices: [{rates: [{from: 2020-01-01, kind: spot, per_hour: "+n+"}]}]}")
	}
	at := time.Date(2026, 10, 4, 10, 0, 0, 0, time.UTC)
	var month Month
	f := func(zone string, p Prices, want Money) {
		t.Helper()
		s, err := month.Bill(t.Context(), m, p, at.In(mustZone(t, zone)), Options{})
		var sum Amounts
		for i := range s.Rows {
			sum = sum.Add(s.Rows[i].Amounts)
		}
		if err != nil || sum.Total() != want {
			t.Errorf("%s: %s, want %s, %v", zone, sum.Total(), want, err)
		}
	}
	f("UTC", price("2"), (3*24+10)*2e6)
	f("Asia/Kolkata", price("2"), (3*24+10)*2e6+11e6) // five and a half hours earlier
	f("Asia/Kolkata", price("4"), (3*24+10)*4e6+22e6)
	f("America/New_York", price("4"), (3*24+6)*4e6)
}

// Catches a date that begins on the day before where clocks go forward at midnight, and zones that
// depend on the machine.
func TestMidnight(t *testing.T) {
	t.Parallel()
	f := func(zone string, year int, month time.Month, day int, want string) {
		t.Helper()
		if got := Midnight(year, month, day, mustZone(t, zone)).Format(time.RFC3339); got != want {
			t.Errorf("%s: %s, want %s", zone, got, want)
		}
	}
	f("America/Santiago", 2026, 9, 6, "2026-09-06T01:00:00-03:00")
	f("Asia/Beirut", 2026, 3, 29, "2026-03-29T01:00:00+03:00")
	f("America/Havana", 2026, 11, 1, "2026-11-01T00:00:00-04:00") // the first of two
	f("Europe/Berlin", 2026, 13, 1, "2027-01-01T00:00:00+01:00")
	f("Pacific/Apia", 2011, 12, 30, "2011-12-31T00:00:00+14:00") // a day that was skipped
	for _, name := range []string{"Local", "Mars/Olympus", "../etc/passwd", "europe/berlin "} {
		if z, err := Zone(name); err == nil {
			t.Errorf("%q is %v", name, z)
		}
	}
	if p := mustParse(t, "{currency: EUR, time_zone: Asia/Kolkata, prices: [{rates: [{from: 2026-10-01, kind: spot, per_hour: 2}]}]}"); !p.changes[0].Equal(time.Date(2026, 9, 30, 18, 30, 0, 0, time.UTC)) {
		t.Errorf("the price begins at %s", p.changes[0])
	}
	if _, err := Parse([]byte("currency: EUR\ntime_zone: Berlin\n")); err == nil || err.Error() != `line 2: time_zone: "Berlin" is not a time zone such as Europe/Berlin or UTC` {
		t.Error(err)
	}
}
