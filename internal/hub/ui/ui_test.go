package ui

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

// files are a dashboard as built by make web.
func files() fstest.MapFS {
	return fstest.MapFS{
		"index.html":         {Data: []byte(strings.Repeat("<!doctype html>", 100))},
		"main-ABCDEF12.js":   {Data: []byte("go()")},
		"placeholder.html":   {Data: []byte("make build")},
		"favicon.svg":        {Data: []byte("<svg/>")},
		"main-ABCDEF12.css":  {Data: []byte("a{}")},
		"deeper/ignored.txt": {Data: []byte("x")},
	}
}

func ask(t *testing.T, h http.Handler, method, path string, headers ...string) *http.Response {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func text(t *testing.T, r *http.Response) string {
	t.Helper()
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A file with the wrong type does not run; a mutable file must not be cached; an immutable
// one must be; nobody may frame or extend the page.
func TestServes(t *testing.T) {
	h, err := handler(files())
	if err != nil {
		t.Fatal(err)
	}
	f := func(path string, code int, kind, cache string) {
		t.Helper()
		r := ask(t, h, http.MethodGet, path)
		defer r.Body.Close()
		if r.StatusCode != code || r.Header.Get("Content-Type") != kind || r.Header.Get("Cache-Control") != cache {
			t.Errorf("%s: %d, %q, %q", path, r.StatusCode, r.Header.Get("Content-Type"), r.Header.Get("Cache-Control"))
		}
		if code == http.StatusOK && r.Header.Get("Content-Security-Policy") != policy {
			t.Errorf("%s has the policy %q", path, r.Header.Get("Content-Security-Policy"))
		}
	}
	const forever = "public, max-age=31536000, immutable"
	f("/", http.StatusOK, "text/html; charset=utf-8", "no-cache")
	f("/index.html", http.StatusOK, "text/html; charset=utf-8", "no-cache")
	f("/main-ABCDEF12.js", http.StatusOK, "text/javascript; charset=utf-8", forever)
	f("/main-ABCDEF12.css", http.StatusOK, "text/css; charset=utf-8", forever)
	f("/favicon.svg", http.StatusOK, "image/svg+xml", "no-cache")
	f("/placeholder.html", http.StatusNotFound, "text/plain; charset=utf-8", "")
	f("/deeper/ignored.txt", http.StatusNotFound, "text/plain; charset=utf-8", "")
	f("/../ui.go", http.StatusNotFound, "text/plain; charset=utf-8", "")
	r := ask(t, h, http.MethodPost, "/")
	defer r.Body.Close()
	if r.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST is answered with %d", r.StatusCode)
	}
}

// A browser revalidates cached files without loading them again, compressed or not.
func TestCached(t *testing.T) {
	h, err := handler(files())
	if err != nil {
		t.Fatal(err)
	}
	plain := ask(t, h, http.MethodGet, "/")
	zipped := ask(t, h, http.MethodGet, "/", "Accept-Encoding", "br, gzip")
	z, err := gzip.NewReader(zipped.Body)
	if err != nil {
		t.Fatal(err)
	}
	defer zipped.Body.Close()
	b, err := io.ReadAll(z)
	if want := text(t, plain); err != nil || string(b) != want {
		t.Errorf("%v: %d bytes compressed, %d plain", err, len(b), len(want))
	}
	if plain.Header.Get("ETag") == zipped.Header.Get("ETag") {
		t.Error("two encodings have one ETag")
	}
	again := ask(t, h, http.MethodGet, "/", "Accept-Encoding", "gzip", "If-None-Match", zipped.Header.Get("ETag"))
	if body := text(t, again); again.StatusCode != http.StatusNotModified || body != "" {
		t.Errorf("status %d with %d bytes", again.StatusCode, len(body))
	}
}

// A plain go build serves instructions for building the dashboard.
func TestPlaceholder(t *testing.T) {
	all := files()
	delete(all, "index.html")
	h, err := handler(all)
	if err != nil {
		t.Fatal(err)
	}
	r := ask(t, h, http.MethodGet, "/")
	if body := text(t, r); r.StatusCode != http.StatusOK || body != "make build" {
		t.Errorf("status %d: %s", r.StatusCode, body)
	}
}

// The embedded files, built or not, obey their own policy: no inline script or style, and
// nothing from other sites.
func TestEmbedded(t *testing.T) {
	r := ask(t, Handler(), http.MethodGet, "/")
	body := text(t, r)
	if r.StatusCode != http.StatusOK || !strings.Contains(body, "gpumeter") {
		t.Fatalf("status %d: %s", r.StatusCode, body)
	}
	for _, bad := range []string{`<script>`, `<style`, ` style=`, ` onclick=`, `src="http`, `href="http`} {
		if strings.Contains(body, bad) {
			t.Errorf("the page has %s", bad)
		}
	}
	if Built() != regexp.MustCompile(`<script type="module" src="main-`).MatchString(body) {
		t.Errorf("Built is %v of\n%s", Built(), body)
	}
}
