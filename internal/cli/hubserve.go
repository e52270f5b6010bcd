//go:build linux

package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
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
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/exporter/hubexporter"
	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/query"
)

// hubServer is a hub that runs.
type hubServer struct {
	log    *zap.Logger
	store  *hub.Store // nil with --backend
	http   *http.Server
	stop   context.CancelFunc
	serve  sync.WaitGroup
	failed chan error
}

// start opens the store and the listeners.
func (h *hubOptions) start(ctx context.Context, log *zap.Logger) (_ *hubServer, err error) {
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
	listener, err := h.open(ctx, "--listen", h.listen, log)
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
	s := &hubServer{log: log, failed: make(chan error, 2)}
	o := hub.HandlerOptions{
		View: money.view(h.title), UI: pageUI(), Tokens: tokens, Version: h.version,
		LocalOnly: isLoopback(listener.Addr()) && tokens == nil && h.clientCA == "" && !h.insecure,
	}
	var store query.Store
	var events hub.EventLog
	run := context.WithoutCancel(ctx) // the listeners end before it
	run, s.stop = context.WithCancel(run)
	if h.backend != "" {
		if store, err = h.openBackend(ctx); err != nil {
			return nil, err
		}
		o.Refusals = hub.NewRefusals()
		o.Registry = hub.NewRegistry(o.Refusals, hub.Gauges(money.gauges))
	} else {
		options, err := h.storeOptions(log)
		if err != nil {
			return nil, err
		}
		if s.store, err = hub.Open(h.dir, options); err != nil {
			return nil, err
		}
		closers = append(closers, s.store.Close)
		store, events = s.store, s.store
		otlp := hubexporter.NewOTLP(hubexporter.NewWriter(s.store, slices.Concat(hubexporter.DefaultResourceLabels(), h.labels)), s.store.Refusals())
		o.OTLP, o.Refusals, o.Registry = otlp.Handler(), s.store.Refusals(), s.store.Registry()
		s.store.Registry().MustRegister(hub.Gauges(money.gauges))
		if h.grpc != "" {
			l, err := h.open(ctx, "--listen-grpc", h.grpc, log)
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
	s.greet(run, urlOf(listener.Addr(), conf != nil), h, isLoopback(listener.Addr()))
	return s, nil
}

// greet says what runs, and how to go on from there.
func (s *hubServer) greet(ctx context.Context, page string, h *hubOptions, local bool) {
	if s.store == nil {
		from := ""
		if u, err := url.Parse(h.backend); err == nil {
			from = u.Redacted()
		}
		s.log.Info("The hub serves", zap.String("url", page), zap.String("from", from))
		return
	}
	s.log.Info("The hub serves", zap.String("url", page), zap.String("data", h.dir), zap.String("retention", h.retention))
	if s.store.NumSeries() > 0 {
		return // somebody has sent to it before
	}
	hint := "gpumeter agent --otlp-endpoint " + strings.TrimSuffix(page, "/")
	if h.tokens != "" {
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

// open listens at an address, if it is safe to.
func (h *hubOptions) open(ctx context.Context, flag, address string, log *zap.Logger) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		none := ""
		if flag == "--listen-grpc" {
			none = `, or --listen-grpc "" for none: agents need HTTP only`
		}
		return nil, fmt.Errorf("cannot listen on %s: %w: another hub or Collector may run there; choose another address with %s%s", address, syscall.EADDRINUSE, flag, none)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	if isLoopback(l.Addr()) || h.insecure {
		return l, nil
	}
	if h.tokens == "" && h.clientCA == "" {
		return nil, errors.Join(fmt.Errorf("%s %s lets everybody on the network read and write: add --tokens FILE or --client-ca FILE, or say --insecure", flag, address), l.Close())
	}
	if h.cert == "" {
		log.Warn("Tokens go over the network as they are: use --tls-cert and --tls-key, unless something before the hub does TLS", zap.String("address", address))
	}
	return l, nil
}

func isLoopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

func (h *hubOptions) readTokens() (*hub.Tokens, error) {
	if h.tokens == "" {
		return nil, nil
	}
	text, err := os.ReadFile(h.tokens)
	if err != nil {
		return nil, fmt.Errorf("cannot read --tokens: %w", err)
	}
	if st, err := os.Stat(h.tokens); err == nil && st.Mode().Perm()&0o007 != 0 {
		return nil, fmt.Errorf("--tokens %s can be read by everybody on this machine: chmod o= %s", h.tokens, h.tokens)
	}
	t, err := hub.ParseTokens(text)
	if err != nil {
		return nil, fmt.Errorf("--tokens %s: %w", h.tokens, err)
	}
	return t, nil
}

// tokensEvery is how often the file of tokens is looked at.
const tokensEvery = 5 * time.Second

// watchTokens reads the file of tokens again when it has changed. Those that hold stay if
// it cannot be read, which is said once.
func (h *hubOptions) watchTokens(ctx context.Context, tokens *hub.Tokens, log *zap.Logger) {
	clock := time.NewTicker(tokensEvery)
	defer clock.Stop()
	last, said := fileState(h.tokens), ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-clock.C:
		}
		state := fileState(h.tokens)
		if state == last {
			continue
		}
		last = state
		by, err := h.readTokens()
		if err != nil {
			if reason := oneLine(err); reason != said {
				said = reason
				log.Warn("The tokens have changed and cannot be used; those from before hold", zap.String("reason", reason))
			}
			continue
		}
		said = ""
		tokens.Replace(by)
		log.Info("The tokens were read again", zap.String("file", h.tokens))
	}
}

// fileState is another when a file was written, replaced or closed to others.
func fileState(path string) string {
	st, err := os.Stat(path)
	if err != nil {
		return ""
	}
	inode := uint64(0)
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		inode = sys.Ino
	}
	return fmt.Sprint(inode, st.Size(), st.Mode(), st.ModTime().UnixNano())
}

