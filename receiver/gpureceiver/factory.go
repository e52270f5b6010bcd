package gpureceiver

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"

	"github.com/gpumeter/gpumeter/receiver/gpureceiver/internal/metadata"
)

// NewFactory returns the factory of the receiver.
func NewFactory() receiver.Factory {
	return receiver.NewFactory(metadata.Type, createDefaultConfig,
		receiver.WithMetrics(createMetrics, metadata.MetricsStability))
}

func createMetrics(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Metrics) (receiver.Metrics, error) {
	return &gpuReceiver{
		emitter: NewEmitter(cfg.(*Config), set),
		next:    next,
		log:     set.Logger,
	}, nil
}
