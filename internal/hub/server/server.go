//go:build linux

// Package server runs a hub: it opens the store and the listeners, authenticates clients,
// evaluates the fleet rules and quotas every minute, and serves the page. Stores, rules and the
// page's API are implemented by the neighboring packages.
package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/exporter/hubexporter"
	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/hub/audit"
	"github.com/gpumeter/gpumeter/internal/hub/events"
	"github.com/gpumeter/gpumeter/internal/hub/peer"
	"github.com/gpumeter/gpumeter/internal/hub/triage"
	"github.com/gpumeter/gpumeter/internal/hub/ui"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/rebind"
)

const (
	// maxConnections bounds open HTTP connections; further ones wait. An agent and a browser
	// have one each.
	maxConnections = 32_768
	// maxOfPeer bounds the open connections of one address. Agents behind a proxy share one.
	maxOfPeer = maxConnections * 3 / 4
)

// Options configures the storage, the listeners and the access control of a hub. Error
// messages name the flags of gpumeter hub.
type Options struct {
	Version    string
	Listen     string         // address of the page, the Prometheus API and OTLP over HTTP
	GRPC       string         // address of OTLP over gRPC; empty: none
	Dir        string         // data folder of the store
	Retention  time.Duration  // of samples and events
	KeepUsage  time.Duration  // of the usage of past days; 0: hub.DefaultKeepUsage
	MaxBytes   int64          // maximum disk usage of samples; 0: no limit
	MaxSeries  int            // maximum number of series in memory; 0: depends on available memory
	NodeSeries int            // maximum number of series of one node; 0: share.DefaultSeries
	Labels     []string       // resource attributes to add as labels, in addition to the default ones
	Prices     string         // price file; empty: none
	Quotas     []string       // sources of quotas, see ReadQuotas
	Objectives string         // file of service level objectives for inference; empty: none
	Zone       *time.Location // of months and days; nil: UTC
	Title      string         // name of the fleet on the page
	Vendors    device.Vendors // for counting quota resources and for shortening model names

	Tokens   string // token file for reading and writing; empty: none
	Cert     string // file with the server certificate, PEM; empty: no TLS
	Key      string // file with its private key, PEM
	ClientCA string // file with the CA certificates for client certificates, PEM; empty: none
	Insecure bool   // allow everyone on the network to read and write
	Audit    string // file of the audit log; empty: none

	Backend *query.Config // store with the samples; nil: the hub's own store
}

// store returns the options of the hub's own store.
func (h *Options) store(log *zap.Logger) hub.Options {
	memory := machineMemory("/")
	o := hub.Options{Retention: h.Retention, KeepUsage: h.KeepUsage, MaxBytes: h.MaxBytes, MaxSeries: h.MaxSeries, NodeSeries: h.NodeSeries, QueryBytes: queryBytesFor(memory), Log: slogTo(log)}
	if o.MaxSeries == 0 {
		o.MaxSeries = seriesFor(memory)
	}
	return o
}

// Server is a running hub.
type Server struct {
	log    *zap.Logger
	store  *hub.Store    // nil with a backend
	marks  *triage.Marks // nil with a backend
	audit  *audit.Log    // nil if there is none
	http   *http.Server
	stop   context.CancelFunc
	serve  sync.WaitGroup
	failed chan error
}

