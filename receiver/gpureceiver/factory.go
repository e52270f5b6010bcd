package gpureceiver

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"

	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/spans"
	"github.com/gpumeter/gpumeter/internal/ticks"
	"github.com/gpumeter/gpumeter/receiver/gpureceiver/internal/metadata"
)

// NewFactory returns the factory of the receiver.
func NewFactory() receiver.Factory {
	return receiver.NewFactory(metadata.Type, createDefaultConfig,
		receiver.WithMetrics(createMetrics, metadata.MetricsStability),
		receiver.WithLogs(createLogs, metadata.LogsStability))
}

func createMetrics(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Metrics) (receiver.Metrics, error) {
	emitter := NewEmitter(cfg.(*Config), set)
	return &gpuReceiver{
		what: metricsOfTicks,
		log:  set.Logger,
		emit: func(ctx context.Context, t node.Tick) (int, error) {
			md := emitter.Emit(t)
			points := md.DataPointCount() // the consumer owns md afterwards
			return points, next.ConsumeMetrics(ctx, md)
		},
	}, nil
}

func createLogs(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Logs) (receiver.Logs, error) {
	recorder := newRecorder(cfg.(*Config), set)
	return &gpuReceiver{
		what: "log records",
		begin: func(view ticks.Source) {
			if b, ok := view.(interface{ Spans() *spans.Board }); ok {
				recorder.board = b.Spans()
			}
		},
		log: set.Logger,
		emit: func(ctx context.Context, t node.Tick) (int, error) {
			ld := recorder.emit(t)
			records := ld.LogRecordCount()
			if records == 0 {
				return 0, nil
			}
			return records, next.ConsumeLogs(ctx, ld)
		},
	}, nil
}
