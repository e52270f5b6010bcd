package accounting

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// Record is a row with what the job did.
type Record struct {
	Job
	Usage Usage
}

// ErrRefused means that records will never be taken: they are counted and left out.
var ErrRefused = errors.New("the records were refused")

// Config is how jobs are followed.
type Config struct {
	// Since is how long ago to begin where there is no cursor yet.
	Since time.Duration
	// Overlap is how long a row may take to appear after its job has ended.
	Overlap time.Duration
	// Step is the most time of accounting that is asked for at once.
	Step time.Duration
	// Pause comes between two steps, for the sake of the database.
	Pause time.Duration
	// Timeout is what one question to Slurm may take.
	Timeout time.Duration
	// Hold is how long rows may take while the controller has not written everything.
	Hold time.Duration
	// Settle is how long after its end a job's usage is whole. It is not waited for where
	// nobody is asked for usage.
	Settle time.Duration
	// Tries is how often usage is asked for before a record goes without.
	Tries int
	// Batch is the most records that are delivered at once.
	Batch int
}

// DefaultConfig returns what is right for most.
func DefaultConfig() Config {
	return Config{
		Overlap: time.Hour, Step: time.Hour, Pause: time.Second, Timeout: time.Minute, Hold: 24 * time.Hour,
		Settle: 2 * time.Minute, Tries: 3, Batch: 500,
	}
}

// Stats are counted since the start.
type Stats struct {
	Delivered, Refused int64
	Unreadable         int64 // answers of which rows were left out
	NoUsage            int64 // records without, though it was asked for
	Forgotten          int64 // rows that were remembered no longer
	Backlog            int   // of the controller, when it was last asked
}

// usage says what jobs did. Prometheus implements it.
type usage interface {
	Usage(ctx context.Context, jobs []Job) ([]Usage, error)
}

// Follower delivers each row of a source once. It is not safe for concurrent use.
type Follower struct {
	Config
	Source  Source
	Store   Store
	Usage   usage // nil: nobody is asked
	Now     func() time.Time
	Deliver func(ctx context.Context, list []Record) error
	// Say gets what somebody should know and what costs nothing: a damaged state, rows that
	// cannot be read.
	Say func(what string, err error)

	Stats Stats

	state *state
	saved int64          // cursor of the file
	tries map[string]int // for usage, by UID
	whole time.Time      // when everything since the cursor was last looked at
}

// Round looks once for what is new and delivers it. An error means that something is to
// be tried again; nothing is lost by it.
func (f *Follower) Round(ctx context.Context) error {
	now := f.Now()
	if f.state == nil {
		f.begin(now)
	}
	slack := f.Overlap
	if n, ok := f.backlog(ctx); ok {
		if f.Stats.Backlog = n; n > 0 {
			slack = max(f.Hold, f.Overlap)
		}
	}
	from := f.state.cursor()
	recent := now.Add(-f.Overlap)
	// While the controller has not written everything, late rows are looked for once in a
	// while, new ones each time.
	whole := slack == f.Overlap || now.Sub(f.whole) >= f.Step || !from.Before(recent)
	if !whole {
		from = recent
	}
	var waits time.Time // the earliest end of a row that has to wait
	for {
		to := now
		if to.Sub(from) > f.Step {
			to = from.Add(f.Step)
		}
		rest, err := f.step(ctx, from, to, now)
		if err != nil {
			return err
		}
		if waits = earlier(waits, rest); whole {
			f.advance(to, waits, now.Add(-slack))
		}
		if err := f.save(false); err != nil {
			return err
		}
		if !to.Before(now) {
			if whole {
				f.whole = now
			}
			return nil
		}
		from = to
		if err := sleep(ctx, f.Pause); err != nil {
			return err
		}
	}
}

func (f *Follower) backlog(ctx context.Context) (n int, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, f.Timeout)
	defer cancel()
	return f.Source.Backlog(ctx)
}

func (f *Follower) jobs(ctx context.Context, q Query) ([]Job, error) {
	ctx, cancel := context.WithTimeout(ctx, f.Timeout)
	defer cancel()
	return f.Source.Jobs(ctx, q)
}

// begin takes the state up again, or begins one.
func (f *Follower) begin(now time.Time) {
	st, err := f.Store.load()
	if st == nil {
		st = &state{Version: stateVersion, Cursor: now.Add(-f.Since).Unix(), Delivered: map[string]int64{}}
	}
	if err != nil {
		st.Cursor = now.Add(-max(f.Since, f.Overlap)).Unix()
		f.Say("The cursor cannot be read: what ended since a while ago is sent again, with the same uid", err)
	}
	if limit := now.Unix(); st.Cursor > limit { // a clock that was wrong
		st.Cursor = limit
	}
	f.state, f.tries = st, map[string]int{}
	if err := f.save(true); err != nil { // one that ends before the first answer is to be found by the next process
		f.Say("The cursor cannot be kept", err)
	}
}

