package days

import (
	"errors"
	"fmt"
	"maps"
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
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// Catches a parser that crashes or takes unbounded memory.
func FuzzDecode(f *testing.F) {
	k := &kept{day: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), hours: 2, devices: map[string]*device{"g": {
		key: "g", dropped: []fleet.Seconds{0, 1}, rows: []row{{rowID: rowID{key: unique.Make("a\xffb\xff"), labels: query.Labels{"a": "b"}}, hours: []fleet.Sums{{Held: 3}, {Active: 4, HasActive: true}}}}, late: []late{{0, 5, 6}},
	}}}
	f.Add(k.encode())
	k.hours = 24
	for _, key := range []string{"g", "h"} {
		x := &device{key: key, dropped: make([]fleet.Seconds, 24), late: []late{{1, 5, 6}}}
		for i := range 2 {
			r := row{rowID: rowID{key: unique.Make(fmt.Sprintf("a\xff%s%d\xff", key, i))}, hours: make([]fleet.Sums, 24)}
			r.hours[i+20] = fleet.Sums{Held: fleet.Seconds(3600e6 / (i + 1)), Energy: 7, HasEnergy: true}
			x.rows = append(x.rows, r)
		}
		k.devices[key] = x
	}
	f.Add(k.encode())
	names := func(key []byte) rowID {
		return rowID{key: unique.Make(string(key)), labels: labelsOf(string(key))}
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
		want := &fleet.Day{Hourly: map[string]*fleet.DayHours{}}
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

// Catches days that are read ahead and differ from those that are read one by one, days that are read again
// and again, and a damaged file among them that is used, or that nobody sets aside.
func TestAhead(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
	s := &store{Memory: querytest.NewMemory(), oldest: begin, newest: begin.Add(12*day + 5*time.Hour)}
	for i := range 3 {
		for at := begin; !at.After(s.newest); at = at.Add(time.Minute) {
			s.Add(query.Labels{
				fleet.LabelName: fleet.SeriesAllocatedTime, fleet.LabelUUID: fmt.Sprint("g", i), fleet.LabelKind: "job", fleet.LabelPodUID: fmt.Sprint("u", i, at.Sub(begin)/(36*time.Hour)),
			}, at, (at.Sub(begin) % (36 * time.Hour)).Seconds())
		}
	}
	dir := t.TempDir()
	want := rows(t, plain{s}, begin, s.newest)
	if diff := gocmp.Diff(want, rows(t, openDays(t, dir, s), begin, s.newest)); diff != "" {
		t.Fatalf("(-computed +kept):\n%s", diff)
	}
	d := openDays(t, dir, s)
	rows(t, d, begin, begin.Add(2*day))
	if n := len(d.loaded); n < 2+maxAhead {
		t.Errorf("%d days are in memory after the first two were asked for", n)
	}
	read := maps.Clone(d.loaded)
	if diff := gocmp.Diff(want, rows(t, d, begin, s.newest)); diff != "" {
		t.Errorf("read ahead (-computed +kept):\n%s", diff)
	}
	for day, k := range read {
		if k.hours == 24 && d.loaded[day] != k {
			t.Errorf("%s was read again", day.Format(time.DateOnly))
		}
	}
	bad := filepath.Join(dir, name(begin.Add(4*day)))
	if err := os.WriteFile(bad, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(want, rows(t, openDays(t, dir, s), begin, s.newest)); diff != "" {
		t.Errorf("with a damaged file (-computed +kept):\n%s", diff)
	}
	if _, err := os.Stat(bad + asideExt); err != nil {
		t.Errorf("the damaged file was not set aside: %v", err)
	}
}
