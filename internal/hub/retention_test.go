package hub

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/hub/days"
)

const hours = int64(time.Hour / time.Millisecond)

// retentionStore is a store whose clock follows its samples.
type retentionStore struct {
	*Store
	t     *testing.T
	dir   string
	opt   Options
	clock int64 // ms
}

func newRetentionStore(t *testing.T, o Options) *retentionStore {
	t.Helper()
	r := &retentionStore{t: t, dir: t.TempDir(), opt: o, clock: now.Truncate(24 * time.Hour).UnixMilli()}
	r.opt.Now = func() time.Time { return time.UnixMilli(r.clock) }
	r.Store = openTest(t, r.dir, r.opt)
	return r
}

func (r *retentionStore) restart(o Options) {
	r.t.Helper()
	if err := r.Close(); err != nil {
		r.t.Fatal(err)
	}
	o.Now = r.opt.Now
	r.Store = openTest(r.t, r.dir, o)
}

// run stores a sample every ten minutes for d, and compacts as the database does over time.
func (r *retentionStore) run(d time.Duration) {
	r.t.Helper()
	for end := r.clock + d.Milliseconds(); r.clock < end; r.clock += 10 * 60_000 {
		r.put("g", r.clock)
		if r.clock%(2*hours) == 0 {
			r.compact()
		}
	}
	r.compact()
}

func (r *retentionStore) put(metric string, at int64) {
	r.t.Helper()
	a := r.Appender(r.t.Context())
	for i := range 10 {
		a.Gauge(name(metric, "i", fmt.Sprint(i)), at, float64(at)*1.1+float64(i))
	}
	if got := commit(r.t, a); got.Refused > 0 {
		r.t.Fatalf("%+v", got)
	}
}

func (r *retentionStore) compact() {
	r.t.Helper()
	if err := r.db.Compact(context.Background()); err != nil {
		r.t.Fatal(err)
	}
}

// times returns the times of the samples of a metric, and the end of the newest block.
func (r *retentionStore) times(metric string) (all []int64, end int64) {
	r.t.Helper()
	series, err := r.Raw(r.t.Context(), metric+`{i="7"}`, time.UnixMilli(0), time.UnixMilli(r.clock+hours))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, x := range series {
		for _, p := range x.Points {
			all = append(all, p.Time.UnixMilli())
		}
	}
	for _, b := range r.db.Blocks() {
		end = max(end, b.Meta().MaxTime)
	}
	return all, end
}

func every10Minutes(from, to int64) (out []int64) {
	for ms := from; ms < to; ms += 10 * 60_000 {
		out = append(out, ms)
	}
	return out
}

// Catches a retention by time that deletes what is still to be kept, keeps what is to be deleted, or
// treats blocks of late samples differently.
func TestRetentionByTime(t *testing.T) {
	t.Parallel()
	const days2 = 48 * hours
	r := newRetentionStore(t, Options{Retention: 48 * time.Hour})
	began := r.clock
	check := func(when string) {
		t.Helper()
		got, end := r.times("g")
		if diff := cmp.Diff(every10Minutes(max(began, end-days2), r.clock), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	r.run(40 * time.Hour)
	check("before anything is too old")
	r.run(60 * time.Hour)
	check("after 100 hours")
	r.restart(r.opt)
	check("after a restart")

	// A node was away for a day: its samples are late and get blocks of their own.
	late := every10Minutes(r.clock-20*hours, r.clock-10*hours)
	slices.Reverse(late) // the worst order
	for _, ms := range late {
		r.put("late", ms)
	}
	slices.Sort(late)
	if err := r.db.CompactOOOHead(context.Background()); err != nil {
		t.Fatal(err)
	}
	r.compact()
	check("after late samples")
	got, _ := r.times("late")
	if diff := cmp.Diff(late, got); diff != "" {
		t.Errorf("late samples (-want +got):\n%s", diff)
	}
	r.run(35 * time.Hour)
	r.restart(r.opt)
	check("after late samples grow old")
	got, end := r.times("late")
	want := slices.DeleteFunc(slices.Clone(late), func(ms int64) bool { return ms < end-days2 })
	if diff := cmp.Diff(want, got); diff != "" || len(want) == 0 || len(want) == len(late) {
		t.Errorf("%d of %d late samples are kept (-want +got):\n%s", len(want), len(late), diff)
	}

	// The clock of the hub is a year ahead, and nobody sends.
	before, _ := r.times("g")
	r.clock += 365 * 24 * hours
	r.restart(r.opt)
	r.compact()
	if after, _ := r.times("g"); !slices.Equal(before, after) {
		t.Errorf("a clock that is ahead deletes %d samples", len(before)-len(after))
	}
}

// Catches a retention by size that deletes the newest samples, deletes more than necessary, or does not
// delete.
func TestRetentionBySize(t *testing.T) {
	t.Parallel()
	r := newRetentionStore(t, Options{})
	began := r.clock
	r.opt.Retention = 20 * time.Hour // blocks of two hours
	r.restart(Options{Retention: 20 * time.Hour})
	r.run(18 * time.Hour)
	blocks := r.db.Blocks()
	if len(blocks) < 5 {
		t.Fatalf("%d blocks", len(blocks))
	}
	const keep = 3
	limit := r.db.Head().Size()
	for _, b := range blocks[len(blocks)-keep:] {
		limit += b.Size()
	}
	limit += blocks[len(blocks)-keep-1].Size() / 2
	oldest := blocks[len(blocks)-keep].Meta().MinTime
	r.restart(Options{Retention: 20 * time.Hour, MaxBytes: limit})
	got, _ := r.times("g")
	if diff := cmp.Diff(every10Minutes(oldest, r.clock), got); diff != "" {
		t.Errorf("samples within %d bytes (-want +got):\n%s", limit, diff)
	}
	if size := r.Size(); size > limit {
		t.Errorf("%d bytes on disk, the limit is %d", size, limit)
	}
	if oldest <= began {
		t.Error("nothing had to be deleted")
	}
}

// Catches a limit on kept days that does not reach them, and one that is below the retention.
func TestKeepUsage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		o    Options
		want []string // of what was set aside 50 days, 1000 days and 6 years ago
	}{
		{Options{}, []string{"2026-01-16", "2023-06-11"}},
		{Options{KeepUsage: 400 * 24 * time.Hour}, []string{"2026-01-16"}},
		{Options{KeepUsage: time.Hour, Retention: 60 * 24 * time.Hour}, []string{"2026-01-16"}},
		{Options{KeepUsage: time.Hour, Retention: 2 * time.Hour}, nil},
	} {
		dir := t.TempDir()
		s := openTest(t, dir, c.o)
		a := s.Appender(t.Context())
		a.Gauge(name("x"), ago(0), 1)
		commit(t, a)
		path := func(date string) string { return filepath.Join(dir, days.Folder, date+".day.damaged") }
		all := []string{"2026-01-16", "2023-06-11", "2020-03-07"}
		for _, date := range all {
			if err := os.WriteFile(path(date), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		var keeping sync.WaitGroup
		keeping.Go(func() { s.KeepDays(ctx) })
		left := func() []string {
			var out []string
			for _, date := range all {
				if _, err := os.Stat(path(date)); err == nil {
					out = append(out, date)
				}
			}
			return out
		}
		await.True(t, "old days to be deleted", func() bool { return len(left()) <= len(c.want) })
		stop()
		keeping.Wait()
		if diff := cmp.Diff(c.want, left()); diff != "" {
			t.Errorf("%s, %s (-want +got):\n%s", c.o.KeepUsage, c.o.Retention, diff)
		}
	}
}
