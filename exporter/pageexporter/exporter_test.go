package pageexporter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/exporter/exportertest"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/exporter/pageexporter/internal/metadata"
)

// clock is a time that only moves when a test moves it.
type clock struct{ time.Time }

func (c *clock) now() time.Time { return c.Time }

func newTestExporter(now func() time.Time) *pageExporter {
	cfg := createDefaultConfig().(*Config)
	cfg.HTTP.NetAddr.Endpoint = "localhost:0"
	set := exportertest.NewNopSettings(metadata.Type)
	set.ID = component.NewID(metadata.Type)
	return newPageExporter(cfg, set, now)
}

func consume(t testing.TB, e *pageExporter, md pmetric.Metrics) {
	t.Helper()
	md.MarkReadOnly() // what the Collector does to data that others see too
	if err := e.consumeMetrics(t.Context(), md); err != nil {
		t.Fatal(err)
	}
}

func get(e *pageExporter, path string, headers ...string) *httptest.ResponseRecorder {
	return do(e, http.MethodGet, path, headers...)
}

func do(e *pageExporter, method, path string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	e.handler().ServeHTTP(w, r)
	return w
}

func one(name string, v float64) pmetric.Metrics {
	md := pmetric.NewMetrics()
	addGauge(scope(md, "h", "s"), name, v)
	return md
}

// A series that is no longer reported, or whose sender is gone, must leave the page; otherwise
// scrapers would record its last value forever.
func TestReplaceAndExpire(t *testing.T) {
	c := &clock{at(0)}
	e := newTestExporter(c.now)
	f := func(want string) {
		t.Helper()
		if diff := cmp.Diff(want, shown(get(e, "/metrics").Body.String())); diff != "" {
			t.Errorf("page (-want +got):\n%s", diff)
		}
	}
	f("")
	consume(t, e, one("x", 1))
	f("# TYPE x gauge\nx{host_name=\"h\"} 1\n")
	c.Time = at(10)
	consume(t, e, one("y", 2))
	f("# TYPE y gauge\ny{host_name=\"h\"} 2\n")
	c.Time = at(39)
	f("# TYPE y gauge\ny{host_name=\"h\"} 2\n")
	c.Time = at(40)
	f("")
}

// A resource must not become two because its attributes are reordered, nor replace itself
// because it arrives in two parts.
func TestSameResource(t *testing.T) {
	e := newTestExporter((&clock{at(0)}).now)
	f := func(want string, parts ...[]string) {
		t.Helper()
		md := pmetric.NewMetrics()
		for _, attrs := range parts {
			rm := md.ResourceMetrics().AppendEmpty()
			putAll(rm.Resource().Attributes(), attrs[1:])
			addGauge(rm.ScopeMetrics().AppendEmpty().Metrics(), attrs[0], 1)
		}
		consume(t, e, md)
		if diff := cmp.Diff(want, shown(get(e, "/metrics").Body.String())); diff != "" {
			t.Errorf("page (-want +got):\n%s", diff)
		}
	}
	f("# TYPE x gauge\nx{host_name=\"h\"} 1\n# TYPE y gauge\ny{host_name=\"h\"} 1\n",
		[]string{"x", "host.name", "h", "a", "1"}, []string{"y", "host.name", "h", "a", "1"})
	f("# TYPE z gauge\nz{host_name=\"h\"} 1\n",
		[]string{"z", "a", "1", "host.name", "h"})
}

// Scrapes of an unchanged page must not rebuild it.
func TestPageIsMadeOnce(t *testing.T) {
	c := &clock{at(0)}
	e := newTestExporter(c.now)
	body := func(v variant) *byte {
		b, err := e.pages.body(v)
		if err != nil {
			t.Fatal(err)
		}
		return &b[0]
	}
	text, zipped := variant{format: textFormat}, variant{format: textFormat, gzip: true}
	f := func(change func()) {
		t.Helper()
		before := [2]*byte{body(text), body(zipped)}
		if again := [2]*byte{body(text), body(zipped)}; again != before {
			t.Error("the page was built twice")
		}
		change()
		if body(text) == before[0] || body(zipped) == before[1] {
			t.Error("the page was not rebuilt")
		}
	}
	f(func() { consume(t, e, one("x", 1)) })
	f(func() { consume(t, e, one("x", 2)) })
	f(func() { c.Time = at(3600) }) // expiry
}

