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
	clusters := newShared(func(cfg *Config, set receiver.Settings, forget func()) (*kubernetesReceiver, error) {
		r := newReporter(cfg, set, from, began)
		r.rounds, r.forget = rounds, forget
		return r, nil
	})
	return receiver.NewFactory(metadata.Type, createDefaultConfig,
		receiver.WithMetrics(func(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Metrics) (receiver.Metrics, error) {
			return clusters.metrics(cfg.(*Config), set, next)
		}, metadata.MetricsStability),
		receiver.WithLogs(func(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Logs) (receiver.Logs, error) {
			return clusters.logs(cfg.(*Config), set, next)
		}, metadata.LogsStability))
}

// NewFactory returns the factory of the receiver.
func NewFactory() receiver.Factory {
	slurm, clusters := newShared(newReceiver), newShared(newKubernetes)
	return receiver.NewFactory(metadata.Type, createDefaultConfig,
		receiver.WithMetrics(func(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Metrics) (receiver.Metrics, error) {
			switch cfg.(*Config).Scheduler {
			case kubernetesKind:
				return clusters.metrics(cfg.(*Config), set, next)
			case queueingKind:
				return newQueueing(cfg.(*Config), set, next), nil
			case nodeKind:
				return newNode(cfg.(*Config), set, next), nil
			}
			return slurm.metrics(cfg.(*Config), set, next)
		}, metadata.MetricsStability),
		receiver.WithLogs(func(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Logs) (receiver.Logs, error) {
			switch cfg.(*Config).Scheduler {
			case kubernetesKind:
				return clusters.logs(cfg.(*Config), set, next)
			case queueingKind, nodeKind:
				return noLogs{}, nil
			}
			return slurm.logs(cfg.(*Config), set, next)
		}, metadata.LogsStability))
}

// reporter is a receiver of a metrics pipeline, a logs pipeline or both.
type reporter interface {
	component.Component
	to(metrics consumer.Metrics, logs consumer.Logs) // nil: as before
}

// shared has the receivers of a kind by configuration, so that a receiver in a metrics and a logs pipeline asks only once.
type shared[R reporter] struct {
	open func(cfg *Config, set receiver.Settings, forget func()) (R, error)
	mu   sync.Mutex
	all  map[*Config]R
}

func newShared[R reporter](open func(*Config, receiver.Settings, func()) (R, error)) *shared[R] {
	return &shared[R]{open: open, all: map[*Config]R{}}
}

func (s *shared[R]) metrics(cfg *Config, set receiver.Settings, next consumer.Metrics) (receiver.Metrics, error) {
	r, err := s.of(cfg, set)
	if err != nil {
		return nil, err
	}
	r.to(next, nil)
	return r, nil
}

func (s *shared[R]) logs(cfg *Config, set receiver.Settings, next consumer.Logs) (receiver.Logs, error) {
	r, err := s.of(cfg, set)
	if err != nil {
		return nil, err
	}
	r.to(nil, next)
	return r, nil
}

func (s *shared[R]) of(cfg *Config, set receiver.Settings) (R, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.all[cfg]; ok {
		return r, nil
	}
	r, err := s.open(cfg, set, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.all, cfg)
	})
	if err == nil {
		s.all[cfg] = r
	}
	return r, err
}
