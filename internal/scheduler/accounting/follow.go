package accounting

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// Record is an accounting row with the usage of its job.
type Record struct {
	Job
	Usage Usage
}

// ErrRefused means that records will never be accepted: they are counted and dropped.
var ErrRefused = errors.New("the records were rejected")

// Config configures a Follower.
type Config struct {
	// Since is how far back to start if there is no cursor yet.
	Since time.Duration
	// Overlap is how long after the end of its job a row may appear.
	Overlap time.Duration
	// Step is the longest period of one query.
	Step time.Duration
	// Pause is the delay between two steps, to spare the database.
	Pause time.Duration
	// Timeout is the deadline of one request to Slurm.
	Timeout time.Duration
	// Hold is how late rows may appear while the controller has a backlog.
	Hold time.Duration
	// Settle is how long after the end of a job its usage is complete. It does not apply
	// without a usage source.
	Settle time.Duration
	// Tries is how often usage is queried before a record is sent without it.
	Tries int
	// Batch is the most records delivered at once.
	Batch int
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		Overlap: time.Hour, Step: time.Hour, Pause: time.Second, Timeout: time.Minute, Hold: 24 * time.Hour,
		Settle: 2 * time.Minute, Tries: 3, Batch: 500,
	}
}

// Stats are counts since the start.
type Stats struct {
	Delivered, Refused int64
	Unreadable         int64 // responses with skipped rows
	NoUsage            int64 // records without usage, although it was queried
	Forgotten          int64 // rows evicted from the state
	Backlog            int   // of the controller, as last reported
}

// usage returns what jobs used. Meter implements it.
type usage interface {
	Usage(ctx context.Context, jobs []Job) ([]Usage, error)
}

// Follower delivers each row of a source once. It is not safe for concurrent use.
type Follower struct {
	Config
	Source  Source
	Store   Store
	Usage   usage // nil: no usage is queried
	Now     func() time.Time
	Deliver func(ctx context.Context, list []Record) error
	// Say reports problems that an operator should know about but that lose no data: damaged
	// state, unreadable rows.
	Say func(what string, err error)

	Stats Stats

	state *state
	saved int64          // cursor in the file
	tries map[string]int // usage queries, by UID
	whole time.Time      // when the whole range since the cursor was last read
}

// Round reads and delivers new rows once. After an error the next round retries; nothing is
// lost.
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
	// While the controller has a backlog, late rows are read only once in a while, new rows
	// every round.
	whole := slack == f.Overlap || now.Sub(f.whole) >= f.Step || !from.Before(recent)
	if !whole {
		from = recent
	}
	var waits time.Time // the earliest end among deferred rows
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

// begin loads the state, or creates one.
func (f *Follower) begin(now time.Time) {
	st, err := f.Store.load()
	if st == nil {
		st = &state{Version: stateVersion, Cursor: now.Add(-f.Since).Unix(), Delivered: map[string]int64{}}
	}
	if err != nil {
		st.Cursor = now.Add(-max(f.Since, f.Overlap)).Unix()
		f.Say("Cannot read the cursor: recent records are sent again with the same uid", err)
	}
	if limit := now.Unix(); st.Cursor > limit { // the clock was ahead
		st.Cursor = limit
	}
	f.state, f.tries = st, map[string]int{}
	if err := f.save(true); err != nil { // so that the next process finds a cursor even if this one ends before the first response
		f.Say("Cannot save the cursor", err)
	}
}

// step delivers the rows that ended in a range. rest is the earliest end among deferred rows,
// zero if there are none.
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
		f.Say("Cannot read some accounting rows", err)
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

// measurable reports whether a job can have usage.
func (*Follower) measurable(j *Job) bool {
	return !j.Start.IsZero() && (j.GPUs > 0 || j.Shards > 0)
}

// deliver sends a batch with its usage and remembers it. waits is the earliest end among the rows
// to retry.
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
		f.Say("Job records are rejected permanently and dropped", err)
	case err != nil:
		return time.Time{}, fmt.Errorf("cannot deliver records: %w", err)
	default:
		f.Stats.Delivered += int64(len(list))
	}
	for _, r := range list {
		uid := r.UID()
		f.state.Delivered[uid] = r.End.Unix()
		delete(f.tries, uid)
	}
	// A crash before this point sends the batch again, with the same UIDs.
	return waits, f.save(true)
}

// measure queries the usage of jobs. again marks the jobs to query later.
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
		f.Say("Cannot get the usage of jobs", err)
	}
	return usages, again
}

// advance moves the cursor to the time before which no row can appear: not past the limit, and
// not past a deferred row.
func (f *Follower) advance(to, rest, limit time.Time) {
	f.state.forget(earlier(earlier(to, limit), rest))
}

// save writes the state if it has changed materially.
func (f *Follower) save(changed bool) error {
	if over := f.state.bound(maxDelivered); over > 0 {
		f.Stats.Forgotten += int64(over)
	}
	// A cursor that lags only costs a second look at some rows.
	if !changed && f.saved != 0 && f.state.Cursor-f.saved < int64(f.Overlap.Seconds()/4) {
		return nil
	}
	if err := f.Store.save(f.state); err != nil {
		return fmt.Errorf("cannot save the cursor: %w", err)
	}
	f.saved = f.state.Cursor
	return nil
}

// earlier returns the earlier of two times; a zero time means none.
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
