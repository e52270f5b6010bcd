package inferencereceiver

import (
	"context"
	"net"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"

	"github.com/gpumeter/gpumeter/internal/inference"
	"github.com/gpumeter/gpumeter/internal/inference/discover"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/receiver/inferencereceiver/internal/metadata"
)

// finder finds engines: a discover.Finder, or a simulation.
type finder interface {
	// Find returns the engines of the machine at a tick. It does not block.
	Find(ctx context.Context, t *node.Tick) []discover.Engine
	Close()
}

// NewFactory returns the factory of the receiver.
func NewFactory() receiver.Factory {
	return newFactory(func(r *inferenceReceiver) {
		if r.cfg.Discover {
			r.find = &discover.Finder{Proc: r.cfg.Proc, Owner: r.owner, Timeout: r.cfg.Timeout, Slots: r.slots}
		}
	})
}

// Simulated returns the engines of a simulated machine at a tick.
type Simulated func(t *node.Tick) []discover.Engine

// NewFactoryWithEngines returns a factory of receivers that read simulated engines. Such a receiver has
// read the pages of a tick before it takes the next one: a history is replayed faster than time.
func NewFactoryWithEngines(engines Simulated) receiver.Factory {
	return newFactory(func(r *inferenceReceiver) { r.find, r.replay = engines, true })
}

func newFactory(open func(*inferenceReceiver)) receiver.Factory {
	return receiver.NewFactory(metadata.Type, createDefaultConfig,
		receiver.WithMetrics(func(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Metrics) (receiver.Metrics, error) {
			return &inferenceReceiver{cfg: cfg.(*Config), set: set, next: next, open: open, targets: map[string]*target{}, slots: inference.NewSlots(), lookup: net.DefaultResolver.LookupNetIP}, nil
		}, metadata.MetricsStability))
}

// Find implements finder.
func (s Simulated) Find(_ context.Context, t *node.Tick) []discover.Engine { return s(t) }

// Close implements finder.
func (Simulated) Close() {}
