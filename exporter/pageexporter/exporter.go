package pageexporter

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/xpdata/pref"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/rebind"
)

// shutdownTimeout is how long a slow scraper can delay the shutdown.
const shutdownTimeout = 5 * time.Second

type pageExporter struct {
	cfg   *Config
	set   exporter.Settings
	now   func() time.Time
	store *store
	pages *pages

	server *http.Server
	addr   net.Addr
	serve  sync.WaitGroup
}

func newPageExporter(cfg *Config, set exporter.Settings, now func() time.Time) *pageExporter {
	d := &dropped{first: func(r reason, name string) {
		set.Logger.Warn("data was dropped from the page; "+droppedName+" counts further cases",
			zap.String("reason", reasonLabels[r]), zap.String("first", name))
	}}
	s := newStore(d, cfg.ReadyScope)
	return &pageExporter{cfg: cfg, set: set, now: now, store: s, pages: &pages{store: s, labels: cfg.ResourceLabels, now: now}}
}

// consumeMetrics never fails: what cannot be shown is counted, and a retry would not help.
func (e *pageExporter) consumeMetrics(_ context.Context, md pmetric.Metrics) error {
	pref.RefMetrics(md) // the store keeps a reference until the batch is replaced
	e.store.put(split(md), e.now())
	return nil
}

func (e *pageExporter) start(ctx context.Context, host component.Host) error {
	listener, err := e.cfg.HTTP.ToListener(ctx)
	if err != nil {
		return e.listenError(err)
	}
	handler := e.handler()
	if rebind.IsLoopback(listener.Addr()) && !e.cfg.HTTP.Auth.HasValue() {
		handler = rebind.Local(handler, e.cfg.HTTP.NetAddr.Endpoint)
	}
	server, err := e.cfg.HTTP.ToServer(ctx, host.GetExtensions(), e.set.TelemetrySettings, handler)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	e.server, e.addr = server, listener.Addr()
	e.serve.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			componentstatus.ReportStatus(host, componentstatus.NewFatalErrorEvent(err))
		}
	})
	e.set.Logger.Info("serving metrics", zap.Stringer("address", e.addr), zap.String("path", e.cfg.Path))
	return nil
}

// listenError adds a hint to the most common error.
func (e *pageExporter) listenError(err error) error {
	endpoint := e.cfg.HTTP.NetAddr.Endpoint
	var errno syscall.Errno
	if errors.As(err, &errno) && errno == syscall.EADDRINUSE {
		return fmt.Errorf("cannot listen on %s: %w: another gpumeter or exporter may run there; choose a port with --listen or exporters::%s::endpoint",
			endpoint, errno, e.set.ID)
	}
	return fmt.Errorf("cannot listen on %s: %w", endpoint, err)
}

func (e *pageExporter) shutdown(ctx context.Context) error {
	if e.server == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, shutdownTimeout)
	defer cancel()
	err := e.server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = e.server.Close() // disconnect scrapers that did not finish
	}
	e.serve.Wait()
	return err
}
