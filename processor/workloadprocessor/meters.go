package workloadprocessor

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

const scopeName = "github.com/gpumeter/gpumeter/processor/workloadprocessor"

// meters holds the processor's own metrics.
type meters struct {
	items    metric.Int64Counter
	outcomes [outcomeCount]metric.AddOption

	meter        metric.Meter
	registration metric.Registration
}

func newMeters(provider metric.MeterProvider, signal string) (*meters, error) {
	m := &meters{meter: provider.Meter(scopeName)}
	for o, label := range outcomeLabels {
		m.outcomes[o] = metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", label), attribute.String("signal", signal)))
	}
	var err error
	m.items, err = m.meter.Int64Counter("gpumeter.workload.items", metric.WithUnit("{item}"),
		metric.WithDescription("Points, spans, log records and resources that name a device, a process or a container, by outcome."))
	return m, err
}

// count adds t, once per batch.
func (m *meters) count(ctx context.Context, t *tally) {
	for o := unmatched; o < outcomeCount; o++ {
		if t[o] > 0 {
			m.items.Add(ctx, t[o], m.outcomes[o])
		}
	}
}

// observe registers the gauges of a gateway; f is nil on a node.
func (m *meters) observe(f *fleet) error {
	if f == nil {
		return nil
	}
	devices, err := m.meter.Int64ObservableGauge("gpumeter.workload.devices", metric.WithUnit("{gpu}"),
		metric.WithDescription("Devices whose owners the gateway knows from their agents."))
	if err != nil {
		return err
	}
	refused, err := m.meter.Int64ObservableCounter("gpumeter.workload.refused", metric.WithUnit("{item}"),
		metric.WithDescription("Devices and workloads reported by agents beyond the limits."))
	if err != nil {
		return err
	}
	m.registration, err = m.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		o.ObserveInt64(devices, int64(f.size()))
		o.ObserveInt64(refused, f.refused.Load())
		return nil
	}, devices, refused)
	return err
}

func (m *meters) close() error {
	if m.registration == nil {
		return nil
	}
	return m.registration.Unregister()
}
