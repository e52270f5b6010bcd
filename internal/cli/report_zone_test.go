//go:build linux

package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/exporter/hubexporter"
	"github.com/gpumeter/gpumeter/internal/cli/billing"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Catches days and months at midnight UTC in other time zones, days of 24 hours where clocks change,
// and words that mean the day of another zone.
func TestReportPeriodInZones(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 10, 31, 20, 0, 0, 0, time.UTC)
	f := func(zone string, p billing.Period, want string, hours float64) {
		t.Helper()
		z, err := zoneOf(zone)
		if err != nil {
			t.Fatal(err)
		}
		from, to, _, err := p.Edges(now.In(z))
		if got := from.UTC().Format("01-02 15:04") + " to " + to.UTC().Format("01-02 15:04"); err != nil || got != want || to.Sub(from).Hours() != hours {
			t.Errorf("%s %+v: %s, %v hours, %v; want %s", zone, p, got, to.Sub(from).Hours(), err, want)
		}
	}
	f("UTC", billing.Period{Day: "today"}, "10-31 00:00 to 10-31 20:00", 20)
	f("Asia/Kolkata", billing.Period{Day: "today"}, "10-31 18:30 to 10-31 20:00", 1.5) // already November there
	f("Asia/Kolkata", billing.Period{Day: "yesterday"}, "10-30 18:30 to 10-31 18:30", 24)
	f("Asia/Kolkata", billing.Period{Month: "this"}, "10-31 18:30 to 10-31 20:00", 1.5)
	f("Asia/Kolkata", billing.Period{Month: "last"}, "09-30 18:30 to 10-31 18:30", 31*24)
	f("Europe/Berlin", billing.Period{Day: "2026-10-25"}, "10-24 22:00 to 10-25 23:00", 25)
	f("Europe/Berlin", billing.Period{Day: "2026-03-29"}, "03-28 23:00 to 03-29 22:00", 23)
	f("Europe/Berlin", billing.Period{Month: "2026-03"}, "02-28 23:00 to 03-31 22:00", 31*24-1)
	f("Europe/Berlin", billing.Period{From: "2026-10-25", To: "2026-10-25T12:00"}, "10-24 22:00 to 10-25 11:00", 13)
	f("Europe/Berlin", billing.Period{From: "2026-10-25T00:00:00Z", To: "2026-10-26"}, "10-25 00:00 to 10-25 23:00", 23)
	f("America/Santiago", billing.Period{Day: "2026-09-06"}, "09-06 04:00 to 09-07 03:00", 23) // clocks go forward at midnight
	for flag, p := range map[string]billing.Period{"--day": {Day: "tomorrow"}, "--month": {Month: "next"}} {
		if _, _, _, err := p.Edges(now); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

// Catches a report that ignores --time-zone, and an unknown zone that is taken for UTC.
func TestReportTimeZone(t *testing.T) {
	t.Parallel()
	url := fakePrometheus(t, reportFleet())
	out, err := reportOutput(t, "usage", "--url", url, "--day", "2026-10-25", "--time-zone", "Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out, "\n")
	want := []string{"usage by team, 2026-10-25 00:00 CEST to 2026-10-26 00:00 CET", "total             3          2      75.00"}
	if diff := cmp.Diff(want, []string{lines[0], lines[6][:len(want[1])]}); diff != "" {
		t.Errorf("(-want +got):\n%s\n%s", diff, out)
	}
	if out, err = reportOutput(t, "usage", "--url", url, "--day", "2026-10-14", "--time-zone", "Asia/Kolkata", "-o", "csv"); err != nil || !strings.Contains(out, "2026-10-13T18:30:00Z,2026-10-14T18:30:00Z") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, command := range []string{"report", "hub", "up"} {
		root := newRoot("test")
		root.SetArgs([]string{command, "--time-zone", "Europe/Berln"})
		if err := root.ExecuteContext(t.Context()); err == nil || err.Error() != `--time-zone: "Europe/Berln" is not a time zone such as Europe/Berlin or UTC` {
			t.Errorf("%s: %v", command, err)
		}
	}
}

// Catches an attribute of workloads that agents set and that a price file may not match.
func TestRowLabelsHaveWorkloads(t *testing.T) {
	t.Parallel()
	for _, m := range workload.Meanings() {
		if label := strings.ReplaceAll(m.Key, ".", "_"); !fleet.IsRowLabel(label) {
			t.Errorf("%s is not a label of rows", label)
		}
	}
	for _, key := range hubexporter.DefaultResourceLabels() {
		if label := strings.ReplaceAll(key, ".", "_"); !fleet.IsRowLabel(label) {
			t.Errorf("%s is not a label of rows", label)
		}
	}
}
