package gpuspanprocessor

import (
	"context"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/processorhelper"

	"github.com/gpumeter/gpumeter/processor/gpuspanprocessor/internal/metadata"
)

// NewFactory returns the factory of the processor.
func NewFactory() processor.Factory {
	f := &factory{known: map[*Config]*memory{}}
	return processor.NewFactory(metadata.Type, createDefaultConfig,
		processor.WithTraces(f.createTraces, metadata.TracesStability),
		processor.WithLogs(f.createLogs, metadata.LogsStability),
		processor.WithMetrics(f.createMetrics, metadata.MetricsStability))
}

// factory holds what the processors of one configuration share. The Collector passes the same
// Config to each pipeline of a processor.
type factory struct {
	mu    sync.Mutex
	known map[*Config]*memory
}

func (f *factory) create(set *processor.Settings, cfg component.Config, signal string) (*spanProcessor, error) {
	c := cfg.(*Config)
	f.mu.Lock()
	defer f.mu.Unlock()
	m, ok := f.known[c]
	if !ok {
		m = newMemory(c, func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			delete(f.known, c)
		})
		f.known[c] = m
	}
	meters, err := newMeters(set.MeterProvider, signal)
	if err != nil {
		return nil, err
	}
	return &spanProcessor{memory: m, meters: meters}, nil
}

var capabilities = processorhelper.WithCapabilities(consumer.Capabilities{MutatesData: true})

func (f *factory) createTraces(ctx context.Context, set processor.Settings, cfg component.Config, next consumer.Traces) (processor.Traces, error) {
	p, err := f.create(&set, cfg, "traces")
	if err != nil {
		return nil, err
	}
	return processorhelper.NewTraces(ctx, set, cfg, next, p.traces, capabilities,
		processorhelper.WithStart(p.start), processorhelper.WithShutdown(p.shutdown))
}

func (f *factory) createLogs(ctx context.Context, set processor.Settings, cfg component.Config, next consumer.Logs) (processor.Logs, error) {
	p, err := f.create(&set, cfg, "logs")
	if err != nil {
		return nil, err
	}
	return processorhelper.NewLogs(ctx, set, cfg, next, p.logs, capabilities,
		processorhelper.WithStart(p.start), processorhelper.WithShutdown(p.shutdown))
}

func (f *factory) createMetrics(ctx context.Context, set processor.Settings, cfg component.Config, next consumer.Metrics) (processor.Metrics, error) {
	p, err := f.create(&set, cfg, "metrics")
	if err != nil {
		return nil, err
	}
	return processorhelper.NewMetrics(ctx, set, cfg, next, p.metrics, capabilities,
		processorhelper.WithStart(p.start), processorhelper.WithShutdown(p.shutdown))
}
