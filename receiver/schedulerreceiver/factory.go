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
	slurm, clusters := newShared(newReceiver), newShared(newKubernetes)
	return receiver.NewFactory(metadata.Type, createDefaultConfig,
		receiver.WithMetrics(func(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Metrics) (receiver.Metrics, error) {
			switch cfg.(*Config).Scheduler {
			case kubernetesKind:
				r, err := clusters.of(cfg.(*Config), set)
				if err != nil {
					return nil, err
				}
				r.next, r.queues.next = next, next
				return r, nil
			case queueingKind:
				return newQueueing(cfg.(*Config), set, next), nil
			}
			r, err := slurm.of(cfg.(*Config), set)
			if err != nil {
				return nil, err
			}
			r.metrics = next
			return r, nil
		}, metadata.MetricsStability),
		receiver.WithLogs(func(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Logs) (receiver.Logs, error) {
			switch cfg.(*Config).Scheduler {
			case kubernetesKind:
				r, err := clusters.of(cfg.(*Config), set)
				if err != nil {
					return nil, err
				}
				r.logs = next
				return r, nil
			case queueingKind:
				return noLogs{}, nil
			}
			r, err := slurm.of(cfg.(*Config), set)
			if err != nil {
				return nil, err
			}
			r.logs = next
			return r, nil
		}, metadata.LogsStability))
}

// shared has the receivers of a kind by configuration, so that a receiver in a metrics and a logs pipeline asks only once.
type shared[R any] struct {
	open func(cfg *Config, set receiver.Settings, forget func()) (R, error)
	mu   sync.Mutex
	all  map[*Config]R
}

func newShared[R any](open func(*Config, receiver.Settings, func()) (R, error)) *shared[R] {
	return &shared[R]{open: open, all: map[*Config]R{}}
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
