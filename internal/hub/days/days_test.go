package days

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/cost/worldtest"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// store is a store to which samples arrive one by one.
type store struct {
	*querytest.Memory
	oldest, newest time.Time
}

func (s *store) options() Options {
	return Options{
		Samples: func() (time.Time, time.Time) { return s.oldest, s.newest },
		Devices: func(ctx context.Context, from, to time.Time) ([]string, error) {
			found := map[string]bool{}
			for _, name := range []string{fleet.SeriesAllocatedTime, fleet.SeriesUnallocatedTime} {
				list, err := s.Raw(ctx, name, from, to)
				if err != nil {
					return nil, err
				}
				for _, x := range list {
					found[x.Labels[fleet.LabelUUID]] = true
				}
			}
			return slices.Sorted(maps.Keys(found)), nil
		},
	}
}

// Catches days that are computed again each time they are asked for: samples far apart are gaps, and
// each day that was computed again marked the one before.
func TestSparseIsKept(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
	s := &store{Memory: querytest.NewMemory(), oldest: begin, newest: begin.Add(6*day + 6*time.Hour + 20*time.Minute)} // a gap across the end of the last kept hour, too
	for at := begin; !at.After(s.newest); at = at.Add(7 * time.Minute) {
		s.Add(query.Labels{
			fleet.LabelName: fleet.SeriesAllocatedTime, fleet.LabelUUID: "g", fleet.LabelKind: "job", fleet.LabelWorkload: "j", fleet.LabelPodUID: "u",
		}, at, at.Sub(begin).Seconds())
	}
	d := openDays(t, t.TempDir(), s)
	want := rows(t, plain{s}, begin, s.newest)
	for range 2 { // days are asked for in the order of time, so that each marks the one before
		if diff := gocmp.Diff(want, rows(t, d, begin, s.newest)); diff != "" {
			t.Fatalf("computed and kept usage (-computed +kept):\n%s", diff)
		}
	}
	before := s.Asked()
	if diff := gocmp.Diff(want, rows(t, d, begin, s.newest)); diff != "" {
		t.Errorf("computed and kept usage (-computed +kept):\n%s", diff)
	}
	if n := s.Asked() - before; n > 2 { // what there was before the first day
		t.Errorf("%d queries for days that are kept", n)
	}
}

// plain computes everything from samples, each time.
type plain struct{ *store }

func (p plain) Usage(ctx context.Context, midnight, at time.Time) (*fleet.Day, error) {
	out := &fleet.Day{}
	used, err := fleet.NewHours(p.store).Between(ctx, nil, midnight, []time.Time{at})
	if err != nil {
		return nil, err
	}
	used.AddTo(out)
	out.Sort()
	return out, nil
}

