package hostreceiver

import (
	"cmp"
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/host"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/ticks"
	"github.com/gpumeter/gpumeter/receiver/hostreceiver/internal/metadata"
)

type hostReceiver struct {
	cfg  *Config
	set  receiver.Settings
	next consumer.Metrics
	mb   *metadata.MetricsBuilder
	host host.Reader

	// tick is the last tick of the gpu extension. It provides the name of the machine, so that the
	// metrics have the labels of its devices, and triggers readings; zero without an extension.
	tick   node.Tick
	kernel string // host name according to the kernel

	cancel func()
	done   sync.WaitGroup

	last    host.CPU // previous reading
	known   bool     // there is a previous reading
	trouble string   // last logged reason for missing metrics
	refused bool     // the pipeline refused the last batch
}

func newReceiver(cfg *Config, set receiver.Settings, next consumer.Metrics) *hostReceiver {
	return &hostReceiver{cfg: cfg, set: set, next: next, mb: metadata.NewMetricsBuilder(cfg.MetricsBuilderConfig, set), host: cfg.reader()}
}

// Start implements component.Component.
func (r *hostReceiver) Start(_ context.Context, h component.Host) error {
	view, err := ticks.Find(h)
	if err != nil {
		return err
	}
	if view != nil {
		subscription, cancel := view.Subscribe()
		r.cancel = cancel
		r.done.Go(func() { r.follow(subscription) })
		return nil
	}
	r.kernel, _ = os.Hostname() // without a name, host.name is absent
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	r.done.Go(func() { r.run(ctx) })
	return nil
}

// follow reads on the ticks of an extension, at most as often as configured.
func (r *hostReceiver) follow(list <-chan node.Tick) {
	var last time.Time
	for t := range list {
		// Half an interval early counts as on time: ticks have their own period.
		if !last.IsZero() && t.Time.Sub(last) < r.cfg.Interval/2 {
			continue
		}
		last, r.tick = t.Time, t
		r.round(context.Background(), t.Time)
	}
}

func (r *hostReceiver) run(ctx context.Context) {
	clock := time.NewTicker(r.cfg.Interval)
	defer clock.Stop()
	for now := time.Now(); ; {
		r.round(ctx, now)
		select {
		case <-ctx.Done():
			return
		case now = <-clock.C:
		}
	}
}

func (r *hostReceiver) round(ctx context.Context, now time.Time) {
	md, err := r.read(now)
	r.say(err)
	if md.DataPointCount() > 0 {
		r.deliver(r.next.ConsumeMetrics(ctx, md))
	}
}

// read returns the metrics at a moment. Values that cannot be read are absent, and the error says why.
// CPU utilization needs a previous reading: it is the average between the two.
func (r *hostReceiver) read(now time.Time) (pmetric.Metrics, error) {
	ts := pcommon.NewTimestampFromTime(now)
	cpu, cpuErr := r.host.CPU()
	if cpuErr == nil {
		if r.known {
			for _, s := range cpu.Utilization(r.last) {
				r.mb.RecordSystemCPUUtilizationDataPoint(ts, s.Ratio, s.Name)
			}
		}
		r.last = cpu
	}
	r.known = cpuErr == nil
	memory, memoryErr := r.host.Memory()
	if memoryErr == nil {
		for _, s := range memory.Utilization() {
			r.mb.RecordSystemMemoryUtilizationDataPoint(ts, s.Ratio, s.Name)
		}
	}
	return r.mb.Emit(metadata.WithResource(r.resource())), errors.Join(cpuErr, memoryErr)
}

// resource returns the resource of this machine. The configuration overrides the extension.
func (r *hostReceiver) resource() pcommon.Resource {
	t := r.tick
	t.Host = cmp.Or(r.cfg.HostName, r.tick.Host, r.kernel)
	res := ticks.Resource(metadata.NewResourceBuilder(r.cfg.ResourceAttributes), &t)
	for key, value := range r.cfg.Resource {
		res.Attributes().PutStr(key, value)
	}
	return res
}

// say logs why metrics are missing, once per reason.
func (r *hostReceiver) say(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text == r.trouble {
		return
	}
	if r.trouble = text; text == "" {
		r.set.Logger.Info("All host metrics are readable again")
		return
	}
	r.set.Logger.Warn("Cannot read some host metrics", zap.String("reason", text))
}

func (r *hostReceiver) deliver(err error) {
	if (err != nil) == r.refused {
		return
	}
	if r.refused = err != nil; r.refused {
		r.set.Logger.Error("The pipeline refuses metrics of this machine", zap.Error(err))
	} else {
		r.set.Logger.Info("The pipeline accepts metrics of this machine again")
	}
}

// Shutdown implements component.Component.
func (r *hostReceiver) Shutdown(context.Context) error {
	if r.cancel != nil {
		r.cancel()
	}
	r.done.Wait()
	return nil
}
