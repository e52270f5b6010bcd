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

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/hub/access"
	"github.com/gpumeter/gpumeter/internal/hub/share"
)

// Labels is the sorted label set of one series, including __name__.
type Labels = labels.Labels

// LabelBuilder builds Labels. It does not sort.
type LabelBuilder = labels.ScratchBuilder

// MaxFuture is how far ahead of the hub's clock a sample may be. A sample from the far
// future would make all other samples too old.
const MaxFuture = 10 * time.Minute

// Appender collects the samples of one request. Commit stores all of them or none. Samples
// that can never be stored are rejected one by one, with a reason, and counted.
// An Appender is not safe for concurrent use.
type Appender struct {
	s       *Store
	ctx     context.Context //nolint:containedctx // lives as long as one request
	pending []pending
	own     bool            // see OwnAppender
	bound   access.Bindings // of the sender
	// points is the number of data points so far; point is the current one.
	points, point int32

	// The fields below are used by Commit.
	watermark int64 // ms: samples up to here belong to hours that are kept
	app       storage.Appender
	refs      storage.GetRef
	// No sample may be after latest or before oldest, no zero before zeros, in ms.
	latest, oldest, zeros int64
	starts                []start
	failed                error
	future                int   // samples rejected as too far in the future
	at, refused           int32 // the current sample's point, and the last rejected point
	result                Result
}

// pending is a sample that waits for Commit.
type pending struct {
	labels    Labels
	start, at int64 // ms
	value     float64
	histogram *histogram.Histogram // nil for plain values
	point     int32                // 0: the sample is its own point; ours: no point
	end       bool
}

// ours marks samples that were derived and not sent.
const ours = -1

type start struct {
	ref storage.SeriesRef
	ms  int64
}

// Result is the outcome of one request.
type Result struct {
	Accepted int
	Refused  int
	// Points counts the data points rejected in whole or in part. A histogram is one data
	// point but many samples.
	Points int
	// Why describes the first rejection; it is empty if there was none.
	Why string
}

// Appender returns an Appender. Nothing is stored before Commit.
func (s *Store) Appender(ctx context.Context) *Appender {
	a := &Appender{s: s, ctx: ctx, bound: access.BindingsOf(ctx)}
	if buf, ok := s.buffers.Get().(*[]pending); ok {
		a.pending = (*buf)[:0]
	}
	return a
}

// OwnAppender returns an Appender for samples that the hub makes itself. None is stored later
// than the newest sample of an agent: a later sample gets that time. The age of samples
// counts from the newest one, so a hub whose clock is ahead would otherwise make the
// samples of all agents too old. As long as no agent sends, further samples are ignored. They
// count for no node, so that a node at its limit can be reported.
func (s *Store) OwnAppender(ctx context.Context) *Appender {
	a := s.Appender(ctx)
	a.own = true
	return a
}

// Point starts the next data point, to which the following samples belong. Without Point,
// each sample is its own data point.
func (a *Appender) Point() {
	a.points++
	a.point = a.points
}

// Derived marks the following samples as derived: they belong to no data point.
func (a *Appender) Derived() { a.point = ours }

// Gauge adds a value at t, in ms.
func (a *Appender) Gauge(l Labels, t int64, v float64) {
	a.pending = append(a.pending, pending{labels: l, at: t, value: v, point: a.point})
}

// Counter adds the value at t of a counter that was 0 at start, both in ms; 0 if unknown.
// The zero is stored as its own sample, so that increase() includes what was counted before
// the series was first seen.
func (a *Appender) Counter(l Labels, start, t int64, v float64) {
	a.pending = append(a.pending, pending{labels: l, start: start, at: t, value: v, point: a.point})
}

// End marks a series as stale from t, in ms, on.
func (a *Appender) End(l Labels, t int64) {
	a.pending = append(a.pending, pending{labels: l, at: t, value: math.Float64frombits(value.StaleNaN), point: a.point, end: true})
}

