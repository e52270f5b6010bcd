package days

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
	"unique"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/cost/worldtest"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Catches a parser that crashes or takes unbounded memory.
func FuzzDecode(f *testing.F) {
	k := &kept{day: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), hours: 2, devices: map[string]*device{"g": {
		key: "g", dropped: []fleet.Seconds{0, 1}, rows: []row{{key: unique.Make("a\xffb\xff"), labels: query.Labels{"a": "b"}, hours: []fleet.Sums{{Held: 3}, {Active: 4, HasActive: true}}}}, late: []late{{0, 5, 6}},
	}}}
	f.Add(k.encode())
	k.hours = 24
	for _, key := range []string{"g", "h"} {
		x := &device{key: key, dropped: make([]fleet.Seconds, 24), late: []late{{1, 5, 6}}}
		for i := range 2 {
			r := row{key: unique.Make(fmt.Sprintf("a\xff%s%d\xff", key, i)), hours: make([]fleet.Sums, 24)}
			r.hours[i+20] = fleet.Sums{Held: fleet.Seconds(3600e6 / (i + 1)), Energy: 7, HasEnergy: true}
			x.rows = append(x.rows, r)
		}
		k.devices[key] = x
	}
	f.Add(k.encode())
	names := func(key []byte) (fleet.RowKey, query.Labels) {
		return unique.Make(string(key)), labelsOf(string(key))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decode(b, false, names)
		if err != nil {
			return
		}
		again, err := decode(got.encode(), false, names)
		if err != nil || len(again.devices) != len(got.devices) {
			t.Fatalf("%v, %v", again, err)
		}
		lean, err := decode(b, true, names)
		if err != nil || lean.hours == 24 != lean.lean || lean.usage() != got.usage() {
			t.Fatalf("without hours: %+v, %v", lean, err)
		}
		if lean.lean {
			if diff := gocmp.Diff(got.upTo(24, got.day.Add(day)).Hourly, lean.whole.Hourly); diff != "" || len(got.whole.Rows) != len(lean.whole.Rows) || len(got.whole.Late) != len(lean.whole.Late) {
				t.Fatalf("without hours (-with +without):\n%s", diff)
			}
		}
	})
}

// Catches hours of past days that stay in memory, a part of a day that is asked for when they are gone from
// it, a day without hours that replaces its file, and a file that was damaged meanwhile and is never made
// again.
func TestSlim(t *testing.T) {
	t.Parallel()
	w := worldtest.New(1, time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), 3*day, true).Run()
	s := &store{Memory: w.Store, oldest: w.Begin, newest: w.End}
	dir := t.TempDir()
	d := openDays(t, dir, s)
	midnight := w.Begin
	for range 2 { // computed, then read
		if diff := gocmp.Diff(rows(t, plain{s}, w.Begin, w.End), rows(t, d, w.Begin, w.End)); diff != "" {
			t.Fatalf("(-computed +kept):\n%s", diff)
		}
		k := d.loaded[midnight]
		if k == nil || !k.lean || len(k.devices) == 0 {
			t.Fatal("the day is not in memory, or all of it is")
		}
		for _, x := range k.devices {
			if len(x.rows) > 0 {
				t.Fatalf("%d rows of a device are in memory", len(x.rows))
			}
		}
		before, err := os.ReadFile(filepath.Join(dir, name(midnight)))
		if err != nil {
			t.Fatal(err)
		}
		d.save(k)
		if after, err := os.ReadFile(filepath.Join(dir, name(midnight))); err != nil || !slices.Equal(before, after) {
			t.Fatalf("the file was replaced: %v", err)
		}
		used, err := fleet.NewHours(s).Between(t.Context(), nil, midnight, []time.Time{midnight.Add(day)})
		if err != nil {
			t.Fatal(err)
		}
		want := &fleet.Day{Rows: map[fleet.RowKey]*fleet.DayRow{}, Hourly: map[string]*fleet.DayHours{}}
		used.AddTo(want)
		if got, err := d.Usage(t.Context(), midnight, midnight.Add(day)); err != nil || len(want.Hourly) == 0 {
			t.Fatal(err)
		} else if diff := gocmp.Diff(want.Hourly, got.Hourly); diff != "" {
			t.Errorf("device time of hours (-computed +kept):\n%s", diff)
		}
		part := midnight.Add(7*time.Hour + 20*time.Minute)
		if diff := gocmp.Diff(rows(t, plain{s}, w.Begin, part), rows(t, d, w.Begin, part)); diff != "" {
			t.Fatalf("a part of the day (-computed +kept):\n%s", diff)
		}
		d = openDays(t, dir, s)
	}
	if _, err := d.Usage(t.Context(), midnight, midnight.Add(day)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name(midnight)), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	part := midnight.Add(7 * time.Hour)
	if _, err := d.Usage(t.Context(), midnight, part); !errors.Is(err, errDamaged) {
		t.Errorf("a damaged file: %v", err)
	}
	if diff := gocmp.Diff(rows(t, plain{s}, w.Begin, part), rows(t, d, w.Begin, part)); diff != "" {
		t.Errorf("after a damaged file (-computed +kept):\n%s", diff)
	}
}
