package hub

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gpumeter/gpumeter/internal/hub/access"
	"github.com/gpumeter/gpumeter/internal/hub/audit"
	"github.com/gpumeter/gpumeter/internal/hub/events"
	"github.com/gpumeter/gpumeter/internal/hub/peer"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/rebind"
)

// Grant is what a request may do.
type Grant = access.Grant

// HandlerOptions configures what a hub serves besides its store. The zero value serves the
// Prometheus API to everyone who can reach it.
type HandlerOptions struct {
	// View returns the handler for the dashboard's API below /api/page/; the prefix is
	// stripped. It is called once per scope, with a store restricted to it; log is nil if
	// there is no event log.
	View func(scope access.Scope, store query.Store, log events.Log) http.Handler
	// UI is the dashboard itself. It contains no data and needs no token.
	UI http.Handler
	// OTLP handles POST /v1/metrics and /v1/logs.
	OTLP http.Handler

	Tokens *access.Tokens // nil: no authentication
	// LocalOnly rejects requests whose Host header is not this machine, which prevents DNS
	// rebinding from a browser on this machine.
	LocalOnly bool
	Names     []string     // addresses that the server was told to listen at; see LocalOnly
	Ready     func() error // nil: always ready
	// State returns lines for /readyz about what is wrong with a hub that is ready; may be nil.
	// Everyone can read them.
	State  func() []string
	Alerts func() []Alert // nil: no alerts
	// Findings serves /api/findings; nil: not served. Requests other than GET need an admin token.
	Findings func(http.ResponseWriter, *http.Request, Grant)
	Audit    *audit.Log // nil: no audit log
	Version  string

	Refusals *Refusals           // nil: not counted
	Registry prometheus.Gatherer // for /metrics; nil: not served

	pace peer.Pace // of clients that read an answer; zero: peer.DefaultPace
}

// maxForm bounds the body of a query.
const maxForm = 1 << 20

// NewHandler serves the Prometheus API below /api/v1/, the dashboard's API below
// /api/page/, the dashboard at / and OTLP below /v1/. log may be nil.
func NewHandler(store query.Store, log events.Log, o HandlerOptions) http.Handler {
	if o.Refusals == nil {
		o.Refusals = NewRefusals()
	}
	h := &handler{store: store, log: log, opt: o, answering: newAnswering(store, o.pace), views: map[access.Scope]http.Handler{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", h.ready)
	if o.Registry != nil {
		metrics := promhttp.HandlerFor(o.Registry, promhttp.HandlerOpts{})
		mux.Handle("GET /metrics", h.reader(func(w http.ResponseWriter, r *http.Request, g Grant) {
			if !g.Scope.All() {
				h.forbid(w, "the hub's own metrics need a token that may read everything")
				return
			}
			metrics.ServeHTTP(w, r)
		}))
	}
	h.routes(mux)
	if o.Findings != nil {
		mux.Handle("/api/findings", h.reader(h.findings))
		mux.Handle("/api/findings/", h.reader(h.findings))
	}
	if o.View != nil {
		mux.Handle("/api/page/", h.reader(h.page))
	}
	if o.OTLP != nil {
		mux.Handle("/v1/", h.writer(o.OTLP))
	}
	if o.UI != nil {
		mux.Handle("/", o.UI)
	}
	return h.guard(mux)
}

type handler struct {
	store query.Store
	log   events.Log // may be nil
	opt   HandlerOptions
	answering

	mu    sync.Mutex
	views map[access.Scope]http.Handler
}

// guard wraps every request.
func (h *handler) guard(next http.Handler) http.Handler {
	local := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h.opt.LocalOnly && !rebind.IsLocal(r.Host, h.opt.Names...) {
			h.forbid(w, "this hub answers only to localhost: see --listen")
			return
		}
		next.ServeHTTP(w, r)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = r.WithContext(peer.With(r.Context(), h.peerOf(r)))
		w = h.paced(w, r)
		head := w.Header()
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("X-Frame-Options", "DENY")
		head.Set("Referrer-Policy", "no-referrer")
		head.Set("Cross-Origin-Resource-Policy", "same-origin")
		if isData(r.URL.Path) {
			head.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
			head.Set("Cache-Control", "no-store")
		}
		if h.opt.Audit != nil && isData(r.URL.Path) {
			h.audited(w, r, local)
			return
		}
		local.ServeHTTP(w, r)
	})
}

