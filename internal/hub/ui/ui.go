// Package ui embeds and serves the dashboard, which make web builds from web/ into dist. A
// plain go build embeds a placeholder page that says how to get the dashboard. The package
// serves static files only; the data comes from internal/hub/view.
package ui

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"regexp"
	"strings"
)

//go:embed dist
var dist embed.FS

// policy allows the page to load its own files and to query the hub, and nothing else: no
// inline script or style, no other site, no framing.
const policy = "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// hashed matches files whose name changes with their content.
var hashed = regexp.MustCompile(`-[A-Z0-9]{8}\.\w+$`)

// asset is a file ready to be served.
type asset struct {
	kind, etag string
	plain, zip []byte // zip is nil if compression does not help
}

// Handler serves the dashboard at its mount point. Unknown paths are not found: the page's
// own routes are in the fragment of its URL.
func Handler() http.Handler {
	files, err := fs.Sub(dist, "dist")
	if err == nil {
		var h http.Handler
		if h, err = handler(files); err == nil {
			return h
		}
	}
	// Embedded files are always readable.
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "cannot read the dashboard: "+err.Error(), http.StatusInternalServerError)
	})
}

// Built reports whether the dashboard is in this binary.
func Built() bool {
	_, err := fs.Stat(dist, "dist/index.html")
	return err == nil
}

func handler(files fs.FS) (http.Handler, error) {
	assets := map[string]asset{}
	entries, err := fs.ReadDir(files, ".")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		b, err := fs.ReadFile(files, e.Name())
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", e.Name(), err)
		}
		assets[e.Name()] = newAsset(e.Name(), b)
	}
	index, ok := assets["index.html"]
	if !ok {
		index = assets["placeholder.html"]
	}
	delete(assets, "placeholder.html")
	assets["index.html"], assets[""] = index, index
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "only GET", http.StatusMethodNotAllowed)
			return
		}
		name := strings.TrimPrefix(path.Clean("/"+r.URL.Path), "/")
		a, ok := assets[name]
		if !ok {
			http.NotFound(w, r)
			return
		}
		a.serve(w, r, hashed.MatchString(name))
	}), nil
}

func newAsset(name string, b []byte) asset {
	sum := sha256.Sum256(b)
	a := asset{kind: mime.TypeByExtension(path.Ext(name)), etag: `"` + hex.EncodeToString(sum[:12]) + `"`, plain: b}
	// Do not depend on the machine's MIME database.
	switch path.Ext(name) {
	case ".html":
		a.kind = "text/html; charset=utf-8"
	case ".js":
		a.kind = "text/javascript; charset=utf-8"
	case ".css":
		a.kind = "text/css; charset=utf-8"
	case ".svg":
		a.kind = "image/svg+xml"
	}
	var z bytes.Buffer
	w, _ := gzip.NewWriterLevel(&z, gzip.BestCompression) // valid level
	_, _ = w.Write(b)                                     // writes to memory
	_ = w.Close()                                         // as above
	if z.Len() < len(b) {
		a.zip = z.Bytes()
	}
	return a
}

func (a *asset) serve(w http.ResponseWriter, r *http.Request, forever bool) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Vary", "Accept-Encoding")
	h.Set("Content-Type", a.kind)
	body, etag := a.plain, a.etag
	if a.zip != nil && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		body, etag = a.zip, strings.TrimSuffix(a.etag, `"`)+`-gzip"`
	}
	h.Set("ETag", etag)
	if forever {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	} else {
		h.Set("Cache-Control", "no-cache") // revalidate every time; usually answered with 304
	}
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Length", fmt.Sprint(len(body)))
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodGet {
		_, _ = w.Write(body) // the client disconnected
	}
}
