package pageexporter

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// Answers to probes, browsers and scrapers of every version.
func TestHTTP(t *testing.T) {
	c := &clock{at(0)}
	e := newTestExporter(c.now)
	f := func(method, path string, status int, body string) {
		t.Helper()
		w := do(e, method, path)
		if w.Code != status || !strings.Contains(w.Body.String(), body) {
			t.Errorf("%s %s = %d %q, want %d %q", method, path, w.Code, w.Body, status, body)
		}
	}
	f("GET", "/healthz", 200, "ok")
	f("GET", "/readyz", 503, "no data yet")
	f("GET", "/metrics", 200, droppedName)
	f("HEAD", "/metrics", 200, "")
	f("POST", "/metrics", 405, "")
	f("DELETE", "/readyz", 405, "")
	f("GET", "/metrics/x", 404, "")
	f("GET", "/nowhere", 404, "")
	f("GET", "/", 200, `<a href="metrics">`)

	if page := get(e, "/").Body.String(); strings.Contains(page, "simulated") {
		t.Errorf("nothing is simulated:\n%s", page)
	}
	consume(t, e, fixture(t))
	f("GET", "/readyz", 200, "ok")
	f("GET", "/", 200, "<strong>simulated</strong>")
	c.Time = at(3600)
	f("GET", "/readyz", 503, "no batch for 1h0m0s, expected every 5m0s")
}

// A scraper must get the requested format, complete and labeled.
func TestNegotiation(t *testing.T) {
	e := newTestExporter((&clock{at(0)}).now)
	consume(t, e, fixture(t))
	text, openMetrics := render(t, fixture(t), false), render(t, fixture(t), true)

	f := func(accept, encoding, wantType, wantEncoding, want string) {
		t.Helper()
		w := get(e, "/metrics", "Accept", accept, "Accept-Encoding", encoding)
		got := [3]string{w.Header().Get("Content-Type"), w.Header().Get("Content-Encoding"), w.Header().Get("Content-Length")}
		if diff := cmp.Diff([3]string{wantType, wantEncoding, strconv.Itoa(w.Body.Len())}, got); diff != "" {
			t.Errorf("headers (-want +got):\n%s", diff)
		}
		body := w.Body.Bytes()
		if wantEncoding == "gzip" {
			z, err := gzip.NewReader(w.Body)
			if err != nil {
				t.Fatal(err)
			}
			if body, err = io.ReadAll(z); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(want, string(body)); diff != "" {
			t.Errorf("page (-want +got):\n%s", diff)
		}
	}
	const (
		textType = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
		omType   = "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping="
		// What Prometheus 3 sends.
		prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5," +
			"text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
	)
	f("", "", textType, "", text)
	f("*/*", "br, gzip;q=0", textType, "", text)
	f("text/html,*/*;q=0.1", "deflate, gzip;q=1.0", textType, "gzip", text)
	f("application/openmetrics-text; version=1.0.0", "", omType+"underscores", "", openMetrics)
	f(prometheus, "gzip", omType+"allow-utf-8", "gzip", openMetrics)
}

// The three formats are encoded from one set of families, which must not be modified.
func TestProtobuf(t *testing.T) {
	e := newTestExporter((&clock{at(0)}).now)
	consume(t, e, fixture(t))
	w := get(e, "/metrics", "Accept", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited")
	dec := expfmt.NewDecoder(w.Body, expfmt.ResponseFormat(w.Header()))
	var text bytes.Buffer
	for {
		var f dto.MetricFamily
		if err := dec.Decode(&f); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if _, err := expfmt.MetricFamilyToText(&text, &f); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(render(t, fixture(t), false), text.String()); diff != "" {
		t.Errorf("page (-want +got):\n%s", diff)
	}
}

// stuck is a scraper that sends a request and does not read.
type stuck struct {
	*httptest.ResponseRecorder
	writing, release chan struct{}
}

func (s *stuck) Write(b []byte) (int, error) {
	close(s.writing)
	<-s.release
	return len(b), nil
}

// A slow scraper must not block batches or other scrapers.
func TestSlowScraper(t *testing.T) {
	e := newTestExporter((&clock{at(0)}).now)
	slow := &stuck{httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
	var wg sync.WaitGroup
	wg.Go(func() { e.handler().ServeHTTP(slow, httptest.NewRequest(http.MethodGet, "/metrics", nil)) })
	<-slow.writing

	consume(t, e, one("x", 1)) // the test's own deadline ends it if one of these waits
	if diff := cmp.Diff("# TYPE x gauge\nx{host_name=\"h\"} 1\n", shown(get(e, "/metrics").Body.String())); diff != "" {
		t.Errorf("page (-want +got):\n%s", diff)
	}
	close(slow.release)
	wg.Wait()
}
