package cudareceiver

import (
	"context"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"

	"github.com/gpumeter/gpumeter/receiver/cudareceiver/internal/metadata"
)

// NewFactory returns the factory of the receiver.
func NewFactory() receiver.Factory { return newFactory(openTracer, &Switch{}) }

// NewFactoryWithSwitch returns a factory whose receivers trace while a switch is on.
func NewFactoryWithSwitch(s *Switch) receiver.Factory { return newFactory(openTracer, s) }

func newFactory(open opener, power *Switch) receiver.Factory {
	s := &shared{open: open, power: power, all: map[*Config]*cudaReceiver{}}
	return receiver.NewFactory(metadata.Type, createDefaultConfig,
		receiver.WithMetrics(func(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Metrics) (receiver.Metrics, error) {
			r := s.of(cfg.(*Config), set)
			r.metrics = next
			return r, nil
		}, metadata.MetricsStability),
		receiver.WithLogs(func(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Logs) (receiver.Logs, error) {
			r := s.of(cfg.(*Config), set)
			r.logs = next
			return r, nil
		}, metadata.LogsStability))
}

// shared has the receivers by configuration, so that a receiver in a metrics and a logs pipeline traces
// only once.
type shared struct {
	open  opener
	power *Switch
	mu    sync.Mutex
	all   map[*Config]*cudaReceiver
}

func (s *shared) of(cfg *Config, set receiver.Settings) *cudaReceiver {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.all[cfg]; r != nil {
		return r
	}
	r := newReceiver(cfg, set, s.open)
	r.power = s.power
	r.forget = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.all, cfg)
	}
	s.all[cfg] = r
	return r
}
