//go:build linux

// Package server runs a hub: it opens the store and the listeners, checks who may come in,
// compares the fleet with its rules and quotas every minute, and serves the page. What a
// store, a rule or an answer of the page is, the packages beside it decide.
package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/exporter/hubexporter"
	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/hub/ui"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Options say what a hub keeps, where it listens and who may come in. Messages about them
// name the flags of gpumeter hub.
type Options struct {
	Version   string
	Listen    string         // address of the page, of Prometheus' API and of OTLP over HTTP
	GRPC      string         // address of OTLP over gRPC; empty: none
	Dir       string         // folder of the store
	Retention time.Duration  // how long samples and events are kept
	MaxBytes  int64          // how much of the disk samples may take; 0: no limit
	MaxSeries int            // how many series may be in memory; 0: by the memory there is
	Labels    []string       // attributes of resources that become labels, besides the usual
	Prices    string         // file with the prices of devices; empty: none
	Quotas    []string       // where quotas are read, see ReadQuotas
	Title     string         // name of the fleet on the page
	Vendors   device.Vendors // whose resources quotas count, and whose words model names lose on the page

	Tokens   string // file with the tokens of those who may read and send; empty: none
	Cert     string // file of the certificate to present, PEM; empty: no TLS
	Key      string // file of its key, PEM
	ClientCA string // file of the certificates that those of clients must be signed by, PEM
	Insecure bool   // let everybody on the network read and write

	Backend      string // URL of the store that has the samples; empty: the hub's own has
	BackendToken string // file with a bearer token for it
	BackendCA    string // file with the certificates to trust there, PEM
}

// store returns how the hub's own store is opened.
func (h *Options) store(log *zap.Logger) hub.Options {
	o := hub.Options{Retention: h.Retention, MaxBytes: h.MaxBytes, MaxSeries: h.MaxSeries, Log: slogTo(log)}
	if o.MaxSeries == 0 {
		o.MaxSeries = seriesFor(machineMemory("/"))
	}
	return o
}

// Server is a hub that runs.
type Server struct {
	log    *zap.Logger
	store  *hub.Store // nil: a backend has the samples
	http   *http.Server
	stop   context.CancelFunc
	serve  sync.WaitGroup
	failed chan error
}

// Start opens the store and the listeners of a hub and begins to serve.
func Start(ctx context.Context, h Options, log *zap.Logger) (_ *Server, err error) {
	tokens, err := h.readTokens()
	if err != nil {
		return nil, err
	}
	conf, err := h.tls()
	if err != nil {
		return nil, err
	}
	money, err := h.money(ctx, log)
	if err != nil {
		return nil, err
	}
	listener, err := h.open(ctx, "--listen", h.Listen, log)
	if err != nil {
		return nil, err
	}
	closers := []func() error{listener.Close}
	defer func() {
		if err != nil {
			for _, c := range closers {
				err = errors.Join(err, c())
			}
		}
	}()
	s := &Server{log: log, failed: make(chan error, 2)}
	o := hub.HandlerOptions{
		View: money.view(h.Title), UI: ui.Handler(), Tokens: tokens, Version: h.Version,
		LocalOnly: isLoopback(listener.Addr()) && tokens == nil && h.ClientCA == "" && !h.Insecure,
	}
	var store query.Store
	var events hub.EventLog
	run := context.WithoutCancel(ctx) // the listeners end before it
	run, s.stop = context.WithCancel(run)
	if h.Backend != "" {
		if store, err = h.openBackend(ctx); err != nil {
			return nil, err
		}
		o.Refusals = hub.NewRefusals()
		o.Registry = hub.NewRegistry(o.Refusals, hub.Gauges(money.gauges))
	} else {
		if s.store, err = hub.Open(h.Dir, h.store(log)); err != nil {
			return nil, err
		}
		closers = append(closers, s.store.Close)
		store, events = s.store, s.store
		otlp := hubexporter.NewOTLP(hubexporter.NewWriter(s.store, slices.Concat(hubexporter.DefaultResourceLabels(), h.Labels)), s.store.Refusals())
		o.OTLP, o.Refusals, o.Registry = otlp.Handler(), s.store.Refusals(), s.store.Registry()
		s.store.Registry().MustRegister(hub.Gauges(money.gauges))
		if h.GRPC != "" {
			l, err := h.open(ctx, "--listen-grpc", h.GRPC, log)
			if err != nil {
				return nil, err
			}
			s.serve.Go(func() { s.report(otlp.Serve(run, l, conf, tokens)) })
			log.Info("Taking OTLP over gRPC", zap.Stringer("address", l.Addr()))
		}
	}
	o.Alerts = s.watchFleet(run, store, money)
	if tokens != nil {
		s.serve.Go(func() { h.watchTokens(run, tokens, log) })
	}
	s.http = &http.Server{
		Handler: hub.NewHandler(store, events, o), TLSConfig: conf, ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		WriteTimeout: 2 * time.Minute, // whoever reads an answer slowly holds it in memory
		ErrorLog:     zap.NewStdLog(log.WithOptions(zap.IncreaseLevel(zap.ErrorLevel))),
	}
	s.serve.Go(func() {
		if conf != nil {
			s.report(s.http.ServeTLS(listener, "", ""))
		} else {
			s.report(s.http.Serve(listener))
		}
	})
	s.greet(run, urlOf(listener.Addr(), conf != nil), &h, isLoopback(listener.Addr()))
	return s, nil
}

