package hubexporter

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exporterhelper"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/exporter/hubexporter/internal/metadata"
	"github.com/gpumeter/gpumeter/internal/hub"
)

// Opener returns a store that the caller closes. In gpumeter's own binary the store outlives
// a reload of the pipelines.
type Opener func() (Store, error)

// NewFactory returns a factory whose exporters open the store themselves.
func NewFactory() exporter.Factory { return NewFactoryWithStore(nil) }

// NewFactoryWithStore returns a factory whose exporters use the store returned by open.
func NewFactoryWithStore(open Opener) exporter.Factory {
	f := &shared{open: open, all: map[component.ID]*hubExporter{}}
	return exporter.NewFactory(metadata.Type, createDefaultConfig,
		exporter.WithMetrics(f.metrics, metadata.MetricsStability),
		exporter.WithLogs(f.logs, metadata.LogsStability))
}

// shared creates exporters. Exporters with the same ID share one store across signals.
type shared struct {
	open Opener
	mu   sync.Mutex
	all  map[component.ID]*hubExporter
}

func (f *shared) get(id component.ID, cfg component.Config) *hubExporter {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.all[id]
	if e == nil {
		e = &hubExporter{cfg: cfg.(*Config), open: f.open, gone: func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			delete(f.all, id)
		}}
		f.all[id] = e
	}
	return e
}

// metrics uses no queue: a queue would acknowledge data before it is stored.
func (f *shared) metrics(ctx context.Context, set exporter.Settings, cfg component.Config) (exporter.Metrics, error) {
	e := f.get(set.ID, cfg)
	return exporterhelper.NewMetrics(ctx, set, cfg, func(ctx context.Context, md pmetric.Metrics) error {
		_, err := e.writer.Metrics(ctx, md) // refusals are counted and logged
		return err
	}, exporterhelper.WithStart(e.start), exporterhelper.WithShutdown(e.shutdown), exporterhelper.WithTimeout(noTimeout))
}

func (f *shared) logs(ctx context.Context, set exporter.Settings, cfg component.Config) (exporter.Logs, error) {
	e := f.get(set.ID, cfg)
	return exporterhelper.NewLogs(ctx, set, cfg, func(ctx context.Context, ld plog.Logs) error {
		return e.writer.Logs(ctx, ld)
	}, exporterhelper.WithStart(e.start), exporterhelper.WithShutdown(e.shutdown), exporterhelper.WithTimeout(noTimeout))
}

// noTimeout: a disk write cannot be abandoned.
var noTimeout = exporterhelper.TimeoutConfig{}

type hubExporter struct {
	cfg  *Config
	open Opener
	gone func()

	mu     sync.Mutex
	users  int
	writer *Writer
	own    *hub.Store // nil if the opener's owner closes the store
	server *http.Server
	serve  sync.WaitGroup
}

func (e *hubExporter) start(_ context.Context, host component.Host) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.users++; e.users > 1 {
		return nil
	}
	if e.open != nil {
		store, err := e.open()
		if err != nil {
			return err
		}
		e.writer = NewWriter(store, e.cfg.ResourceLabels)
		return nil
	}
	if e.cfg.DataDir == "" {
		return errors.New("data_dir: must be set to the directory of the store")
	}
	store, err := hub.Open(e.cfg.DataDir, hub.Options{Retention: e.cfg.Retention, MaxBytes: e.cfg.MaxBytes, MaxSeries: e.cfg.MaxSeries})
	if err != nil {
		return err
	}
	e.own, e.writer = store, NewWriter(store, e.cfg.ResourceLabels)
	return e.listen(host)
}

// listen serves the Prometheus API on this machine.
func (e *hubExporter) listen(host component.Host) error {
	if e.cfg.Endpoint == "" {
		return nil
	}
	l, err := net.Listen("tcp", e.cfg.Endpoint)
	if err != nil {
		return err
	}
	if a, ok := l.Addr().(*net.TCPAddr); !ok || !a.IP.IsLoopback() {
		return errors.Join(errors.New("endpoint: must be a loopback address; use gpumeter hub for tokens and TLS"), l.Close())
	}
	e.server = &http.Server{
		Handler:           hub.NewHandler(e.own, e.own, hub.HandlerOptions{LocalOnly: true, Names: []string{e.cfg.Endpoint}, Refusals: e.own.Refusals(), Registry: e.own.Registry()}),
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, WriteTimeout: 2 * time.Minute, IdleTimeout: 2 * time.Minute,
	}
	e.serve.Go(func() {
		if err := e.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			componentstatus.ReportStatus(host, componentstatus.NewFatalErrorEvent(err))
		}
	})
	return nil
}

func (e *hubExporter) shutdown(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.users--; e.users > 0 {
		return nil
	}
	e.gone()
	if e.own == nil {
		return nil
	}
	var err error
	if e.server != nil {
		err = e.server.Close()
		e.serve.Wait()
	}
	return errors.Join(err, e.own.Close())
}
