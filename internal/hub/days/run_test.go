package days

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/cost/worldtest"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// Catches days that are deleted too early or never, and what stays of them: marks, files that were set
// aside or not completed, usage in memory, and a new empty file when somebody asks.
func TestExpire(t *testing.T) {
	t.Parallel()
	first := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	w := worldtest.New(1, first.Add(20*time.Hour), 3*day, true).Run() // ends at 20:00 of the fourth day
	s := &store{Memory: w.Store, oldest: w.Begin, newest: w.End}
	dir := t.TempDir()
	if err := openDays(t, dir, s).advance(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"2026-03-02.day.damaged", "2026-03-03.day.damaged", "2026-03-04.day.tmp1", "late.tmp2", "notes.txt"} {
		if err := os.WriteFile(filepath.Join(dir, n), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// Those of a later day than all samples stay.
	if err := os.WriteFile(filepath.Join(dir, "late"), []byte("2026-02-01 GPU-a\n2026-03-01 GPU-a\n2026-03-02 GPU-b\n2026-03-05 GPU-c\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := openDays(t, dir, s)
	kept := rows(t, d, first.AddDate(0, 0, 2), w.End)
	rows(t, d, w.Begin, w.End) // all are in memory
	check := func(keep time.Duration, late string, want ...string) {
		t.Helper()
		d.o.Keep = keep
		if err := d.advance(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(append(want, "late", "notes.txt"), files(t, dir)); diff != "" {
			t.Errorf("kept for %s (-want +got):\n%s", keep, diff)
		}
		if got, err := os.ReadFile(filepath.Join(dir, "late")); err != nil || string(got) != late {
			t.Errorf("kept for %s: marks %q, want %q, %v", keep, got, late, err)
		}
	}
	const before, after = "2026-02-01 GPU-a\n2026-03-05 GPU-c\n", "2026-03-05 GPU-c\n"
	check(0, before, "2026-03-01.day", "2026-03-02.day", "2026-03-02.day.damaged", "2026-03-03.day", "2026-03-03.day.damaged", "2026-03-04.day")
	check(3*day, after, "2026-03-01.day", "2026-03-02.day", "2026-03-02.day.damaged", "2026-03-03.day", "2026-03-03.day.damaged", "2026-03-04.day")
	check(44*time.Hour+time.Nanosecond, after, "2026-03-02.day", "2026-03-02.day.damaged", "2026-03-03.day", "2026-03-03.day.damaged", "2026-03-04.day")
	check(44*time.Hour, after, "2026-03-03.day", "2026-03-03.day.damaged", "2026-03-04.day") // the second day ended then

	// The samples expire too.
	s.Memory, s.oldest = querytest.NewMemory(), first.AddDate(0, 0, 3)
	if diff := gocmp.Diff(kept, rows(t, d, w.Begin, w.End)); diff != "" {
		t.Errorf("usage (-of the kept days +of all):\n%s", diff)
	}
	check(44*time.Hour, after, "2026-03-03.day", "2026-03-03.day.damaged", "2026-03-04.day")
}