// Start opens the store and the listeners of a hub and starts serving.
func Start(ctx context.Context, h Options, log *zap.Logger) (_ *Server, err error) {
	tokenFile := follow(h.Tokens, "token file", "tokens")
	tokens, err := h.readTokens()
	if err != nil {
		return nil, err
	}
	conf, err := h.tls(time.Now)
	if err != nil {
		return nil, err
	}
	money, err := h.money(ctx, log)
	if err != nil {
		return nil, err
	}
	if money.objectives, err = h.objectives(log); err != nil {
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
	if s.audit, err = h.openAudit(log); err != nil {
		return nil, err
	}
	if s.audit != nil {
		closers = append(closers, s.audit.Close)
	}
	o := hub.HandlerOptions{
		UI: ui.Handler(), Tokens: tokens, Version: h.Version, Audit: s.audit,
		LocalOnly: rebind.IsLoopback(listener.Addr()) && tokens == nil && h.ClientCA == "" && !h.Insecure, Names: []string{h.Listen},
		State: states(money.state, money.objectives.state, tokenFile.state),
	}
	var store query.Store
	var eventLog events.Log
	run := context.WithoutCancel(ctx) // canceled in close, after the HTTP server has shut down
	run, s.stop = context.WithCancel(run)
	if h.Backend != nil {
		if store, err = h.openBackend(ctx); err != nil {
			return nil, err
		}
		o.Refusals = hub.NewRefusals()
		o.Registry = hub.NewRegistry(o.Refusals, hub.Gauges(money.gauges), hub.Gauges(money.objectives.gauges), hub.BuildInfo(h.Version))
	} else {
		if s.store, err = hub.Open(h.Dir, h.store(log)); err != nil {
			return nil, err
		}
		closers = append(closers, s.store.Close)
		store, eventLog = s.store, s.store
		if s.marks, err = triage.Load(filepath.Join(h.Dir, "triage.json"), time.Now); err != nil {
			return nil, err
		}
		o.Findings = s.marks.Handler(s.store)
		otlp := hubexporter.NewOTLP(hubexporter.NewWriter(s.store, slices.Concat(hubexporter.DefaultResourceLabels(), h.Labels)), s.store.Refusals())
		o.OTLP, o.Refusals, o.Registry = otlp.Handler(), s.store.Refusals(), s.store.Registry()
		o.State = states(s.store.State, o.State)
		s.store.Registry().MustRegister(hub.Gauges(money.gauges), hub.Gauges(money.objectives.gauges), hub.BuildInfo(h.Version))
		if h.GRPC != "" {
			l, err := h.open(ctx, "--listen-grpc", h.GRPC, log)
			if err != nil {
				return nil, err
			}
			s.serve.Go(func() { s.report(otlp.Serve(run, l, conf, tokens)) })
			log.Info("Accepting OTLP over gRPC", zap.Stringer("address", l.Addr()))
		}
	}
	o.View = money.view(h.Title, s.marks)
	o.Alerts = s.watchFleet(run, store, money, money.objectives)
	if tokens != nil {
		s.serve.Go(func() { h.watchTokens(run, tokenFile, tokens, log) })
	}
	s.serve.Go(func() { money.objectives.run(run) })
	if money.followPrices != nil {
		s.serve.Go(func() { money.followPrices(run) })
	}
	s.http = &http.Server{
		Handler: hub.NewHandler(store, eventLog, o), TLSConfig: conf, ReadHeaderTimeout: 10 * time.Second,
		// OTLP bodies and all answers have deadlines of their own, by progress.
		ReadTimeout: time.Minute, WriteTimeout: 2 * time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: zap.NewStdLog(log.WithOptions(zap.IncreaseLevel(zap.ErrorLevel))),
	}
	if s.store != nil {
		s.serve.Go(func() { s.store.KeepDays(run) })
	}
	limited := peer.Listen(listener, maxConnections, maxOfPeer, func() { o.Refusals.Add(hub.PeerLimit, 1) })
	s.serve.Go(func() {
		if conf != nil {
			s.report(s.http.ServeTLS(limited, "", ""))
		} else {
			s.report(s.http.Serve(limited))
		}
	})
	s.greet(run, urlOf(listener.Addr(), conf != nil), &h, rebind.IsLoopback(listener.Addr()))
	return s, nil
}

// greet logs the address of the hub, and how to connect agents if there are no samples yet.
func (s *Server) greet(ctx context.Context, page string, h *Options, local bool) {
	if s.store == nil {
		from := ""
		if u, err := url.Parse(h.Backend.URL); err == nil {
			from = u.Redacted()
		}
		s.log.Info("The hub is serving", zap.String("url", page), zap.String("from", from))
		return
	}
	s.log.Info("The hub is serving", zap.String("url", page), zap.String("data", h.Dir), zap.String("retention", days(h.Retention)))
	if s.store.NumSeries() > 0 {
		return // agents have sent samples before
	}
	hint := "gpumeter agent --otlp-endpoint " + strings.TrimSuffix(page, "/")
	if h.Tokens != "" {
		hint = "OTEL_EXPORTER_OTLP_HEADERS='authorization=Bearer TOKEN' " + hint
	}
	where := []zap.Field{zap.String("agents", hint)}
	if local {
		where = append(where, zap.String("other_machines", "need --listen :9500 and --tokens FILE here"))
	}
	s.log.Info("No samples yet: start agents that send to this hub", where...)
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
		s.log.Info("Received the first samples", zap.String("url", page))
	})
}

// days returns 30d for 720h0m0s.
func days(d time.Duration) string {
	if day := 24 * time.Hour; d >= day && d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	return d.String()
}

// urlOf returns the URL of a listener, with the host name for a wildcard address.
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

// report passes the error of a failed listener to Run.
func (s *Server) report(err error) {
	if err != nil && !errors.Is(err, http.ErrServerClosed) {
		s.failed <- err
	}
}

// Store returns the hub's own store, nil with a backend.
func (s *Server) Store() *hub.Store { return s.store }

// Run serves until ctx is canceled or a listener fails, then shuts the hub down. beside, if not
// nil, runs concurrently; the hub also shuts down when it returns.
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

// close shuts down the listeners, then the store.
func (s *Server) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = s.http.Close() // cuts off unfinished requests
	}
	s.stop()
	s.serve.Wait()
	if s.store != nil {
		err = errors.Join(err, s.store.Close())
	}
	if s.audit != nil {
		err = errors.Join(err, s.audit.Close())
	}
	return err
}
