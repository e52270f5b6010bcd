// Package fileexporter is the stock file exporter with a correct lifetime.
//
// The stock exporter shares one file between the signals of a configuration, but opens it at the
// start of each signal and closes it at the first shutdown (contrib v0.159, getOrCreateFileExporter
// unwraps the shared component). Telemetry of another signal that arrives between the first and the
// last shutdown then dereferences a nil writer, and the process panics. Here the first start opens
// the file and the last shutdown closes it.
package fileexporter

import (
	"context"
	"sync"

	stock "github.com/open-telemetry/opentelemetry-collector-contrib/exporter/fileexporter"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/exporter"
)

// NewFactory returns a factory with the name and the configuration of the stock file exporter.
func NewFactory() exporter.Factory { return newFactory(stock.NewFactory()) }

func newFactory(inner exporter.Factory) exporter.Factory {
	f := &files{users: map[component.Config]*file{}}
	return exporter.NewFactory(inner.Type(), inner.CreateDefaultConfig,
		exporter.WithMetrics(func(ctx context.Context, set exporter.Settings, cfg component.Config) (exporter.Metrics, error) {
			e, err := inner.CreateMetrics(ctx, set, cfg)
			return metrics{e, f.use(cfg, e)}, err
		}, inner.MetricsStability()),
		exporter.WithLogs(func(ctx context.Context, set exporter.Settings, cfg component.Config) (exporter.Logs, error) {
			e, err := inner.CreateLogs(ctx, set, cfg)
			return logs{e, f.use(cfg, e)}, err
		}, inner.LogsStability()),
		exporter.WithTraces(func(ctx context.Context, set exporter.Settings, cfg component.Config) (exporter.Traces, error) {
			e, err := inner.CreateTraces(ctx, set, cfg)
			return traces{e, f.use(cfg, e)}, err
		}, inner.TracesStability()),
	)
}

type (
	metrics struct {
		consumer.Metrics
		*user
	}
	logs struct {
		consumer.Logs
		*user
	}
	traces struct {
		consumer.Traces
		*user
	}
)

// files has the open files by configuration: the Collector passes the same pointer for each signal.
type files struct {
	mu    sync.Mutex
	users map[component.Config]*file
}

type file struct {
	users   int // created and not shut down
	started bool
}

// user starts and shuts down the exporter of one signal.
type user struct {
	all   *files
	cfg   component.Config
	inner component.Component
}

func (f *files) use(cfg component.Config, inner component.Component) *user {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.users[cfg] == nil {
		f.users[cfg] = &file{}
	}
	f.users[cfg].users++
	return &user{f, cfg, inner}
}

// Start opens the file if this signal is the first. The exporter of a signal has no other state.
func (u *user) Start(ctx context.Context, host component.Host) error {
	u.all.mu.Lock()
	defer u.all.mu.Unlock()
	if f := u.all.users[u.cfg]; !f.started {
		f.started = true
		return u.inner.Start(ctx, host)
	}
	return nil
}

// Shutdown closes the file if this signal is the last.
func (u *user) Shutdown(ctx context.Context) error {
	u.all.mu.Lock()
	defer u.all.mu.Unlock()
	f := u.all.users[u.cfg]
	if f.users--; f.users > 0 {
		return nil
	}
	delete(u.all.users, u.cfg)
	return u.inner.Shutdown(ctx)
}
