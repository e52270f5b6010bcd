package gpuspanprocessor

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

const scopeName = "github.com/gpumeter/gpumeter/processor/gpuspanprocessor"

// outcome is what became of a span, a log record or the resource of metrics.
type outcome int

const (
	matched outcome = iota // it got all that is known of its devices
	late                   // its beginning is older than what is remembered
	expired                // all of it is
	idle                   // its workload held no device then
	unknown                // its sender is unknown, or has no workload
	future                 // it has not happened yet
	invalid                // it has no time, or ends before it begins
	outcomeCount
)

var outcomeLabels = [outcomeCount]string{"matched", "late", "expired", "idle", "unknown", "future", "invalid"}

// tally counts items by outcome.
type tally [outcomeCount]int64

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
	m.items, err = m.meter.Int64Counter("gpumeter.spans.items", metric.WithUnit("{item}"),
		metric.WithDescription("Spans, log records and resources of metrics, by what is known of their devices."))
	return m, err
}

// count adds t, once per batch.
func (m *meters) count(ctx context.Context, t *tally) {
	for o, n := range t {
		if n > 0 {
			m.items.Add(ctx, n, m.outcomes[o])
		}
	}
}

// observe registers the counters of limits.
func (m *meters) observe(k *memory) error {
	skipped, err := m.meter.Int64ObservableCounter("gpumeter.spans.connections.skipped", metric.WithUnit("{connection}"),
		metric.WithDescription("Connections whose process was not looked for, because too many were new."))
	if err != nil {
		return err
	}
	coarse, err := m.meter.Int64ObservableCounter("gpumeter.spans.energy.coarse", metric.WithUnit("{gap}"),
		metric.WithDescription("Gaps between spans whose energy is given to none, because there were too many to remember."))
	if err != nil {
		return err
	}
	refused, err := m.meter.Int64ObservableCounter("gpumeter.spans.slow.refused", metric.WithUnit("{span}"),
		metric.WithDescription("Spans that were not compared with others of their name, or not reported as slow, for lack of room."))
	if err != nil {
		return err
	}
	m.registration, err = m.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		if f := k.finder.Load(); f != nil {
			o.ObserveInt64(skipped, int64(f.Skipped()))
		}
		o.ObserveInt64(coarse, int64(k.timeline.Coarse()))
		o.ObserveInt64(refused, int64(k.board.Refused()))
		return nil
	}, skipped, coarse, refused)
	return err
}

func (m *meters) close() error {
	if m.registration == nil {
		return nil
	}
	return m.registration.Unregister()
}
