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
	"github.com/gpumeter/gpumeter/internal/ticks"
	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/journal"
	"github.com/gpumeter/gpumeter/internal/tracer/ledger"
	"github.com/gpumeter/gpumeter/internal/tracer/probe"
	"github.com/gpumeter/gpumeter/internal/tracer/watch"
)

// source is what traces: live.Tracer, or a test.
type source interface {
	Run(ctx context.Context) error
	Snapshot(now time.Time, gpus map[uint32][]string) tracer.Snapshot
}

// opener opens a source.
type opener func(cfg *Config) (source, error)

// cudaReceiver traces, for a pipeline of metrics, of logs or both.
type cudaReceiver struct {
	cfg     *Config
	set     receiver.Settings
	open    opener
	metrics consumer.Metrics // nil: none
	logs    consumer.Logs    // nil: none
	forget  func()
	clock   func() time.Time

	start, stop sync.Once
	failed      error // of the start
	cancel      func()
	done        sync.WaitGroup

	source   source // nil: there is no tracer
	ledger   *ledger.Ledger
	emitter  *emitter
	recorder *recorder
	watcher  *watch.Watcher
	outliers watch.Outliers
	last     time.Time       // of the last reading
	refused  map[string]bool // what the pipelines did not take last
	unkept   string          // why anomalies are not kept, as said last
}

func newReceiver(cfg *Config, set receiver.Settings, open opener) *cudaReceiver {
	return &cudaReceiver{
		cfg: cfg, set: set, open: open, forget: func() {}, clock: time.Now,
		ledger: ledger.New(cfg.ledger()), emitter: newEmitter(cfg, set, time.Now()), recorder: newRecorder(cfg, set),
		watcher: watch.New(cfg.Proc), refused: map[string]bool{},
	}
}

// Start implements component.Component. It is called once for each pipeline. A tracer that
// cannot be opened is said, with what is missing: the agent runs without.
func (r *cudaReceiver) Start(_ context.Context, host component.Host) error {
	r.start.Do(func() {
		view, err := ticks.Need(host, "cuda receiver")
		if err != nil {
			r.failed = err
			return
		}
		if o, ok := view.(ledger.Owners); ok {
			r.ledger.Owners, r.watcher.Owner = o, o.Process
		}
		ctx, cancel := context.WithCancel(context.Background())
		if r.source, err = r.open(r.cfg); err != nil {
			r.source = nil
			r.set.Logger.Warn("CUDA and NCCL are not traced", zap.String("reason", err.Error()))
		} else {
			r.features()
			r.done.Go(func() {
				if err := r.source.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
					r.set.Logger.Warn("The tracer ended", zap.String("reason", err.Error()))
				}
			})
		}
		subscription, unsubscribe := view.Subscribe()
		var reading sync.WaitGroup
		reading.Go(func() {
			for t := range subscription {
				r.tick(t)
			}
		})
		r.cancel = func() { // the last reading is made before the tracer goes
			unsubscribe()
			reading.Wait()
			cancel()
		}
	})
	return r.failed
}

// features says once what the kernel or our rights lack, and what that costs.
func (r *cudaReceiver) features() {
	f, ok := r.source.(interface{ Features() []probe.Feature })
	if !ok {
		return
	}
	for _, x := range f.Features() {
		if !x.OK {
			r.set.Logger.Info("The tracer does without "+x.Name, zap.String("reason", x.Reason))
		}
	}
}

// tick makes a reading, if it is time for one.
func (r *cudaReceiver) tick(t node.Tick) {
	r.watcher.See(&t)
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
	r.ledger.Observe(&s, where)
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

// health says, once on each change, whether what the kernel has counted can be read.
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
		r.set.Logger.Warn("What was traced cannot be read: the numbers stand still", zap.String("reason", err.Error()))
	} else {
		r.set.Logger.Info("What was traced can be read again")
	}
}

// keep writes anomalies to the file. Why it cannot is said once for each reason.
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

// Shutdown implements component.Component. It is called once for each pipeline; when it
// returns for the first nothing is under way any more.
func (r *cudaReceiver) Shutdown(context.Context) error {
	r.stop.Do(func() {
		r.forget()
		if r.cancel != nil {
			r.cancel()
			r.done.Wait()
		}
	})
	return nil
}
