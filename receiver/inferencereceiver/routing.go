package inferencereceiver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/inference"
	"github.com/gpumeter/gpumeter/internal/rebind"
)

const (
	// defaultFresh is how old the signals of an engine may be. Pickers ask 20 times a second, several of them at once;
	// a page that is read for one serves all.
	defaultFresh = 50 * time.Millisecond
	// defaultRoutingTimeout is how long an engine has to say them. Pickers wait for a second.
	defaultRoutingTimeout = 900 * time.Millisecond
	// shutdownTimeout is how long a slow client can delay the shutdown.
	shutdownTimeout = 2 * time.Second
)

// pod is where an engine runs, empty if that is unknown or no pod.
type pod struct{ namespace, name string }

// path is where the signals of a pod are.
func (p pod) path() string { return "/pods/" + p.namespace + "/" + p.name + "/metrics" }

// routing serves the signals of engines to those who choose the engine for a request. Engines are read when
// somebody asks: a queue of ten seconds ago says nothing about where to send the next request.
type routing struct {
	engines func() []*target
	fresh   time.Duration
	timeout time.Duration // of a reading
	server  *http.Server
	address net.Addr
	served  chan struct{}
}

// startRouting opens the server if the configuration has one.
func (r *inferenceReceiver) startRouting(ctx context.Context, host component.Host) error {
	cfg := r.cfg.Routing.Get()
	if cfg == nil {
		return nil
	}
	listener, err := cfg.ToListener(context.Background())
	if err != nil {
		return fmt.Errorf("cannot listen on %s, the address of routing: %w", cfg.NetAddr.Endpoint, err)
	}
	s := &routing{
		engines: func() []*target { return *r.engines.Load() }, fresh: defaultFresh, timeout: defaultRoutingTimeout, address: listener.Addr(), served: make(chan struct{}),
	}
	handler := s.handler(ctx)
	if rebind.IsLoopback(listener.Addr()) && !cfg.Auth.HasValue() {
		handler = rebind.Local(handler, cfg.NetAddr.Endpoint)
	}
	if s.server, err = cfg.ToServer(context.Background(), host.GetExtensions(), r.set.TelemetrySettings, handler); err != nil {
		return errors.Join(err, listener.Close())
	}
	go s.serve(listener, host)
	r.routing = s
	r.set.Logger.Info("Serving signals for routing", zap.Stringer("address", listener.Addr()))
	return nil
}

func (s *routing) serve(l net.Listener, host component.Host) {
	defer close(s.served)
	if err := s.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		componentstatus.ReportStatus(host, componentstatus.NewFatalErrorEvent(err))
	}
}

func (s *routing) shutdown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, shutdownTimeout)
	defer cancel()
	err := s.server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = s.server.Close()
	}
	<-s.served
	return err
}

// handler answers requests until ctx ends. Readings have that context and not a request's, because they serve more
// than the request that began them.
func (s *routing) handler(ctx context.Context) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		engines := s.engines()
		pods := map[pod]bool{}
		for _, t := range engines {
			pods[t.pod()] = true
		}
		switch len(pods) {
		case 0:
			http.Error(w, "no inference engine is known", http.StatusServiceUnavailable)
		case 1:
			s.answer(ctx, w, engines)
		default: // the sum of several pods is nobody's load
			http.Error(w, "the engines are in several pods, each of which has a page of its own:\n"+listing(pods), http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /pods/{namespace}/{pod}/metrics", func(w http.ResponseWriter, r *http.Request) {
		at := pod{r.PathValue("namespace"), r.PathValue("pod")}
		engines := slices.DeleteFunc(slices.Clone(s.engines()), func(t *target) bool { return t.pod() != at })
		if len(engines) == 0 {
			http.Error(w, "no inference engine of this pod is known", http.StatusNotFound)
			return
		}
		s.answer(ctx, w, engines)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.UserAgent() == inference.UserAgent { // the names are those of an engine, which another agent must not believe
			http.Error(w, "this is not an inference engine", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func listing(pods map[pod]bool) string {
	var list []string
	for p := range pods {
		if p != (pod{}) {
			list = append(list, p.path())
		}
	}
	slices.Sort(list)
	return strings.Join(list, "\n")
}

// answer serves what engines say together. If one of them does not answer, there is no page: without its queue
// the pod would look idle, and get all requests.
func (s *routing) answer(ctx context.Context, w http.ResponseWriter, engines []*target) {
	list := make([]inference.Signals, len(engines))
	errs := make(chan error, len(engines))
	for i, t := range engines {
		go func() {
			var err error
			if list[i], err = t.signals(ctx, s.fresh, s.timeout); err != nil {
				err = fmt.Errorf("cannot read %s: %w", t.emitter.id, err)
			}
			errs <- err
		}()
	}
	var all []error
	for range engines {
		all = append(all, <-errs)
	}
	if err := errors.Join(all...); err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	together := inference.Together(list...)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(together.Page()) // a client that has gone is not an error
}

// pod returns where the engine runs.
func (t *target) pod() pod {
	t.engine.Lock()
	defer t.engine.Unlock()
	if t.joined == nil || t.joined.Workload == nil {
		return pod{}
	}
	a := t.joined.Workload.Attributes
	return pod{a["k8s.namespace.name"], a["k8s.pod.name"]}
}

// signals returns what decides about the next request, as the engine said it a moment ago at the most. Requests
// that wait for one reading get the same answer.
func (t *target) signals(ctx context.Context, fresh, timeout time.Duration) (inference.Signals, error) {
	t.routed.Lock()
	defer t.routed.Unlock()
	if t.said.IsZero() || time.Since(t.said) > fresh {
		ctx, cancel := context.WithTimeout(ctx, min(t.timeout, timeout))
		defer cancel()
		var r *inference.Reading
		t.signal = inference.Signals{}
		if r, t.silent = t.look(ctx); t.silent == nil {
			t.signal = r.Signals
		}
		t.said = time.Now()
	}
	return t.signal, t.silent
}

// errUnread reports a page that is not read for routing.
var errUnread = errors.New("the page has not been read, or must not be")

// look reads the page once, and leaves out what only metrics need.
func (t *target) look(ctx context.Context) (_ *inference.Reading, err error) {
	defer t.rescue(&err)
	if t.barred.Load() || t.unknown.Load() {
		return nil, errUnread
	}
	page, err := t.Page(ctx)
	t.bar(err)
	switch {
	case err != nil:
		return nil, err
	case t.Format == inference.Ollama:
		return inference.ReadOllama(page)
	}
	return t.parse(ctx, page, "")
}