// begin opens the transaction.
func (a *Appender) begin() {
	now := a.s.opt.Now()
	// The age limit depends on the samples and not on the local clock, which may be wrong.
	window := a.s.opt.OutOfOrder.Milliseconds()
	newest := a.s.db.Head().MaxTime()
	a.latest, a.oldest, a.zeros = now.Add(MaxFuture).UnixMilli(), newest-window, newest-window
	if a.own {
		a.latest = newest
	}
	if newest == math.MinInt64 {
		a.zeros = now.UnixMilli() - window
		a.oldest = min(a.zeros, now.Add(-a.s.opt.Retention).UnixMilli())
	}
	a.watermark = a.s.days.Watermark()
	a.app = a.s.db.Appender(a.ctx)
	a.refs, _ = a.app.(storage.GetRef)
}

func (a *Appender) add(p *pending) {
	l, t := p.labels, p.at
	a.at = p.point
	if a.own {
		if a.latest == math.MinInt64 {
			return // no agent has sent a sample
		}
		t = min(t, a.latest)
	}
	if !a.mayWrite(l) || !a.timely(l, t) {
		return
	}
	if t <= a.watermark && !p.end {
		if a.failed = a.s.tellLate(l, t); a.failed != nil {
			return
		}
	}
	ref, _ := a.refs.GetRef(l, l.Hash())
	if p.end && ref == 0 {
		a.result.Accepted++ // the end of an unknown series is not an error
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

// mayWrite rejects a sample of another node than the sender's token is bound to.
func (a *Appender) mayWrite(l Labels) bool {
	if a.bound == nil {
		return true
	}
	m := access.Machine{Host: l.Get(fleet.LabelHost), Node: l.Get(fleet.LabelNode), Cluster: l.Get(fleet.LabelCluster)}
	if a.bound.Permit(m) {
		return true
	}
	a.refuse(Foreign, fmt.Sprintf("%s is of another machine than the token, which is for %s: %s", l.Get(model.MetricNameLabel), a.bound, m))
	return false
}

// timely rejects a sample that is too new or too old.
func (a *Appender) timely(l Labels, t int64) bool {
	switch {
	case t > a.latest:
		a.future++
		a.refuse(Future, fmt.Sprintf("%s has a timestamp of %s, more than %s ahead of the hub's clock, %s",
			l.Get(model.MetricNameLabel), stamp(t), MaxFuture, stamp(a.latest-MaxFuture.Milliseconds())))
	case t < a.oldest:
		a.judge(l, t, storage.ErrTooOldSample)
	default:
		return true
	}
	return false
}

func stamp(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }

// zero stores the zero of a counter, once per start time, and returns its series.
func (a *Appender) zero(ref storage.SeriesRef, l Labels, ms int64) storage.SeriesRef {
	known := ref != 0
	if known {
		a.s.startsMu.Lock()
		old, ok := a.s.starts[ref]
		a.s.startsMu.Unlock()
		// After a restart of the hub, a known series already has its zero unless the counter
		// started since.
		if ok && old == ms || !ok && ms <= a.s.before {
			if !ok {
				a.starts = append(a.starts, start{ref, ms})
			}
			return ref
		}
	}
	if ms >= a.zeros {
		if ms <= a.watermark {
			if a.failed = a.s.tellLate(l, ms); a.failed != nil {
				return ref
			}
		}
		// AppendSTZeroSample does not support out-of-order samples.
		if r, err := a.app.Append(ref, l, ms, 0); err == nil {
			ref = r
		}
	}
	if ref != 0 {
		a.starts = append(a.starts, start{ref, ms})
	}
	return ref
}

// judge counts the outcome of a sample.
func (a *Appender) judge(l Labels, t int64, err error) {
	var full errFull
	var nodeFull errNodeFull
	var shape histogram.Error
	switch {
	case err == nil:
		a.result.Accepted++
	case errors.Is(err, storage.ErrTooOldSample), errors.Is(err, storage.ErrOutOfBounds), errors.Is(err, storage.ErrOutOfOrderSample):
		a.refuse(TooOld, fmt.Sprintf("%s has a timestamp of %s, more than %s behind the newest sample",
			l.Get(model.MetricNameLabel), stamp(t), a.s.opt.OutOfOrder))
	case a.own && errors.Is(err, storage.ErrDuplicateSampleForTimestamp):
		// No agent has sent a sample since the last one.
	case errors.Is(err, storage.ErrDuplicateSampleForTimestamp):
		a.refuse(Duplicate, l.Get(model.MetricNameLabel)+" has another value at "+stamp(t))
	case errors.As(err, &full):
		a.refuse(SeriesLimit, full.Error())
	case errors.As(err, &nodeFull):
		a.refuse(NodeSeriesLimit, nodeFull.Error())
		a.s.nodes.Refused(nodeFull.node, share.Series, 1, a.s.opt.Now())
	case errors.Is(err, tsdb.ErrInvalidSample), errors.As(err, &shape):
		a.refuse(Invalid, strconv.Quote(l.Get(model.MetricNameLabel))+" is not valid: "+err.Error())
	default:
		a.failed = err
	}
}

// refuse counts the current sample, and its point unless the point was already counted.
func (a *Appender) refuse(r Reason, why string) {
	before := a.result.Points
	a.Refuse(r, 1, why)
	if a.at == ours || a.at != 0 && a.at == a.refused {
		a.result.Points = before
	}
	a.refused = a.at
}

// Refuse counts n rejected points. why is for the sender, who may see only one reason.
func (a *Appender) Refuse(r Reason, n int, why string) {
	a.Note(r, n, why)
	a.result.Refused += n
	a.result.Points += n
	if a.result.Why == "" {
		a.result.Why = why
	}
}

// Note counts something that is dropped while its sample is kept, such as a label.
func (a *Appender) Note(r Reason, n int, why string) {
	if a.s.refused.Add(r, n) {
		a.s.opt.Log.Warn("Data was refused; gpumeter_hub_refused_total counts further cases", "reason", reasonLabels[r], "first", why)
	}
}

// Commit stores the samples. When it returns nil they are in the write-ahead log and survive
// a kill of the process. If Commit fails, nothing is stored and the request may be retried.
//
// Requests are written one at a time. The database creates a series, logs it, logs its
// samples and stores them in separate steps: if two requests added to the same series
// concurrently, samples could precede their series or an older sample in the log and would
// be lost after a restart.
func (a *Appender) Commit() (Result, error) {
	a.s.commitMu.Lock()
	defer a.s.commitMu.Unlock()
	defer a.free()
	a.s.own = a.own
	if err := a.s.room(); err != nil {
		return Result{}, fmt.Errorf("cannot write to the store: %w", err)
	}
	a.begin()
	for i := range a.pending {
		if a.add(&a.pending[i]); a.failed != nil {
			break
		}
	}
	// Either clock may be wrong, including ours: the sender should retry later.
	if a.failed == nil && a.future > 0 && a.future == a.result.Refused && a.result.Accepted == 0 {
		a.failed = errors.New("the sender's or the hub's clock is wrong: " + a.result.Why)
	}
	if a.failed != nil {
		return Result{}, errors.Join(a.failed, a.app.Rollback())
	}
	before := a.s.wbl.count()
	if err := a.app.Commit(); err != nil {
		return Result{}, fmt.Errorf("cannot write to the store: %w", err)
	}
	if a.s.wbl.count() != before { // the database reports the failure only in its log
		return Result{}, errors.New("cannot write to the out-of-order log of the store")
	}
	a.s.wrote(a.result.Accepted)
	if len(a.starts) > 0 {
		a.s.startsMu.Lock()
		for _, x := range a.starts {
			a.s.starts[x.ref] = x.ms
		}
		a.s.startsMu.Unlock()
	}
	return a.result, nil
}

// free returns the buffer to the pool.
func (a *Appender) free() {
	clear(a.pending)
	if buf := a.pending[:0]; cap(buf) <= 1<<16 {
		a.s.buffers.Put(&buf)
	}
	a.pending = nil
}
