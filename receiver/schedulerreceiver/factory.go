package schedulerreceiver

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"

	"github.com/gpumeter/gpumeter/receiver/schedulerreceiver/internal/metadata"
)

// NewFactoryWithCluster returns the factory of a receiver that reports another Kubernetes cluster than that of an API
// server, such as a simulated one, at the times that come from rounds. Its counts begin at began.
func NewFactoryWithCluster(from Cluster, began time.Time, rounds <-chan time.Time) receiver.Factory {
	return receiver.NewFactory(metadata.Type, createDefaultConfig,
		receiver.WithMetrics(func(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Metrics) (receiver.Metrics, error) {
			r := newReporter(cfg.(*Config), set, next, from, began)
			r.rounds = rounds
			return r, nil
		}, metadata.MetricsStability))
}

// NewFactory returns the factory of the receiver.
func NewFactory() receiver.Factory {
	s := &shared{all: map[*Config]*schedulerReceiver{}}
	return receiver.NewFactory(metadata.Type, createDefaultConfig,
		receiver.WithMetrics(func(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Metrics) (receiver.Metrics, error) {
			switch cfg.(*Config).Scheduler {
			case kubernetesKind:
				return newKubernetes(cfg.(*Config), set, next)
			case queueingKind:
				return newQueueing(cfg.(*Config), set, next), nil
			}
			r, err := s.of(cfg.(*Config), set)
			if err != nil {
				return nil, err
			}
			r.metrics = next
			return r, nil
		}, metadata.MetricsStability),
		receiver.WithLogs(func(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Logs) (receiver.Logs, error) {
			if cfg.(*Config).Scheduler != slurmKind {
				return noLogs{}, nil
			}
			r, err := s.of(cfg.(*Config), set)
			if err != nil {
				return nil, err
			}
			r.logs = next
			return r, nil
		}, metadata.LogsStability))
}

// shared has the receivers by configuration, so that a receiver in a metrics and a logs pipeline queries
// the controller only once.
type shared struct {
	mu  sync.Mutex
	all map[*Config]*schedulerReceiver
}

func (s *shared) of(cfg *Config, set receiver.Settings) (*schedulerReceiver, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.all[cfg]; r != nil {
		return r, nil
	}
	r, err := newReceiver(cfg, set)
	if err != nil {
		return nil, err
	}
	r.forget = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.all, cfg)
	}
	s.all[cfg] = r
	return r, nil
}
