package selfreceiver

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/ticks"
)

// Config is the configuration under receivers::self.
type Config struct {
	// Interval is the minimum time between two batches. Batches coincide with ticks.
	Interval time.Duration `mapstructure:"interval"`
}

// Validate implements component.ConfigValidator.
func (c *Config) Validate() error {
	if c.Interval <= 0 {
		return fmt.Errorf("interval must be above 0, is %s", c.Interval)
	}
	return nil
}

// NewFactory returns the factory of the receiver for the metrics of meter.
func NewFactory(meter *Meter) receiver.Factory {
	return receiver.NewFactory(component.MustNewType("self"),
		func() component.Config { return &Config{Interval: 10 * time.Second} },
		receiver.WithMetrics(func(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Metrics) (receiver.Metrics, error) {
			return &selfReceiver{meter: meter, version: set.BuildInfo.Version, interval: cfg.(*Config).Interval, next: next, log: set.Logger}, nil
		}, component.StabilityLevelDevelopment))
}

type selfReceiver struct {
	meter    *Meter
	version  string // of gpumeter
	interval time.Duration
	next     consumer.Metrics
	log      *zap.Logger

	cancel func()
	done   sync.WaitGroup
}

// Start implements component.Component.
func (r *selfReceiver) Start(_ context.Context, host component.Host) error {
	view, err := ticks.Need(host, "self receiver")
	if err != nil {
		return err
	}
	subscription, cancel := view.Subscribe()
	r.cancel = cancel
	r.done.Go(func() { r.run(subscription) })
	return nil
}

func (r *selfReceiver) run(list <-chan node.Tick) {
	var last time.Time
	failing := false
	for t := range list {
		if !last.IsZero() && t.Time.Sub(last) < r.interval {
			continue
		}
		last = t.Time
		err := r.emit(context.Background(), t)
		if err != nil && !failing {
			r.log.Warn("Cannot report the agent's own metrics", zap.Error(err))
		}
		failing = err != nil
	}
}

func (r *selfReceiver) emit(ctx context.Context, t node.Tick) error {
	var measured metricdata.ResourceMetrics
	if err := r.meter.reader.Load().Collect(ctx, &measured); err != nil {
		return fmt.Errorf("cannot collect the agent's own metrics: %w", err)
	}
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	describe(rm.Resource().Attributes(), t)
	now := pcommon.NewTimestampFromTime(t.Time)
	convert(measured.ScopeMetrics, now, rm)
	buildInfo(rm.ScopeMetrics().AppendEmpty(), r.version, now)
	return r.next.ConsumeMetrics(ctx, md)
}

// buildInfo adds the version of the agent, as Prometheus exporters do: joined by host, it says which
// agents of a fleet are old.
func buildInfo(sm pmetric.ScopeMetrics, version string, now pcommon.Timestamp) {
	sm.Scope().SetName("github.com/gpumeter/gpumeter/receiver/selfreceiver")
	m := sm.Metrics().AppendEmpty()
	m.SetName("gpumeter.build.info")
	m.SetDescription("Always 1; the attributes are the versions of gpumeter and Go.")
	p := m.SetEmptyGauge().DataPoints().AppendEmpty()
	p.SetTimestamp(now)
	p.SetIntValue(1)
	p.Attributes().PutStr("version", version)
	p.Attributes().PutStr("goversion", runtime.Version())
}

// describe adds the attributes that the gpu receiver gives the machine.
func describe(attrs pcommon.Map, t node.Tick) {
	attrs.PutStr("host.name", t.Host)
	attrs.PutStr("service.name", "gpumeter")
	if t.Simulated {
		attrs.PutBool("gpumeter.simulated", true)
	}
	for key, value := range t.Resource {
		attrs.PutStr(key, value)
	}
}

// Shutdown implements component.Component.
func (r *selfReceiver) Shutdown(context.Context) error {
	if r.cancel != nil {
		r.cancel()
	}
	r.done.Wait()
	return nil
}