// greet says what runs, and how to go on from there.
func (s *Server) greet(ctx context.Context, page string, h *Options, local bool) {
	if s.store == nil {
		from := ""
		if u, err := url.Parse(h.Backend); err == nil {
			from = u.Redacted()
		}
		s.log.Info("The hub serves", zap.String("url", page), zap.String("from", from))
		return
	}
	s.log.Info("The hub serves", zap.String("url", page), zap.String("data", h.Dir), zap.String("retention", days(h.Retention)))
	if s.store.NumSeries() > 0 {
		return // somebody has sent to it before
	}
	hint := "gpumeter agent --otlp-endpoint " + strings.TrimSuffix(page, "/")
	if h.Tokens != "" {
		hint = "OTEL_EXPORTER_OTLP_HEADERS='authorization=Bearer TOKEN' " + hint
	}
	where := []zap.Field{zap.String("agents", hint)}
	if local {
		where = append(where, zap.String("other_machines", "need --listen :9500 and --tokens FILE here"))
	}
	s.log.Info("There are no samples yet: agents send them", where...)
	s.serve.Go(func() {
		clock := time.NewTicker(time.Second)
		defer clock.Stop()
		for s.store.NumSeries() == 0 {
			select {
			case <-ctx.Done():
				return
			case <-clock.C:
			}
		}
		s.log.Info("The first samples have come", zap.String("url", page))
	})
}

// days returns 30d for 720h0m0s.
func days(d time.Duration) string {
	if day := 24 * time.Hour; d >= day && d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	return d.String()
}

// urlOf returns where people find what listens at an address.
func urlOf(a net.Addr, secure bool) string {
	host := a.String()
	if tcp, ok := a.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		if name, err := os.Hostname(); err == nil {
			host = net.JoinHostPort(name, strconv.Itoa(tcp.Port))
		}
	}
	if secure {
		return "https://" + host + "/"
	}
	return "http://" + host + "/"
}

// report tells Run that a listener has ended.
func (s *Server) report(err error) {
	if err != nil && !errors.Is(err, http.ErrServerClosed) {
		s.failed <- err
	}
}

// Store returns the store of the hub, nil if it has none of its own.
func (s *Server) Store() *hub.Store { return s.store }

// Run runs the hub until ctx ends or the hub fails, and then ends it. beside, if any, runs
// until then; when it returns, the hub ends, too.
func (s *Server) Run(ctx context.Context, beside func(context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var failed, err error
	var running sync.WaitGroup
	if beside != nil {
		running.Go(func() {
			defer stop()
			failed = beside(ctx)
		})
	}
	select {
	case <-ctx.Done():
	case err = <-s.failed:
		stop()
	}
	running.Wait()
	return errors.Join(err, failed, s.close())
}

// close ends the listeners, then the store.
func (s *Server) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = s.http.Close() // cuts off those that did not finish
	}
	s.stop()
	s.serve.Wait()
	if s.store != nil {
		err = errors.Join(err, s.store.Close())
	}
	return err
}
