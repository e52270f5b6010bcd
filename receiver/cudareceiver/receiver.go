package cudareceiver

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/spans"
	"github.com/gpumeter/gpumeter/internal/ticks"
	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/journal"
	"github.com/gpumeter/gpumeter/internal/tracer/ledger"
	"github.com/gpumeter/gpumeter/internal/tracer/probe"
	"github.com/gpumeter/gpumeter/internal/tracer/watch"
)

// source is a live.Tracer, or a fake.
type source interface {
	Run(ctx context.Context) error
	Snapshot(now time.Time, gpus map[uint32][]string) tracer.Snapshot
}

// opener opens a source.
type opener func(cfg *Config) (source, error)

// cudaReceiver traces for a metrics pipeline, a logs pipeline or both.
type cudaReceiver struct {
	cfg     *Config
	set     receiver.Settings
	open    opener
	metrics consumer.Metrics // nil: none
	logs    consumer.Logs    // nil: none
	forget  func()
	clock   func() time.Time

	start, stop sync.Once
	failed      error // error of the start
	cancel      func()
	power       *Switch

	mu       sync.Mutex    // held by a reading, and by what begins and ends tracing
	source   source        // nil without a tracer
	halt     func()        // ends the source
	owners   ledger.Owners // nil: unknown
	ledger   *ledger.Ledger
	emitter  *emitter
	recorder *recorder
	watcher  *watch.Watcher
	trainer  *trainer
	outliers watch.Outliers
	last     time.Time       // time of the last reading
	refused  map[string]bool // signals that the pipelines refused last
	unkept   string          // last reported reason why anomalies are not kept
	unsaved  string          // last reported reason why readings are not kept
	skip     bool            // the next reading is where sums start
}

func newReceiver(cfg *Config, set receiver.Settings, open opener) *cudaReceiver {
	return &cudaReceiver{
		cfg: cfg, set: set, open: open, forget: func() {}, clock: time.Now, power: &Switch{},
		ledger: ledger.New(cfg.ledger()), emitter: newEmitter(cfg, set, time.Now()), recorder: newRecorder(cfg, set),
		watcher: watch.New(cfg.Proc), trainer: newTrainer(cfg.Proc), refused: map[string]bool{},
	}
}

// Start implements component.Component. It is called once per pipeline. If the tracer cannot be opened,
// the log says what is missing and the agent runs without it.
func (r *cudaReceiver) Start(_ context.Context, host component.Host) error {
	r.start.Do(func() {
		view, err := ticks.Need(host, "cuda receiver")
		if err != nil {
			r.failed = err
			return
		}
		if o, ok := view.(ledger.Owners); ok {
			r.owners = o
			r.forgetCounts()
		}
		if b, ok := view.(interface{ Spans() *spans.Board }); ok {
			r.emitter.calls.board, r.recorder.board = b.Spans(), b.Spans()
		}
		r.power.join(r)
		subscription, unsubscribe := view.Subscribe()
		var reading sync.WaitGroup
		reading.Go(func() {
			for t := range subscription {
				r.tick(t)
			}
		})
		r.cancel = func() { // make the last reading before the tracer stops
			unsubscribe()
			reading.Wait()
			r.power.leave(r)
			if r.end(true) {
				r.power.left(r)
			}
		}
	})
	return r.failed
}

// begin begins to trace, unless it has begun.
func (r *cudaReceiver) begin() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.trace()
}

// again begins anew.
func (r *cudaReceiver) again() {
	r.set.Logger.Warn("Tracing begins anew: this process was stopped for minutes")
	r.cease(false)
	_ = r.trace() // logged
}

func (r *cudaReceiver) trace() error {
	if r.source != nil {
		return nil
	}
	src, err := r.open(r.cfg)
	if err != nil {
		r.set.Logger.Warn("CUDA and NCCL are not traced", zap.String("reason", err.Error()))
		return err
	}
	r.source = src
	r.features()
	r.resume()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := src.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
			r.set.Logger.Warn("The tracer ended", zap.String("reason", err.Error()))
		}
	})
	writers := r.trainer.writers
	running.Go(func() { writers.Run(ctx) })
	r.halt = func() {
		cancel()
		running.Wait()
	}
	return nil
}

// end ends tracing, and reports whether it had begun. Either no probe is left when it returns, and the
// kernel's counts are gone with the probes, or they are left to the next agent.
func (r *cudaReceiver) end(leave bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cease(leave)
}

