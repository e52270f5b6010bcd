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

// schedulerReceiver asks one controller, for a pipeline of metrics, of logs or both.
type schedulerReceiver struct {
	cfg     *Config
	set     receiver.Settings
	client  *slurmctl.Client
	emitter *emitter
	metrics consumer.Metrics // nil: none
	logs    consumer.Logs    // nil: none
	forget  func()

	start, stop sync.Once
	failed      error // of the start
	cancel      context.CancelFunc
	done        sync.WaitGroup
	accounting  func(context.Context) error // ends it; nil: there is none

	last    slurmctl.Snapshot // of the last round
	trouble string            // what was said last of why something is missing
	missing string            // what was said last of why records are
	cut     bool              // there were more records than are sent
	refused bool              // the pipeline did not take the last batch
}

func newReceiver(cfg *Config, set receiver.Settings) (*schedulerReceiver, error) {
	conf := cfg.Slurm.client()
	conf.Shares = wantsShares(cfg)
	client, err := slurmctl.New(conf)
	if err != nil {
		return nil, err
	}
	return &schedulerReceiver{cfg: cfg, set: set, client: client, emitter: newEmitter(cfg, set)}, nil
}

// Start implements component.Component. It is called once for each pipeline.
func (r *schedulerReceiver) Start(context.Context, component.Host) error {
	r.start.Do(func() {
		ctx, cancel := context.WithCancel(context.Background())
		r.cancel = cancel
		if slurm := &r.cfg.Slurm; slurm.Accounting.Enabled {
			if r.logs == nil {
				r.set.Logger.Warn("Accounting needs a pipeline of logs with the scheduler receiver in it, and is off")
			} else if r.accounting, r.failed = startAccounting(ctx, slurm, r.set, r.logs); r.failed != nil {
				cancel()
				return
			}
		}
		r.done.Go(func() { r.run(ctx) })
	})
	return r.failed
}

// run asks in rounds. A round that takes longer than the interval delays the next: there is
// never more than one question under way.
func (r *schedulerReceiver) run(ctx context.Context) {
	rounds := time.NewTicker(r.cfg.Slurm.Interval)
	defer rounds.Stop()
	// Records are asked for between two rounds, so that none asks for one thing twice.
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

// round asks the controller and passes on what it says.
func (r *schedulerReceiver) round(ctx context.Context) {
	s := r.client.Snapshot(ctx)
	if ctx.Err() != nil { // we end: what was cut off says nothing of the controller
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
	if !r.last.Up { // it has enough to do
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
			r.set.Logger.Warn("There are more records of Slurm than are sent", zap.Int("left_out", dropped))
		}
	}
	if len(list) > 0 {
		r.deliver("log records", r.logs.ConsumeLogs(ctx, r.emitter.logs(list, r.last.Cluster, time.Now())))
	}
}

// say logs why something is missing, once for each reason.
func (r *schedulerReceiver) say(err error) {
	text := errText(err)
	if text == r.trouble {
		return
	}
	if r.trouble = text; text == "" {
		r.set.Logger.Info("Slurm answers as it should again")
		return
	}
	r.set.Logger.Warn("Slurm did not answer as it should", zap.String("reason", text))
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

// Shutdown implements component.Component. It is called once for each pipeline; when it
// returns for the first nothing is under way any more.
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
