package accounting

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// database is a Slurm whose rows appear some time after their jobs end.
type database struct {
	now     time.Time
	rows    []lateRow
	backlog int // -1: unknown
	fail    error
	limit   int // rows per response
	asked   []Query
}

type lateRow struct {
	Job
	appears time.Time
}

func (d *database) Jobs(_ context.Context, q Query) ([]Job, error) {
	d.asked = append(d.asked, q)
	if d.fail != nil {
		return nil, d.fail
	}
	c := collect{q: q, seen: map[string]bool{}}
	for _, r := range d.rows {
		if !r.appears.After(d.now) {
			_ = c.add(r.Job)
		}
	}
	if d.limit > 0 && len(c.jobs) > d.limit {
		return nil, slurm.ErrTooLong
	}
	return c.sorted(), nil
}

func (d *database) Backlog(context.Context) (int, bool) { return max(d.backlog, 0), d.backlog >= 0 }

func job(id int, start, end time.Time) Job {
	return Job{
		Job:    slurm.Job{ID: strconv.Itoa(id), Cluster: "c", Partition: "gpu", State: "COMPLETED", Start: start, End: end, GPUs: 1, Nodes: 1},
		UserID: strconv.Itoa(id), Elapsed: end.Sub(start),
	}
}

// sink collects records.
type sink struct {
	got  map[string]int
	fail error
}

func (s *sink) take(_ context.Context, list []Record) error {
	if s.fail != nil {
		return s.fail
	}
	for _, r := range list {
		s.got[r.UID()]++
	}
	return nil
}

var epoch = time.Unix(1_800_000_000, 0).UTC()

func newFollower(t testing.TB, d *database, s *sink, dir string) *Follower {
	cfg := DefaultConfig()
	cfg.Pause = 0
	return &Follower{
		Config: cfg, Source: d, Store: Store{dir}, Now: func() time.Time { return d.now }, Deliver: s.take,
		Say: func(what string, err error) { t.Logf("%s: %v", what, err) },
	}
}

// Catches a row that is lost or delivered twice, in whatever order rows appear, however late within
// the promise, and wherever the process ends. Only a crash between delivery and saving the cursor
// may repeat a row, with the same UID.
func TestEachOnce(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			eachOnce(t, rand.New(rand.NewPCG(seed, 1)))
		})
	}
}

var errCrash = errors.New("killed")

func eachOnce(t *testing.T, random *rand.Rand) {
	d := &database{now: epoch, backlog: -1, limit: 40}
	if random.IntN(2) == 0 {
		d.backlog = 0
	}
	s := &sink{got: map[string]int{}}
	dir := t.TempDir()
	want := map[string]bool{}
	crashes := 0
	var f *Follower
	start := func() {
		f = newFollower(t, d, s, dir)
		f.Since = 3 * time.Hour
		f.Batch = 1 + random.IntN(20)
		f.Deliver = func(ctx context.Context, list []Record) error {
			switch random.IntN(12) {
			case 0:
				return errors.New("busy")
			case 1:
				return errCrash
			case 2: // accepted, then the process ends
				crashes++
				_ = s.take(ctx, list)
				return errCrash
			}
			return s.take(ctx, list)
		}
	}
	id := 0
	for range 60 { // history
		id++
		end := epoch.Add(-time.Duration(random.IntN(3*3600-10)) * time.Second)
		d.rows = append(d.rows, lateRow{job(id, end.Add(-time.Minute), end), epoch})
	}
	start()
	for minute := range 5 * 60 {
		d.now = epoch.Add(time.Duration(minute) * time.Minute)
		for range random.IntN(4) {
			if id++; minute > 5*60-100 {
				break // give the last rows time to appear
			}
			end := d.now.Add(time.Duration(random.IntN(60)) * time.Second)
			late := time.Duration(random.IntN(3500)) * time.Second
			one := job(id/2, end.Add(-time.Duration(random.IntN(9999))*time.Second), end) // job IDs are reused
			d.rows = append(d.rows, lateRow{one, end.Add(late)})
		}
		d.fail = nil
		if random.IntN(10) == 0 {
			d.fail = errors.New("slurmdbd is unavailable")
		}
		if random.IntN(20) == 0 { // killed between two rounds
			start()
		}
		if err := f.Round(t.Context()); errors.Is(err, errCrash) {
			start()
		}
	}
	for _, r := range d.rows {
		want[r.UID()] = true
	}
	twice := 0
	for uid := range want {
		if s.got[uid] == 0 {
			t.Errorf("%s is missing", uid)
		}
		twice += max(0, s.got[uid]-1)
	}
	for uid := range s.got {
		if !want[uid] {
			t.Errorf("%s does not exist", uid)
		}
	}
	if twice > crashes*20 || crashes == 0 && twice > 0 {
		t.Errorf("%d duplicates in %d crashes", twice, crashes)
	}
	if len(f.state.Delivered) > len(want) || f.state.cursor().Before(d.now.Add(-2*time.Hour)) {
		t.Errorf("%d are remembered, the cursor is at %s of %s", len(f.state.Delivered), f.state.cursor(), d.now)
	}
}