func (r *cudaReceiver) cease(leave bool) bool {
	if r.source == nil {
		return false
	}
	if h, ok := r.source.(heir); ok && leave {
		h.Leave()
	}
	r.halt()
	r.source, r.halt = nil, nil
	r.forgetCounts()
	r.emitter.began, r.emitter.blind = r.clock(), false
	return true
}

// forgetCounts drops what is known about processes.
func (r *cudaReceiver) forgetCounts() {
	r.ledger, r.watcher, r.outliers = ledger.New(r.cfg.ledger()), watch.New(r.cfg.Proc), watch.Outliers{}
	r.trainer = newTrainer(r.cfg.Proc)
	if r.owners != nil {
		r.ledger.Owners, r.watcher.Owner = r.owners, r.owners.Process
	}
}

// features logs once which features the kernel or our privileges lack, with the consequence.
func (r *cudaReceiver) features() {
	f, ok := r.source.(interface{ Features() []probe.Feature })
	if !ok {
		return
	}
	for _, x := range f.Features() {
		if !x.OK {
			r.set.Logger.Info("The tracer runs without "+x.Name, zap.String("reason", x.Reason))
		}
	}
}

// tick makes a reading, if one is due.
func (r *cudaReceiver) tick(t node.Tick) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watcher.See(&t)
	r.trainer.see(&t)
	now := r.clock()
	if !r.last.IsZero() && now.Sub(r.last) < r.cfg.Interval-r.cfg.Interval/20 {
		return
	}
	r.last = now
	t.Time = now
	if r.source == nil {
		if r.metrics != nil {
			r.deliver("metrics", r.metrics.ConsumeMetrics(context.Background(), r.emitter.emit(r.ledger, nil, &t)))
		}
		return
	}
	where := ledger.NewPlaces(&t)
	s := r.source.Snapshot(now, where.GPUs())
	r.health()
	if f, ok := r.source.(interface{ Err() error }); ok && errors.Is(f.Err(), tracer.ErrAsleep) {
		r.again() // the next reading is the first of a new tracer
		return
	}
	r.recall(&s)
	r.ledger.Observe(&s, where)
	r.trainer.read(&s, r.ledger)
	r.remember(&s)
	if w, ok := r.source.(watch.Thresholder); ok && r.logs != nil {
		r.outliers.Ask(&s, w)
	}
	found := r.ledger.Name(r.watcher.Judge(&s))
	r.keep(found)
	r.emitter.records, r.emitter.refused = r.recorder.dropped, r.watcher.Refused()
	if r.metrics != nil {
		r.deliver("metrics", r.metrics.ConsumeMetrics(context.Background(), r.emitter.emit(r.ledger, &s, &t)))
	}
	if r.logs != nil {
		if ld := r.recorder.emit(r.ledger, &s, found, &t); ld.LogRecordCount() > 0 {
			r.deliver("log records", r.logs.ConsumeLogs(context.Background(), ld))
		}
	}
}

// health logs each change of whether the kernel's counters are readable.
func (r *cudaReceiver) health() {
	f, ok := r.source.(interface{ Err() error })
	if !ok {
		return
	}
	err := f.Err()
	if (err != nil) == r.emitter.blind {
		return
	}
	if r.emitter.blind = err != nil; err != nil {
		r.set.Logger.Warn("Cannot read the traced counters: their values are frozen", zap.String("reason", err.Error()))
	} else {
		r.set.Logger.Info("The traced counters are readable again")
	}
}

// keep writes anomalies to the file. It logs each reason for a failure once.
func (r *cudaReceiver) keep(found []journal.Line) {
	if len(found) == 0 {
		return
	}
	why := ""
	if err := journal.Append(r.cfg.AnomalyFile, found); err != nil {
		why = err.Error()
	}
	if why != r.unkept && why != "" {
		r.set.Logger.Warn("Anomalies are not kept for gpumeter explain", zap.String("reason", why))
	}
	r.unkept = why
}

func (r *cudaReceiver) deliver(what string, err error) {
	if (err != nil) == r.refused[what] {
		return
	}
	if r.refused[what] = err != nil; err != nil {
		r.set.Logger.Error("The pipeline refuses "+what+" of the tracer", zap.Error(err))
	} else {
		r.set.Logger.Info("The pipeline accepts " + what + " of the tracer again")
	}
}

// Shutdown implements component.Component. It is called once per pipeline; the first call stops
// everything.
func (r *cudaReceiver) Shutdown(context.Context) error {
	r.stop.Do(func() {
		r.forget()
		if r.cancel != nil {
			r.cancel()
		}
	})
	return nil
}
