package hub

import (
	"cmp"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/hub/access"
	"github.com/gpumeter/gpumeter/internal/hub/audit"
)

// auditedWriter remembers who asked and what the answer was.
type auditedWriter struct {
	http.ResponseWriter

	grant  Grant
	status int
}

// WriteHeader implements http.ResponseWriter.
func (w *auditedWriter) WriteHeader(code int) {
	w.status = cmp.Or(w.status, code)
	w.ResponseWriter.WriteHeader(code)
}

// Unwrap is for http.ResponseController.
func (w *auditedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// audited serves a request and writes it to the audit log. Accepted OTLP is not written: agents
// send every few seconds.
func (h *handler) audited(w http.ResponseWriter, r *http.Request, next http.Handler) {
	begin := time.Now()
	a := &auditedWriter{ResponseWriter: w}
	next.ServeHTTP(a, r)
	if status := cmp.Or(a.status, http.StatusOK); status >= 400 || !strings.HasPrefix(r.URL.Path, "/v1/") {
		peer, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil {
			peer = r.RemoteAddr
		}
		h.opt.Audit.Write(audit.Entry{
			Time: begin.UTC(), Token: a.grant.Name, Role: a.grant.Role(), Scope: a.grant.Scope.String(), Peer: peer,
			Method: r.Method, Path: without(r.URL.Path, r), Query: without(parameters(r), r), Status: status, Duration: time.Since(begin).Seconds(),
		})
	}
}

// parameters returns the parameters of a request, unescaped.
func parameters(r *http.Request) string {
	form := r.Form
	if form == nil { // nobody has parsed it, and the body may not be a form
		form = r.URL.Query()
	}
	var out []string
	for _, key := range slices.Sorted(maps.Keys(form)) {
		for _, value := range form[key] {
			out = append(out, key+"="+value)
		}
	}
	return strings.Join(out, "&")
}

// without removes the secret of a request from a text. The hub takes no secret from a URL, but a
// client may put it there.
func without(text string, r *http.Request) string {
	if secret := access.Bearer(r); secret != "" {
		text = strings.ReplaceAll(text, secret, "[REDACTED]")
	}
	return text
}