func openDays(t *testing.T, dir string, s *store) *Days {
	t.Helper()
	d, err := Open(dir, s, s.options())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// arrival is a sample and when it arrives.
type arrival struct {
	when   time.Time
	series int // its number
	labels query.Labels
	query.Point
}

// arrivals returns the samples of a world in the order in which they arrive: most at once, some
// batches hours later.
func arrivals(r *rand.Rand, m *querytest.Memory) []arrival {
	delay := map[string]time.Duration{}
	var out []arrival
	for i, s := range m.Series() {
		for _, p := range s.Points {
			batch := fmt.Sprint(s.Labels["instance"], p.Time.Truncate(20*time.Minute).Unix())
			if _, ok := delay[batch]; !ok && r.IntN(8) == 0 {
				delay[batch] = time.Duration(r.Int64N(int64(20 * time.Hour)))
			} else if !ok {
				delay[batch] = time.Duration(r.Int64N(int64(10 * time.Second)))
			}
			out = append(out, arrival{p.Time.Add(delay[batch]), i, s.Labels, p})
		}
	}
	slices.SortStableFunc(out, func(a, b arrival) int { return cmp.Or(a.when.Compare(b.when), a.Time.Compare(b.Time)) })
	return out
}

// rows returns the usage of a period by row, in order.
func rows(t *testing.T, s query.Store, from, to time.Time) map[string]fleet.Sums {
	t.Helper()
	out := map[string]fleet.Sums{}
	m := fleet.NewMeter(s, fleet.MeterOptions{})
	err := m.Between(t.Context(), from, to, func(r *fleet.DayRow, from fleet.Sums) {
		key, to := r.Key.Value(), r.Sums
		if from.Held == to.Held && from.Active == to.Active && from.Energy == to.Energy {
			return
		}
		x := out[key]
		x.Held += to.Held - from.Held
		x.Active += to.Active - from.Active
		x.Unmeasured += to.Unmeasured - from.Unmeasured
		x.Energy += to.Energy - from.Energy
		out[key] = x
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// worlds is how many random fleets TestKeptIsComputed tries; make worlds sets it.
var worlds = flag.Int("worlds", defaultWorlds, "random hostile fleets")

// Catches a kept day that differs from its samples: after late samples, gaps over midnight, edited
// labels, two agents on a host, clock steps, restarts of the hub, and questions in between. The usage
// of random periods is the same to the microsecond as without any kept day, and no device has more
// than an hour in an hour.
func TestKeptIsComputed(t *testing.T) {
	t.Parallel()
	seeds := []uint64{187} // samples of the hour after change which senders a device has
	for seed := range uint64(*worlds) {
		seeds = append(seeds, seed)
	}
	for _, seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 3))
		w := worldtest.New(seed, time.Date(2026, 3, 1, 22, 30, 0, 0, time.UTC), time.Duration(120+r.IntN(120))*time.Minute, false).Hostile().Run()
		s := &store{Memory: querytest.NewMemory()}
		dir := t.TempDir()
		kept := openDays(t, dir, s)
		ask, into := w.Begin, map[int]func(time.Time, float64){}
		for _, a := range arrivals(r, w.Store) {
			if a.when.After(ask) {
				ask = ask.Add(time.Duration(30+r.IntN(300)) * time.Minute)
				from := w.Begin.Add(-time.Duration(r.IntN(600)) * time.Minute)
				rows(t, kept, from, a.when)
				if r.IntN(3) == 0 {
					kept = openDays(t, dir, s)
				}
			}
			if err := kept.Late(a.labels[fleet.LabelUUID], a.Time); err != nil {
				t.Fatal(err)
			}
			if into[a.series] == nil {
				into[a.series] = s.Into(a.labels)
			}
			into[a.series](a.Time, a.Value)
			if a.Time.After(s.newest) {
				s.newest = a.Time
			}
			if s.oldest.IsZero() || a.Time.Before(s.oldest) {
				s.oldest = a.Time
			}
		}
		for range 2 {
			from := w.Begin.Add(time.Duration(r.IntN(60*4)-60) * time.Minute)
			to := from.Add(time.Duration(1+r.IntN(60*4)) * time.Minute)
			want, got := rows(t, plain{s}, from, to), rows(t, kept, from, to)
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Fatalf("world %d, %s to %s (-computed +kept):\n%s", seed, from, to, diff)
			}
		}
		for at := w.Begin; at.Before(w.End); at = at.Add(time.Hour) {
			devices := map[string]fleet.Seconds{}
			for key, x := range rows(t, kept, at, at.Add(time.Hour)) {
				devices[fleet.DeviceKey(labelsOf(key))] += x.Held
			}
			for device, held := range devices {
				if held > 3600e6+10 { // rows are rounded one by one, at both ends
					t.Errorf("world %d: %q has %s in the hour of %s", seed, device, held.Duration(), at)
				}
			}
		}
	}
}

// Catches a damaged or foreign file that is believed, or that stops bills.
func TestDamagedDay(t *testing.T) {
	t.Parallel()
	w := worldtest.New(1, time.Date(2026, 3, 1, 20, 0, 0, 0, time.UTC), 8*time.Hour, true).Run()
	s := &store{Memory: w.Store, oldest: w.Begin, newest: w.End}
	dir := t.TempDir()
	from, to := w.Begin, w.Begin.Add(6*time.Hour)
	want := rows(t, openDays(t, dir, s), from, to)
	path := filepath.Join(dir, "2026-03-01.day")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		"empty": {}, "truncated": good[:len(good)/2], "a flipped bit": append(append(slices.Clone(good[:40]), good[40]^1), good[41:]...), "text": []byte("hello"),
	} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(want, rows(t, openDays(t, dir, s), from, to)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if set, err := os.ReadFile(path + ".damaged"); err != nil || !slices.Equal(set, b) {
			t.Errorf("%s: not set aside: %v", name, err)
		}
	}
}

// Catches a good file that is set aside, or replaced by a day without usage, because it could not be
// read for a moment.
func TestUnreadableDay(t *testing.T) {
	t.Parallel()
	w := worldtest.New(1, time.Date(2026, 3, 1, 20, 0, 0, 0, time.UTC), 8*time.Hour, true).Run()
	s := &store{Memory: w.Store, oldest: w.Begin, newest: w.End}
	dir := t.TempDir()
	d := openDays(t, dir, s)
	path := filepath.Join(dir, "2026-03-01.day")
	if err := os.Mkdir(path, 0o700); err != nil { // opens, and cannot be read
		t.Fatal(err)
	}
	const want = "cannot read a kept day: read PATH: is a directory"
	_, err := d.Usage(t.Context(), w.Begin.Truncate(day), w.End.Truncate(day))
	if got := strings.ReplaceAll(fmt.Sprint(err), path, "PATH"); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got, err := d.Usage(t.Context(), w.Begin.Truncate(day), w.End.Truncate(day)); err != nil || len(got.Rows) == 0 {
		t.Errorf("%d rows, %v", len(got.Rows), err)
	}
}