// step delivers the rows that ended in a range. rest is the earliest end of a row that has
// to wait, zero if there is none.
func (f *Follower) step(ctx context.Context, from, to, now time.Time) (rest time.Time, err error) {
	jobs, err := f.jobs(ctx, Query{From: from, To: to})
	if errors.Is(err, slurm.ErrTooLong) && to.Sub(from) >= 2*time.Second {
		half := from.Add(to.Sub(from) / 2).Truncate(time.Second)
		first, err := f.step(ctx, from, half, now)
		if err != nil {
			return time.Time{}, err
		}
		second, err := f.step(ctx, half, to, now)
		if first.IsZero() {
			first = second
		}
		return first, err
	}
	if Unreadable(err) {
		f.Stats.Unreadable++
		f.Say("Some rows of the accounting cannot be read", err)
		err = nil
	}
	if err != nil {
		return time.Time{}, err
	}
	var ready []Job
	for _, j := range jobs {
		_, done := f.state.Delivered[j.UID()]
		switch {
		case done:
		case !j.whole() && now.Sub(j.End) < f.Settle:
			rest = earlier(rest, j.End)
		case f.Usage != nil && f.measurable(&j) && now.Sub(j.End) < f.Settle:
			rest = earlier(rest, j.End)
		default:
			ready = append(ready, j)
		}
	}
	for len(ready) > 0 {
		n := min(len(ready), f.Batch)
		waits, err := f.deliver(ctx, ready[:n])
		if err != nil {
			return time.Time{}, err
		}
		rest = earlier(rest, waits)
		ready = ready[n:]
	}
	return rest, nil
}

// measurable reports whether there can be any usage.
func (*Follower) measurable(j *Job) bool {
	return !j.Start.IsZero() && (j.GPUs > 0 || j.Shards > 0)
}

// deliver sends a batch with its usage and remembers it. waits is the earliest end of one
// that has to be tried again.
func (f *Follower) deliver(ctx context.Context, jobs []Job) (waits time.Time, err error) {
	usages, again := f.measure(ctx, jobs)
	list := make([]Record, 0, len(jobs))
	for i, j := range jobs {
		if again[i] {
			waits = earlier(waits, j.End)
			continue
		}
		list = append(list, Record{j, usages[i]})
		if s := usages[i].Status; s == UsageMissing || s == UsageError {
			f.Stats.NoUsage++
		}
	}
	if len(list) == 0 {
		return waits, nil
	}
	switch err := f.Deliver(ctx, list); {
	case errors.Is(err, ErrRefused):
		f.Stats.Refused += int64(len(list))
		f.Say("Records of jobs are refused for good, and left out", err)
	case err != nil:
		return time.Time{}, fmt.Errorf("cannot deliver: %w", err)
	default:
		f.Stats.Delivered += int64(len(list))
	}
	for _, r := range list {
		uid := r.UID()
		f.state.Delivered[uid] = r.End.Unix()
		delete(f.tries, uid)
	}
	// Here a crash sends the batch once more, with the same uids.
	return waits, f.save(true)
}

// measure asks what the jobs did. again are those to ask for later.
func (f *Follower) measure(ctx context.Context, jobs []Job) (usages []Usage, again []bool) {
	usages, again = make([]Usage, len(jobs)), make([]bool, len(jobs))
	if f.Usage == nil {
		return usages, again
	}
	var ask []Job
	var at []int
	for i := range jobs {
		if f.measurable(&jobs[i]) {
			ask, at = append(ask, jobs[i]), append(at, i)
		}
	}
	if len(ask) == 0 {
		return usages, again
	}
	got, err := f.Usage.Usage(ctx, ask)
	for k, i := range at {
		if err == nil || k < len(got) && got[k].Status == UsageOK {
			usages[i] = got[k]
			continue
		}
		uid := jobs[i].UID()
		if f.tries[uid]++; f.tries[uid] < f.Tries && len(f.tries) < maxDelivered {
			again[i] = true
			continue
		}
		usages[i] = Usage{Status: UsageError}
	}
	if err != nil {
		f.Say("Usage of jobs cannot be had", err)
	}
	return usages, again
}

// advance moves the cursor to where nothing can come any more: not past the limit, and
// not past a row that waits.
func (f *Follower) advance(to, rest, limit time.Time) {
	f.state.forget(earlier(earlier(to, limit), rest))
}

// save writes the state, if it has changed in a way that matters.
func (f *Follower) save(changed bool) error {
	if over := f.state.bound(maxDelivered); over > 0 {
		f.Stats.Forgotten += int64(over)
	}
	// A cursor that is behind costs a second look at some rows, no more.
	if !changed && f.saved != 0 && f.state.Cursor-f.saved < int64(f.Overlap.Seconds()/4) {
		return nil
	}
	if err := f.Store.save(f.state); err != nil {
		return fmt.Errorf("cannot keep the cursor: %w", err)
	}
	f.saved = f.state.Cursor
	return nil
}

// earlier returns the earlier of two times; a zero one is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