func isData(path string) bool {
	return strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/v1/") || path == "/metrics"
}

func (h *handler) ready(w http.ResponseWriter, _ *http.Request) {
	if h.opt.Ready != nil {
		if err := h.opt.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
	}
	_, _ = io.WriteString(w, "ok\n"+h.overShare())
	if h.opt.State != nil {
		for _, line := range h.opt.State() {
			_, _ = io.WriteString(w, line+"\n")
		}
	}
}

// grant returns the permissions of a request. If it returns false, the request has been
// answered.
func (h *handler) grant(w http.ResponseWriter, r *http.Request) (Grant, bool) {
	if h.opt.Tokens == nil {
		return Grant{Read: true, Write: true}, true
	}
	g, ok := h.opt.Tokens.Grant(access.Bearer(r))
	if a, audited := w.(*auditedWriter); audited {
		a.grant = g
	}
	if !ok {
		h.opt.Refusals.Add(Unauthorized, 1)
		w.Header().Set("WWW-Authenticate", `Bearer realm="gpumeter"`)
		fail(w, http.StatusUnauthorized, "unauthorized", errors.New("token required: Authorization: Bearer TOKEN"))
	}
	return g, ok
}

func (h *handler) forbid(w http.ResponseWriter, why string) {
	h.opt.Refusals.Add(Forbidden, 1)
	fail(w, http.StatusForbidden, "forbidden", errors.New(why))
}

// reader requires read permission.
func (h *handler) reader(next func(http.ResponseWriter, *http.Request, Grant)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g, ok := h.grant(w, r)
		switch {
		case !ok:
		case !g.Read:
			h.forbid(w, "this token may only write")
		default:
			r.Body = http.MaxBytesReader(w, r.Body, maxForm)
			if err := r.ParseForm(); err != nil {
				h.bad(w, err)
				return
			}
			next(w, r, g)
		}
	})
}

// writer requires write permission.
func (h *handler) writer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g, ok := h.grant(w, r)
		switch {
		case !ok:
		case !g.Write:
			h.forbid(w, "this token may only read")
		default:
			next.ServeHTTP(w, r.WithContext(access.WithBindings(r.Context(), g.Bound)))
		}
	})
}

// findings requires an admin token for changes. Browsers send the password of basic authentication
// by themselves, also for a foreign page: only a bearer token proves the intent.
func (h *handler) findings(w http.ResponseWriter, r *http.Request, g Grant) {
	_, _, basic := r.BasicAuth()
	switch {
	case r.Method != http.MethodGet && (!g.Admin || basic):
		h.forbid(w, "acknowledging and silencing findings needs an admin token: Authorization: Bearer TOKEN")
	case !g.Scope.All():
		h.forbid(w, "this list needs a token that may read everything")
	default:
		h.opt.Findings(w, r, g)
	}
}

// page passes a request to the view of its scope.
func (h *handler) page(w http.ResponseWriter, r *http.Request, g Grant) {
	h.mu.Lock()
	v := h.views[g.Scope]
	if v == nil { // bounded by the number of tokens
		store, log := h.of(g)
		v = http.StripPrefix("/api/page", h.opt.View(g.Scope, store, log))
		h.views[g.Scope] = v
	}
	h.mu.Unlock()
	v.ServeHTTP(w, r)
}

// of returns the store and the event log that a grant may read.
func (h *handler) of(g Grant) (query.Store, events.Log) {
	if g.Scope.All() {
		return h.store, h.log
	}
	if h.log == nil {
		return ScopedStore(h.store, g.Scope), nil
	}
	return ScopedStore(h.store, g.Scope), ScopedEvents(h.log, g.Scope)
}

// answer writes data in the form of Prometheus' API.
func answer(w http.ResponseWriter, data any, warnings ...string) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(struct { // a client that disconnected is not an error
		Status   string   `json:"status"`
		Data     any      `json:"data"`
		Warnings []string `json:"warnings,omitempty"`
	}{"success", data, warnings})
}

// fail writes an error in the form of Prometheus' API.
func fail(w http.ResponseWriter, code int, kind string, err error) {
	if errors.Is(err, context.Canceled) {
		code, kind = 499, "canceled"
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]string{"status": "error", "errorType": kind, "error": err.Error()})
}