// Catches a file for each day before the first sample that somebody asks for.
func TestNothingToKeep(t *testing.T) {
	t.Parallel()
	w := worldtest.New(1, time.Date(2026, 3, 1, 20, 0, 0, 0, time.UTC), 8*time.Hour, true).Run()
	s := &store{Memory: w.Store, oldest: w.Begin, newest: w.End}
	dir := t.TempDir()
	rows(t, openDays(t, dir, s), w.Begin.Add(-100*day), w.End)
	if diff := gocmp.Diff([]string{"2026-03-01.day", "2026-03-02.day"}, files(t, dir)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// files returns the names of the files in a folder.
func files(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range list {
		out = append(out, f.Name())
	}
	return out
}

// Catches a bill that is lost with its samples: kept hours outlive them. A period that ends within
// such an hour gets its part of the hour.
func TestSamplesAreGone(t *testing.T) {
	t.Parallel()
	w := worldtest.New(1, time.Date(2026, 3, 1, 20, 0, 0, 0, time.UTC), 8*time.Hour, true).Run()
	s := &store{Memory: w.Store, oldest: w.Begin, newest: w.End}
	dir := t.TempDir()
	from, to := w.Begin, w.Begin.Add(6*time.Hour)
	want := rows(t, openDays(t, dir, s), from, to)
	gone := &store{Memory: querytest.NewMemory(), oldest: w.End.Add(100 * 24 * time.Hour), newest: w.End.Add(130 * 24 * time.Hour)}
	if diff := gocmp.Diff(want, rows(t, openDays(t, dir, gone), from, to)); diff != "" {
		t.Errorf("(-with samples +without):\n%s", diff)
	}
	// Half of them are gone.
	some := &store{Memory: w.Store, oldest: w.Begin.Add(3 * time.Hour), newest: w.End}
	if diff := gocmp.Diff(want, rows(t, openDays(t, dir, some), from, to)); diff != "" {
		t.Errorf("(-with samples +with half of them):\n%s", diff)
	}
	var hour, half fleet.Seconds
	for _, x := range rows(t, openDays(t, dir, gone), from, from.Add(time.Hour)) {
		hour += x.Held
	}
	for _, x := range rows(t, openDays(t, dir, gone), from, from.Add(30*time.Minute)) {
		half += x.Held
	}
	if got := half*2 - hour; got < -100 || got > 100 {
		t.Errorf("an hour has %s, its half %s", hour.Duration(), half.Duration())
	}
}

// Catches a kept day that does not say which part of it was kept, or of which device time was reported
// twice: an explanation of a bill would be wrong.
func TestKeptExplains(t *testing.T) {
	t.Parallel()
	twice := false
	for seed := range uint64(6) {
		w := worldtest.New(seed, time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC), 4*time.Hour, false).Hostile().Run()
		s := &store{Memory: w.Store, oldest: w.Begin, newest: w.Begin.Add(3*time.Hour + 20*time.Minute)}
		kept, midnight := openDays(t, t.TempDir(), s), w.Begin.Truncate(day)
		for at, until := range map[time.Duration]time.Duration{
			10 * time.Hour: 10 * time.Hour, 10*time.Hour + 30*time.Minute: 10 * time.Hour, 11*time.Hour + 15*time.Minute: 10 * time.Hour,
		} {
			want, err := plain{s}.Usage(t.Context(), midnight, midnight.Add(at))
			if err != nil {
				t.Fatal(err)
			}
			got, err := kept.Usage(t.Context(), midnight, midnight.Add(at))
			if err != nil {
				t.Fatal(err)
			}
			if diff := gocmp.Diff(want.Twice, got.Twice); diff != "" || got.Dropped != want.Dropped || !got.Kept.Equal(midnight.Add(until)) {
				t.Errorf("world %d, %s: kept until %s, dropped %s of %s (-computed +kept):\n%s", seed, at, got.Kept, got.Dropped.Duration(), want.Dropped.Duration(), diff)
			}
			twice = twice || len(want.Twice) > 0
		}
	}
	if !twice {
		t.Error("no world has a device with two senders")
	}
}
