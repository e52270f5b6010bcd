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

// metricsOfTicks is what a receiver of metrics emits.
const metricsOfTicks = "metrics"

// gpuReceiver emits the ticks into one pipeline. One in two pipelines is two of them.
type gpuReceiver struct {
	what string // it emits
	// emit returns how many points or records it passed on.
	emit func(context.Context, node.Tick) (items int, err error)
	log  *zap.Logger

	cancel func()
	done   sync.WaitGroup
	mute   map[string]int // by model, ticks in a row without a word on throttling
}

// Start implements component.Component.
func (r *gpuReceiver) Start(_ context.Context, host component.Host) error {
	view, err := ticks.Need(host, "gpu receiver")
	if err != nil {
		return err
	}
	subscription, cancel := view.Subscribe()
	r.cancel = cancel
	r.done.Go(func() { r.run(host, subscription) })
	return nil
}

// run emits each tick once until the subscription ends, the buffered ones included.
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

// muteTicks are enough to be sure that a device never says whether it is slowed down: some
// need two readings.
const muteTicks = 5

// sayMute says once for each model of devices that they do not tell why they are slowed
// down: their metrics of throttling are absent, which is not the same as 0.
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
			r.log.Info("Devices of this model do not say whether they are slowed down", zap.String("gpu.model", d.ID.Model))
		}
	}
}

// note is the ledger of what was accepted: each tick whose line is in the log must come
// out at the other end, whatever happens to this process.
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
