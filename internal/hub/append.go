package hub

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

// Labels of one series, sorted, __name__ among them.
type Labels = labels.Labels

// LabelBuilder makes Labels. It does not sort by itself.
type LabelBuilder = labels.ScratchBuilder

// MaxFuture is how far ahead of the hub's clock a sample may be. One from far ahead would
// make everybody else's too old.
const MaxFuture = 10 * time.Minute

// Appender takes the samples of one request. All of them are kept, or none: Commit says
// which. What can never be kept is refused by itself, with a reason, and counted.
// It is not safe for concurrent use.
type Appender struct {
	s       *Store
	ctx     context.Context //nolint:containedctx // of the one request that it is for
	pending []pending
	// points were begun, point is that of the samples to come.
	points, point int32

	// What follows is of Commit.
	app  storage.Appender
	refs storage.GetRef
	// No sample may be after latest or before oldest, no zero before zeros, in ms.
	latest, oldest, zeros int64
	starts                []start
	failed                error
	future                int   // samples that were refused because of it
	at, refused           int32 // the point of the sample at hand, and the last that was refused
	result                Result
}

// pending is a sample that waits for Commit.
type pending struct {
	labels    Labels
	start, at int64 // ms
	value     float64
	histogram *histogram.Histogram // or nil
	point     int32                // 0: it is one by itself, ours: it is none
	end       bool
}

// ours is the point of samples that nobody sent.
const ours = -1

type start struct {
	ref storage.SeriesRef
	ms  int64
}

// Result is what became of the samples of one request.
type Result struct {
	Accepted int
	Refused  int
	// Points are the data points that were refused, whole or in part: a histogram is one,
	// and many samples.
	Points int
	// Why is the first refusal in words, empty if there is none.
	Why string
}

// Appender returns one that nothing is kept of until Commit.
func (s *Store) Appender(ctx context.Context) *Appender {
	a := &Appender{s: s, ctx: ctx}
	if buf, ok := s.buffers.Get().(*[]pending); ok {
		a.pending = (*buf)[:0]
	}
	return a
}

// Point says that the samples to come are of one data point, the next, until it is called
// again. If it never is each of them is one.
func (a *Appender) Point() {
	a.points++
	a.point = a.points
}

// Derived says that the samples to come are of no data point, for they were not sent.
func (a *Appender) Derived() { a.point = ours }

// Gauge adds a value at t, in ms.
func (a *Appender) Gauge(l Labels, t int64, v float64) {
	a.pending = append(a.pending, pending{labels: l, at: t, value: v, point: a.point})
}

// Counter adds the value at t of something that was 0 at start, both in ms; 0: not known
// when. The zero becomes a sample of its own, so that what a series had counted before
// it was first seen is in its increase.
func (a *Appender) Counter(l Labels, start, t int64, v float64) {
	a.pending = append(a.pending, pending{labels: l, start: start, at: t, value: v, point: a.point})
}

// End says that a series has no value from t, in ms, on.
func (a *Appender) End(l Labels, t int64) {
	a.pending = append(a.pending, pending{labels: l, at: t, value: math.Float64frombits(value.StaleNaN), point: a.point, end: true})
}

// begin opens the transaction.
func (a *Appender) begin() {
	now := a.s.opt.Now()
	// What is too old depends on the samples and not on our clock, which may be wrong.
	window := a.s.opt.OutOfOrder.Milliseconds()
	newest := a.s.db.Head().MaxTime()
	a.latest, a.oldest, a.zeros = now.Add(MaxFuture).UnixMilli(), newest-window, newest-window
	if newest == math.MinInt64 {
		a.zeros = now.UnixMilli() - window
		a.oldest = min(a.zeros, now.Add(-a.s.opt.Retention).UnixMilli())
	}
	a.app = a.s.db.Appender(a.ctx)
	a.refs, _ = a.app.(storage.GetRef)
}

func (a *Appender) add(p *pending) {
	l, t := p.labels, p.at
	a.at = p.point
	if !a.timely(l, t) {
		return
	}
	ref, _ := a.refs.GetRef(l, l.Hash())
	if p.end && ref == 0 {
		a.result.Accepted++ // what never was has ended
		return
	}
	var err error
	switch started := p.start > 0 && p.start < t; {
	case p.histogram == nil && started:
		_, err = a.app.Append(a.zero(ref, l, p.start), l, t, p.value)
	case p.histogram == nil:
		_, err = a.app.Append(ref, l, t, p.value)
	default:
		if started && ref == 0 && p.start >= a.zeros {
			if r, err := a.app.AppendHistogramSTZeroSample(0, l, t, p.start, p.histogram, nil); err == nil {
				ref = r
			}
		}
		_, err = a.app.AppendHistogram(ref, l, t, p.histogram, nil)
	}
	a.judge(l, t, err)
}