// Catches a restart that repeats rows although nothing crashed.
func TestRestart(t *testing.T) {
	d := &database{now: epoch, backlog: 0}
	s := &sink{got: map[string]int{}}
	dir := t.TempDir()
	for i := range 200 {
		end := epoch.Add(time.Duration(i) * 37 * time.Second)
		d.rows = append(d.rows, lateRow{job(i+1, end, end), end.Add(time.Duration(i%50) * time.Minute)})
	}
	for range 200 {
		if err := newFollower(t, d, s, dir).Round(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.now = d.now.Add(time.Minute)
	}
	if len(s.got) != 200 {
		t.Errorf("%d of 200", len(s.got))
	}
	for uid, n := range s.got {
		if n != 1 {
			t.Errorf("%s: %d times", uid, n)
		}
	}
}

// Catches rows lost after the controller could not reach the database for half a day, and a
// database queried for the whole period every minute.
func TestBacklog(t *testing.T) {
	d := &database{now: epoch, backlog: 0}
	s := &sink{got: map[string]int{}}
	f := newFollower(t, d, s, t.TempDir())
	written := epoch.Add(12 * time.Hour)
	for i := range 100 {
		end := epoch.Add(time.Duration(i) * 7 * time.Minute)
		d.rows = append(d.rows, lateRow{job(i+1, end, end), written})
	}
	for d.now.Before(written.Add(5 * time.Minute)) {
		d.backlog = 0
		if d.now.After(epoch.Add(time.Minute)) && d.now.Before(written) {
			d.backlog = 100
		}
		if err := f.Round(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.now = d.now.Add(time.Minute)
	}
	if len(s.got) != 100 {
		t.Errorf("%d of 100: late rows were lost", len(s.got))
	}
	if n := len(d.asked); n > 12*60*2 {
		t.Errorf("%d queries in %d rounds", n, 12*60)
	}
	// A permanent backlog must not stop the cursor forever.
	d.backlog = 3
	for range 30 * 60 {
		if err := f.Round(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.now = d.now.Add(time.Minute)
	}
	if behind := d.now.Sub(f.state.cursor()); behind > f.Hold+2*time.Hour {
		t.Errorf("the cursor is %s behind", behind)
	}
}

// Catches a backfill that queries more than an hour at a time, or fails on a full hour.
func TestBackfill(t *testing.T) {
	d := &database{now: epoch, backlog: -1, limit: 10}
	s := &sink{got: map[string]int{}}
	f := newFollower(t, d, s, t.TempDir())
	f.Since = 48 * time.Hour
	for i := range 300 {
		end := epoch.Add(-time.Duration(i) * 9 * time.Minute)
		d.rows = append(d.rows, lateRow{job(i+1, end, end), end})
	}
	for i := range 15 { // in one minute
		end := epoch.Add(-20*time.Hour + time.Duration(i)*2*time.Second)
		d.rows = append(d.rows, lateRow{job(1000+i, end, end), end})
	}
	if err := f.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(s.got) != 315 {
		t.Errorf("%d of 315", len(s.got))
	}
	for _, q := range d.asked {
		if q.To.Sub(q.From) > time.Hour {
			t.Errorf("one query covers %s", q.To.Sub(q.From))
		}
	}
}

// Catches permanently rejected records that block the others or are not counted.
func TestRefused(t *testing.T) {
	d := &database{now: epoch, backlog: -1}
	d.rows = []lateRow{{job(1, epoch, epoch), epoch}}
	s := &sink{got: map[string]int{}, fail: fmt.Errorf("%w: too big", ErrRefused)}
	f := newFollower(t, d, s, t.TempDir())
	if err := f.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.fail = nil
	d.rows = append(d.rows, lateRow{job(2, epoch, epoch), epoch})
	if err := f.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := (Stats{Delivered: 1, Refused: 1}); f.Stats != want || len(s.got) != 1 {
		t.Errorf("%+v, %v", f.Stats, s.got)
	}
}

// meter returns the usage of jobs, or an error.
type meter struct {
	fail  error
	calls int
}

func (m *meter) Usage(_ context.Context, jobs []Job) ([]Usage, error) {
	m.calls++
	out := make([]Usage, len(jobs))
	for i := range out {
		out[i].Status = UsageError
		if m.fail == nil {
			out[i] = Usage{Status: UsageOK, Allocated: 1}
		}
	}
	return out, m.fail
}

// Catches a record sent before its usage is complete, one that waits forever, and a cursor that
// moves past it.
func TestUsageIsWaitedFor(t *testing.T) {
	d := &database{now: epoch, backlog: -1}
	d.rows = []lateRow{
		{job(1, epoch.Add(-time.Hour), epoch), epoch},
		{Job{Job: slurm.Job{ID: "2", Cluster: "c", Partition: "gpu", State: "CANCELLED", End: epoch}}, epoch},
	}
	m := &meter{fail: errors.New("no route")}
	s := &sink{got: map[string]int{}}
	dir := t.TempDir()
	f := newFollower(t, d, s, dir)
	f.Usage = m
	statuses := map[string]string{}
	f.Deliver = func(ctx context.Context, list []Record) error {
		for _, r := range list {
			statuses[r.ID] = r.Usage.Status
		}
		return s.take(ctx, list)
	}
	round := func(want map[string]string) {
		t.Helper()
		if err := f.Round(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, statuses); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	round(map[string]string{"2": ""}) // it never ran
	d.now = epoch.Add(f.Settle)
	round(map[string]string{"2": ""})
	round(map[string]string{"2": ""})
	round(map[string]string{"1": UsageError, "2": ""})
	d.rows = append(d.rows, lateRow{job(3, epoch, epoch.Add(time.Second)), epoch})
	d.now = epoch.Add(2 * f.Settle)
	round(map[string]string{"1": UsageError, "2": ""})
	m.fail = nil
	round(map[string]string{"1": UsageError, "2": "", "3": UsageOK})
	if f.Stats.NoUsage != 1 {
		t.Errorf("%+v", f.Stats)
	}
	// The cursor never passes a deferred record.
	m.fail = errors.New("no route")
	f.Tries = 1 << 30
	d.rows = append(d.rows, lateRow{job(4, epoch, epoch.Add(3*time.Second)), epoch})
	for range 5 {
		d.now = d.now.Add(time.Hour)
		round(map[string]string{"1": UsageError, "2": "", "3": UsageOK})
	}
	m.fail = nil
	f = newFollower(t, d, s, dir)
	if err := f.Round(t.Context()); err != nil || len(s.got) != 4 {
		t.Errorf("%v, %d of 4: the cursor passed a deferred record", err, len(s.got))
	}
}
