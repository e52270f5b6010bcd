package pageexporter

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/prometheus/common/expfmt"
	"go.uber.org/zap"
)

const (
	healthPath = "/healthz"
	readyPath  = "/readyz"
)

// handler answers GET and HEAD; the mux rejects other methods and unknown paths.
func (e *pageExporter) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", e.serveIndex)
	mux.HandleFunc("GET "+e.cfg.Path, e.servePage)
	mux.HandleFunc("GET "+healthPath, serveOK)
	mux.HandleFunc("GET "+readyPath, e.serveReady)
	return mux
}

func (e *pageExporter) servePage(w http.ResponseWriter, r *http.Request) {
	format := expfmt.NegotiateIncludingOpenMetrics(r.Header)
	v := variant{format: format.FormatType(), gzip: acceptsGzip(r.Header)}
	body, err := e.pages.body(v)
	if err != nil {
		e.set.Logger.Error("cannot render the page", zap.Error(err))
		http.Error(w, "cannot render the page; see the agent's log", http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", string(format))
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Vary", "Accept, Accept-Encoding")
	if v.gzip {
		h.Set("Content-Encoding", "gzip")
	}
	_, _ = w.Write(body) // a disconnected scraper is not an error
}

// acceptsGzip parses Accept-Encoding (RFC 9110, 12.5.3) as far as needed to choose between
// gzip and identity.
func acceptsGzip(h http.Header) bool {
	for _, header := range h.Values("Accept-Encoding") {
		for part := range strings.SplitSeq(header, ",") {
			coding, parameters, _ := strings.Cut(part, ";")
			if strings.EqualFold(strings.TrimSpace(coding), "gzip") {
				q, found := strings.CutPrefix(strings.TrimSpace(parameters), "q=")
				weight, err := strconv.ParseFloat(q, 64)
				return !found || err == nil && weight > 0
			}
		}
	}
	return false
}

func serveOK(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") }

func (e *pageExporter) serveReady(w http.ResponseWriter, r *http.Request) {
	if why := e.store.missing(e.now()); why != "" {
		http.Error(w, why, http.StatusServiceUnavailable)
		return
	}
	serveOK(w, r)
}

const index = `<!doctype html>
<html lang="en">
<title>gpumeter</title>
<h1>gpumeter</h1>
%s<ul>
<li><a href="%s">metrics</a>
<li><a href="healthz">healthz</a>: the process serves
<li><a href="readyz">readyz</a>: there is something on the page
</ul>
`

func (e *pageExporter) serveIndex(w http.ResponseWriter, _ *http.Request) {
	note := ""
	if e.store.simulated(e.now()) {
		note = "<p><strong>simulated</strong>: devices on this page are not real\n"
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = fmt.Fprintf(w, index, note, strings.TrimPrefix(e.cfg.Path, "/"))
}
