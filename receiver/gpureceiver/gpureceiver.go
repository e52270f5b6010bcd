package gpureceiver

import (
	"context"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/ticks"
)

// metricsOfTicks names the signal of a metrics receiver.
const metricsOfTicks = "metrics"

// gpuReceiver emits ticks to one pipeline. A receiver in two pipelines is two instances.
type gpuReceiver struct {
	what string // the emitted signal
	// emit returns the number of points or records passed on.
	emit func(context.Context, node.Tick) (items int, err error)
	// begin, if set, is called at the start.
	begin func(ticks.Source)
	log   *zap.Logger

	cancel func()
	done   sync.WaitGroup
	mute   map[string]int // consecutive ticks without throttling data, by model
}

// Start implements component.Component.
func (r *gpuReceiver) Start(_ context.Context, host component.Host) error {
	view, err := ticks.Need(host, "gpu receiver")
	if err != nil {
		return err
	}
	if r.begin != nil {
		r.begin(view)
	}
	subscription, cancel := view.Subscribe()
	r.cancel = cancel
	r.done.Go(func() { r.run(host, subscription) })
	return nil
}

// run emits each tick once, including buffered ones, until the subscription ends.
func (r *gpuReceiver) run(host component.Host, list <-chan node.Tick) {
	refused := false
	for t := range list {
		// A tick is worth delivering even while the Collector shuts down.
		items, err := r.emit(context.Background(), t)
		if (err != nil) != refused {
			refused = err != nil
			if refused {
				r.log.Error("The pipeline refuses "+r.what, zap.Error(err))
				componentstatus.ReportStatus(host, componentstatus.NewRecoverableErrorEvent(err))
			} else {
				r.log.Info("The pipeline accepts " + r.what + " again")
				componentstatus.ReportStatus(host, componentstatus.NewEvent(componentstatus.StatusOK))
			}
		}
		if err == nil {
			r.note(t, items)
		}
		if r.what == metricsOfTicks {
			r.sayMute(t)
		}
	}
}

// muteTicks is how many ticks prove that a device never reports throttling: some devices need two
// readings.
const muteTicks = 5

// sayMute logs once per model that its devices do not report throttling: their throttling metrics are
// absent, which is not the same as 0.
func (r *gpuReceiver) sayMute(t node.Tick) {
	if r.mute == nil {
		r.mute = map[string]int{}
	}
	said := map[string]bool{}
	for i := range t.Readings {
		d := &t.Readings[i]
		if !d.Up || d.ID.Parent != "" || d.Throttles != nil || said[d.ID.Model] || r.mute[d.ID.Model] > muteTicks {
			continue
		}
		said[d.ID.Model] = true
		if r.mute[d.ID.Model]++; r.mute[d.ID.Model] == muteTicks {
			r.mute[d.ID.Model]++
			r.log.Info("Devices of this model do not report throttling", zap.String("gpu.model", d.ID.Model))
		}
	}
}

// note logs each accepted tick: every logged tick must arrive at the other end, whatever happens to this
// process.
func (r *gpuReceiver) note(t node.Tick, items int) {
	if line := r.log.Check(zap.DebugLevel, "accepted a tick"); line != nil {
		line.Write(zap.Int64("time_unix_nano", t.Time.UnixNano()), zap.Int("items", items))
	}
}

// Shutdown implements component.Component.
func (r *gpuReceiver) Shutdown(context.Context) error {
	if r.cancel != nil {
		r.cancel()
	}
	r.done.Wait()
	return nil
}
