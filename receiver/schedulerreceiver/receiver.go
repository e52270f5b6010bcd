package schedulerreceiver

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/scheduler/slurmctl"
)

// schedulerReceiver queries one controller for a metrics pipeline, a logs pipeline or both.
type schedulerReceiver struct {
	cfg     *Config
	set     receiver.Settings
	client  *slurmctl.Client
	emitter *emitter
	metrics consumer.Metrics // nil: none
	logs    consumer.Logs    // nil: none
	forget  func()

	start, stop sync.Once
	failed      error // error of the start
	cancel      context.CancelFunc
	done        sync.WaitGroup
	accounting  func(context.Context) error // stops accounting; nil without it

	last    slurmctl.Snapshot // result of the last round
	trouble string            // last logged reason for missing metrics
	missing string            // last logged reason for missing records
	cut     bool              // records were dropped
	refused bool              // the pipeline refused the last batch
}

func newReceiver(cfg *Config, set receiver.Settings, forget func()) (*schedulerReceiver, error) {
	conf := cfg.Slurm.client()
	conf.Shares = wantsShares(cfg)
	client, err := slurmctl.New(conf)
	if err != nil {
		return nil, err
	}
	return &schedulerReceiver{cfg: cfg, set: set, client: client, emitter: newEmitter(cfg, set), forget: forget}, nil
}

// to implements reporter.
func (r *schedulerReceiver) to(metrics consumer.Metrics, logs consumer.Logs) {
	if metrics != nil {
		r.metrics = metrics
	}
	if logs != nil {
		r.logs = logs
	}
}

// Start implements component.Component. It is called once per pipeline.
func (r *schedulerReceiver) Start(context.Context, component.Host) error {
	r.start.Do(func() {
		ctx, cancel := context.WithCancel(context.Background())
		r.cancel = cancel
		if slurm := &r.cfg.Slurm; slurm.Accounting.Enabled {
			if r.logs == nil {
				r.set.Logger.Warn("Accounting is off: it needs a logs pipeline with the scheduler receiver")
			} else if r.accounting, r.failed = startAccounting(ctx, slurm, r.set, r.logs); r.failed != nil {
				cancel()
				return
			}
		}
		r.done.Go(func() { r.run(ctx) })
	})
	return r.failed
}

// run queries in rounds. A round that takes longer than the interval delays the next: there is never more
// than one request in flight.
func (r *schedulerReceiver) run(ctx context.Context) {
	rounds := time.NewTicker(r.cfg.Slurm.Interval)
	defer rounds.Stop()
	// Records are read between two rounds, so that no round requests the same thing twice.
	records := time.NewTimer(r.cfg.Slurm.Interval / 2)
	defer records.Stop()
	if r.logs == nil || len(r.cfg.Slurm.Records) == 0 {
		records.Stop()
	}
	r.round(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-rounds.C:
			r.round(ctx)
		case <-records.C:
			r.record(ctx)
			records.Reset(r.cfg.Slurm.RecordsInterval)
		}
	}
}

// round queries the controller and passes the result on.
func (r *schedulerReceiver) round(ctx context.Context) {
	s := r.client.Snapshot(ctx)
	if ctx.Err() != nil { // shutting down: an aborted request says nothing about the controller
		return
	}
	r.last = s
	r.say(s.Err)
	if r.metrics == nil {
		return
	}
	r.deliver("metrics", r.metrics.ConsumeMetrics(ctx, r.emitter.emit(s)))
}

func (r *schedulerReceiver) record(ctx context.Context) {
	if !r.last.Up { // do not add load to a struggling controller
		return
	}
	list, dropped, err := r.client.Records(ctx, r.cfg.Slurm.Records, r.last)
	if ctx.Err() != nil {
		return
	}
	if text := errText(err); text != r.missing {
		if r.missing = text; text != "" {
			r.set.Logger.Warn("Some records of Slurm are missing", zap.Error(err))
		}
	}
	if cut := dropped > 0; cut != r.cut {
		if r.cut = cut; cut {
			r.set.Logger.Warn("Dropped records of Slurm beyond the limit", zap.Int("left_out", dropped))
		}
	}
	if len(list) > 0 {
		r.deliver("log records", r.logs.ConsumeLogs(ctx, r.emitter.logs(list, r.last.Cluster, time.Now())))
	}
}

// say logs why metrics are missing, once per reason.
func (r *schedulerReceiver) say(err error) {
	text := errText(err)
	if text == r.trouble {
		return
	}
	if r.trouble = text; text == "" {
		r.set.Logger.Info("Requests to Slurm succeed again")
		return
	}
	r.set.Logger.Warn("Some requests to Slurm failed", zap.String("reason", text))
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (r *schedulerReceiver) deliver(what string, err error) {
	if (err != nil) == r.refused {
		return
	}
	if r.refused = err != nil; r.refused {
		r.set.Logger.Error("The pipeline refuses "+what+" of Slurm", zap.Error(err))
	} else {
		r.set.Logger.Info("The pipeline accepts " + what + " of Slurm again")
	}
}

// Shutdown implements component.Component. It is called once per pipeline; the first call stops
// everything.
func (r *schedulerReceiver) Shutdown(ctx context.Context) error {
	var err error
	r.stop.Do(func() {
		r.forget()
		if r.cancel == nil {
			return
		}
		r.cancel()
		r.done.Wait()
		if r.accounting != nil {
			err = r.accounting(ctx)
		}
	})
	return errors.Join(err)
}