// tls returns how to speak TLS, nil if not. A certificate that is renewed is read anew.
func (h *hubOptions) tls() (*tls.Config, error) {
	if h.cert == "" {
		return nil, nil
	}
	pair := &keyPair{cert: h.cert, key: h.key}
	if _, err := pair.get(nil); err != nil {
		return nil, fmt.Errorf("cannot read --tls-cert and --tls-key: %w", err)
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.get, NextProtos: []string{"h2", "http/1.1"}}
	if h.clientCA != "" {
		text, err := os.ReadFile(h.clientCA)
		if err != nil {
			return nil, fmt.Errorf("cannot read --client-ca: %w", err)
		}
		conf.ClientCAs = x509.NewCertPool()
		if !conf.ClientCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--client-ca %s has no certificate", h.clientCA)
		}
		conf.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return conf, nil
}

// keyPair is a certificate and its key in files, looked at again after a minute.
type keyPair struct {
	cert, key string

	mu   sync.Mutex
	last *tls.Certificate
	read time.Time
}

func (k *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.last != nil && time.Since(k.read) < time.Minute {
		return k.last, nil
	}
	c, err := tls.LoadX509KeyPair(k.cert, k.key)
	if err != nil && k.last != nil { // half renewed
		return k.last, nil
	}
	k.last, k.read = &c, time.Now()
	return k.last, err
}

// report tells wait that a server has ended.
func (s *hubServer) report(err error) {
	if err != nil && !errors.Is(err, http.ErrServerClosed) {
		s.failed <- err
	}
}

// wait runs the hub until ctx ends or it fails, and then ends it.
func (s *hubServer) wait(ctx context.Context) error {
	var err error
	select {
	case <-ctx.Done():
	case err = <-s.failed:
	}
	return errors.Join(err, s.close())
}

// close ends the listeners, then the store.
func (s *hubServer) close() error {
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
