package days

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/cost/worldtest"
)

// Catches a damaged file that passes, a good one that does not, and damage that is said to be harmless
// although the samples are gone, or the reverse.
func TestCheck(t *testing.T) {
	t.Parallel()
	first := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	w := worldtest.New(1, first.Add(20*time.Hour), 3*day, true).Run()
	s := &store{Memory: w.Store, oldest: w.Begin, newest: w.End}
	dir := filepath.Join(t.TempDir(), Folder)
	rows(t, openDays(t, dir, s), w.Begin, w.End)
	size := func(name string) int64 {
		t.Helper()
		st, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return st.Size()
	}
	check := func(when string, oldest time.Time, want Report) {
		t.Helper()
		got, err := Check(t.Context(), dir, oldest)
		if err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(&want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	names := []string{"2026-03-01.day", "2026-03-02.day", "2026-03-03.day", "2026-03-04.day"}
	var total int64
	for _, n := range names {
		total += size(n)
	}
	end := w.End.Add(-settled).Truncate(time.Hour)
	check("all are good", first, Report{Files: 4, From: first, To: end, Bytes: total, Damaged: []Damage{}, SetAside: []Damage{}})

	change := func(name string, to func([]byte) []byte) {
		t.Helper()
		path := filepath.Join(dir, name)
		b, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, to(b), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	change(names[0], func(b []byte) []byte { return b[:len(b)/2] })
	change(names[1], func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
	change(names[2], func([]byte) []byte { return nil })
	for _, n := range []string{"2026-02-28.day.damaged", "2026-03-04.day.damaged", "2026-03-04.day.tmp123", "late", "notes.txt"} {
		if err := os.WriteFile(filepath.Join(dir, n), []byte("12345"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bad := func(i int, reason, severity string) Damage {
		return Damage{Path: "days/" + names[i], Day: first.AddDate(0, 0, i), Bytes: size(names[i]), Reason: "the file is damaged: " + reason, Severity: severity}
	}
	aside := []Damage{
		{Path: "days/2026-02-28.day.damaged", Day: first.AddDate(0, 0, -1), Bytes: 5, Severity: High},
		{Path: "days/2026-03-04.day.damaged", Day: first.AddDate(0, 0, 3), Bytes: 5, Severity: Low, Remade: true},
	}
	damaged := func(severities ...string) []Damage {
		var out []Damage
		for i, reason := range []string{"its checksum is wrong", "its checksum is wrong", "its header is wrong"} {
			out = append(out, bad(i, reason, severities[i]))
		}
		return out
	}
	want := Report{Files: 1, From: first.AddDate(0, 0, 3), To: end, Bytes: size(names[3]), SetAside: aside}
	want.Damaged = damaged(Low, Low, Low)
	check("the samples exist", first, want)
	want.Damaged = damaged(High, High, Low)
	check("samples before the third day are gone", first.AddDate(0, 0, 2), want)
	want.Damaged = damaged(High, High, High)
	check("there are no samples", time.Time{}, want)

	// A hub that asks for the damaged days makes them again.
	rows(t, openDays(t, dir, s), w.Begin, w.End)
	total = 0
	for i, n := range names {
		total += size(n)
		if i < 3 {
			aside = append(aside, Damage{Path: "days/" + n + asideExt, Day: first.AddDate(0, 0, i), Bytes: size(n + asideExt), Severity: Low, Remade: true})
		}
	}
	slices.SortFunc(aside, func(a, b Damage) int { return a.Day.Compare(b.Day) })
	check("made again", first, Report{Files: 4, From: first, To: end, Bytes: total, Damaged: []Damage{}, SetAside: aside})

	dir = filepath.Join(t.TempDir(), "none")
	check("no folder", first, Report{Damaged: []Damage{}, SetAside: []Damage{}})
}