// timely refuses a sample that is too new or too old.
func (a *Appender) timely(l Labels, t int64) bool {
	switch {
	case t > a.latest:
		a.future++
		a.refuse(Future, fmt.Sprintf("%s is of %s, more than %s ahead of the hub's clock, which says %s",
			l.Get(model.MetricNameLabel), stamp(t), MaxFuture, stamp(a.latest-MaxFuture.Milliseconds())))
	case t < a.oldest:
		a.judge(l, t, storage.ErrTooOldSample)
	default:
		return true
	}
	return false
}

func stamp(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }

// zero writes the zero of a counter, once for each start, and returns its series.
func (a *Appender) zero(ref storage.SeriesRef, l Labels, ms int64) storage.SeriesRef {
	known := ref != 0
	if known {
		a.s.startsMu.Lock()
		old, ok := a.s.starts[ref]
		a.s.startsMu.Unlock()
		// After a restart of the hub a series that was there has its zero, unless it
		// started since.
		if ok && old == ms || !ok && ms <= a.s.before {
			if !ok {
				a.starts = append(a.starts, start{ref, ms})
			}
			return ref
		}
	}
	if ms >= a.zeros {
		// Not AppendSTZeroSample, which cannot be out of order.
		if r, err := a.app.Append(ref, l, ms, 0); err == nil {
			ref = r
		}
	}
	if ref != 0 {
		a.starts = append(a.starts, start{ref, ms})
	}
	return ref
}

// judge counts what became of a sample.
func (a *Appender) judge(l Labels, t int64, err error) {
	var full errFull
	var shape histogram.Error
	switch {
	case err == nil:
		a.result.Accepted++
	case errors.Is(err, storage.ErrTooOldSample), errors.Is(err, storage.ErrOutOfBounds), errors.Is(err, storage.ErrOutOfOrderSample):
		a.refuse(TooOld, fmt.Sprintf("%s is of %s, which is more than %s behind the newest sample",
			l.Get(model.MetricNameLabel), stamp(t), a.s.opt.OutOfOrder))
	case errors.Is(err, storage.ErrDuplicateSampleForTimestamp):
		a.refuse(Duplicate, l.Get(model.MetricNameLabel)+" has another value at "+stamp(t))
	case errors.As(err, &full):
		a.refuse(SeriesLimit, full.Error())
	case errors.Is(err, tsdb.ErrInvalidSample), errors.As(err, &shape):
		a.refuse(Invalid, strconv.Quote(l.Get(model.MetricNameLabel))+" is not valid: "+err.Error())
	default:
		a.failed = err
	}
}

// refuse counts the sample at hand, and its point if no sample of that was refused before.
func (a *Appender) refuse(r Reason, why string) {
	before := a.result.Points
	a.Refuse(r, 1, why)
	if a.at == ours || a.at != 0 && a.at == a.refused {
		a.result.Points = before
	}
	a.refused = a.at
}

// Refuse counts n points that are not kept. why tells the sender, who may not learn of
// each of them.
func (a *Appender) Refuse(r Reason, n int, why string) {
	a.Note(r, n, why)
	a.result.Refused += n
	a.result.Points += n
	if a.result.Why == "" {
		a.result.Why = why
	}
}

// Note counts something that is not kept though its sample is, such as a label.
func (a *Appender) Note(r Reason, n int, why string) {
	if a.s.refused.Add(r, n) {
		a.s.opt.Log.Warn("Something is refused; gpumeter_hub_refused_total counts it from now on", "reason", reasonLabels[r], "first", why)
	}
}

// Commit keeps the samples. When it returns nil they are in the write-ahead log: they
// survive a kill of the process. If it fails none is kept, and they may be sent again.
//
// One request is written at a time. The database makes a series, writes it to its log,
// writes samples there and keeps them in steps of their own: of two requests that add to
// the same series at once, samples could be in the log before their series, or before an
// older one, and then be gone after a restart.
func (a *Appender) Commit() (Result, error) {
	a.s.commitMu.Lock()
	defer a.s.commitMu.Unlock()
	defer a.free()
	a.begin()
	for i := range a.pending {
		if a.add(&a.pending[i]); a.failed != nil {
			break
		}
	}
	// One clock is wrong, and ours may be it: the sender should try again later.
	if a.failed == nil && a.future > 0 && a.future == a.result.Refused && a.result.Accepted == 0 {
		a.failed = errors.New("the clock of the sender or of the hub is wrong: " + a.result.Why)
	}
	if a.failed != nil {
		return Result{}, errors.Join(a.failed, a.app.Rollback())
	}
	before := a.s.wbl.count()
	if err := a.app.Commit(); err != nil {
		return Result{}, fmt.Errorf("cannot write to the store: %w", err)
	}
	if a.s.wbl.count() != before { // the database only logs it
		return Result{}, errors.New("cannot write to the store's log of samples out of order")
	}
	if len(a.starts) > 0 {
		a.s.startsMu.Lock()
		for _, x := range a.starts {
			a.s.starts[x.ref] = x.ms
		}
		a.s.startsMu.Unlock()
	}
	return a.result, nil
}

// free gives the buffer to the next request.
func (a *Appender) free() {
	clear(a.pending)
	if buf := a.pending[:0]; cap(buf) <= 1<<16 {
		a.s.buffers.Put(&buf)
	}
	a.pending = nil
}