// The counters must count losses, not scrapes.
func TestConflictsAreCountedOncePerBatch(t *testing.T) {
	e := newTestExporter((&clock{at(0)}).now)
	conflict := func() {
		md := pmetric.NewMetrics()
		ms := scope(md, "h", "s")
		addGauge(ms, "x", 1)
		addGauge(ms, "x", 2)
		consume(t, e, md)
	}
	other := pmetric.NewMetrics()
	addGauge(scope(other, "other", "s"), "x", 1)

	conflict()
	get(e, "/metrics")
	get(e, "/metrics", "Accept", "application/openmetrics-text")
	consume(t, e, other) // a new page with the old conflict
	get(e, "/metrics")
	conflict()
	want := `# TYPE x gauge
x{host_name="h"} 1
x{host_name="other"} 1
gpumeter_page_dropped_total{reason="series_conflict"} 2
`
	if diff := cmp.Diff(want, shown(get(e, "/metrics").Body.String())); diff != "" {
		t.Errorf("page (-want +got):\n%s", diff)
	}
}

// A page must consist of whole batches: two ticks of one sender never mix. With -race this also
// finds state shared by mistake.
func TestConcurrentScrapes(t *testing.T) {
	e := newTestExporter(time.Now)
	stop := make(chan struct{})
	var senders, scrapers sync.WaitGroup
	for s := range 2 {
		senders.Go(func() {
			for tick := 0; ; tick++ {
				select {
				case <-stop:
					return
				default:
				}
				md := pmetric.NewMetrics()
				ms := scope(md, fmt.Sprint("host", s), "s")
				for i := range 20 {
					addGauge(ms, "x", float64(tick), "i", strconv.Itoa(i))
				}
				consume(t, e, md)
			}
		})
	}
	for _, headers := range [][]string{nil, nil, {"Accept", "application/openmetrics-text"}, {"Accept-Encoding", "gzip"}} {
		scrapers.Go(func() {
			for range 50 {
				w := get(e, "/metrics", headers...)
				if headers == nil {
					checkOneTick(t, w.Body)
				}
			}
		})
	}
	scrapers.Wait()
	close(stop)
	senders.Wait()
}

func checkOneTick(t *testing.T, page io.Reader) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(page)
	if err != nil {
		t.Error(err)
		return
	}
	ticks := map[string]map[float64]int{}
	for _, m := range families["x"].GetMetric() {
		host := m.Label[0].GetValue()
		if ticks[host] == nil {
			ticks[host] = map[float64]int{}
		}
		ticks[host][m.Gauge.GetValue()]++
	}
	for host, series := range ticks {
		if len(series) != 1 {
			t.Errorf("series of %s by tick: %v", host, series)
		}
	}
}

// A port in use is the most common mistake; the error must say what to change.
func TestPortInUse(t *testing.T) {
	first, second := newTestExporter(time.Now), newTestExporter(time.Now)
	if err := first.start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := first.shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})

	second.cfg.HTTP.NetAddr.Endpoint = first.addr.String()
	err := second.start(t.Context(), componenttest.NewNopHost())
	want := "cannot listen on " + first.addr.String() + ": address already in use: another gpumeter or exporter may run there; " +
		"choose a port with --listen or exporters::page::endpoint"
	if diff := cmp.Diff(want, fmt.Sprint(err)); diff != "" {
		t.Errorf("start (-want +got):\n%s", diff)
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Error("the cause is lost")
	}
	if err := second.shutdown(t.Context()); err != nil {
		t.Errorf("shutdown of what did not start: %v", err)
	}
}

// The server as a whole, and a shutdown that does not wait for a client that never completes
// its request.
func TestServeAndShutdown(t *testing.T) {
	e := newTestExporter(time.Now)
	if err := e.start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	consume(t, e, fixture(t))

	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://" + e.addr.String() + "/metrics") // with gzip, as Go's client does
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if diff := cmp.Diff(render(t, fixture(t), false), string(body)); err != nil || diff != "" {
		t.Errorf("err = %v, page (-want +got):\n%s", err, diff)
	}

	conn, err := net.Dial("tcp", e.addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "GET /metrics HTTP/1.1\r\n"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := e.shutdown(ctx); err != nil {
		t.Errorf("shutdown: %v", err)
	}
	if _, err := client.Get("http://" + e.addr.String() + "/healthz"); err == nil {
		t.Error("it still serves")
	}
}
