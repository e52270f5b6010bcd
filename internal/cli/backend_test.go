//go:build linux

package cli_test

import (
	"compress/gzip"
	"context"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // every OTLP server has it
	"google.golang.org/grpc/metadata"
)

// backend is an OTLP server of every protocol, at one address that it can leave and
// come back to.
type backend struct {
	t    *testing.T
	addr string
	// answer is the status of HTTP; nil: 200.
	answer func() int

	mu       sync.Mutex
	got      map[string][]time.Time // ticks, by the resource attribute run
	headers  []string
	types    []string
	resource map[string]string // of the last tick
	others   map[string]int    // requests of other signals
	stop     func()
}

func newBackend(t *testing.T) *backend {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return &backend{t: t, addr: l.Addr().String(), got: map[string][]time.Time{}, others: map[string]int{}}
}

// up starts it at its address.
func (b *backend) up(grpcToo bool) {
	b.t.Helper()
	l, err := net.Listen("tcp", b.addr)
	if err != nil {
		b.t.Fatal(err)
	}
	if grpcToo {
		srv := grpc.NewServer()
		pmetricotlp.RegisterGRPCServer(srv, &grpcMetrics{b: b})
		go func() { _ = srv.Serve(l) }()
		b.stop = srv.Stop
	} else {
		srv := &http.Server{Handler: b, ReadHeaderTimeout: patience}
		go func() { _ = srv.Serve(l) }()
		b.stop = func() { _ = srv.Close() }
	}
	b.t.Cleanup(b.stop)
}

func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if b.answer != nil {
		if code := b.answer(); code != http.StatusOK {
			w.WriteHeader(code)
			return
		}
	}
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = z
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return // killed meanwhile
	}
	isJSON := r.Header.Get("Content-Type") == "application/json"
	signal := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	req := map[string]interface {
		UnmarshalProto([]byte) error
		UnmarshalJSON([]byte) error
	}{"metrics": pmetricotlp.NewExportRequest(), "logs": plogotlp.NewExportRequest(), "traces": ptraceotlp.NewExportRequest()}[signal]
	unmarshal := req.UnmarshalProto
	if isJSON {
		unmarshal = req.UnmarshalJSON
	}
	if err := unmarshal(data); err != nil {
		b.t.Errorf("%s: %v", r.URL.Path, err)
	}
	b.mu.Lock()
	b.types = append(b.types, r.Header.Get("Content-Type"))
	b.headers = append(b.headers, r.Header.Get("Api-Key"))
	if signal != "metrics" {
		b.others[signal]++
	}
	b.mu.Unlock()
	if m, ok := req.(pmetricotlp.ExportRequest); ok {
		b.add(m.Metrics())
	}
}

type grpcMetrics struct {
	pmetricotlp.UnimplementedGRPCServer

	b *backend
}

func (g *grpcMetrics) Export(ctx context.Context, req pmetricotlp.ExportRequest) (pmetricotlp.ExportResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	g.b.mu.Lock()
	g.b.headers = append(g.b.headers, strings.Join(md.Get("api-key"), ","))
	g.b.types = append(g.b.types, strings.Join(md.Get("content-type"), ","))
	g.b.mu.Unlock()
	g.b.add(req.Metrics())
	return pmetricotlp.NewExportResponse(), nil
}

func (b *backend) add(md pmetric.Metrics) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, rm := range md.ResourceMetrics().All() {
		attrs := map[string]string{}
		for key, value := range rm.Resource().Attributes().All() {
			attrs[key] = value.AsString()
		}
		if attrs["host.name"] == "" {
			b.others["metrics"]++ // an application's
			continue
		}
		b.resource = attrs
		b.got[attrs["run"]] = append(b.got[attrs["run"]], newTick(md, time.Now()).time)
	}
}

// ticks returns the times of the ticks of a run, each once, in order, and how many came
// again.
func (b *backend) ticks(run string) (list []time.Time, again int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list = slices.Clone(b.got[run])
	slices.SortFunc(list, time.Time.Compare)
	n := len(list)
	list = slices.CompactFunc(list, time.Time.Equal)
	return list, n - len(list)
}

func (b *backend) attributes() map[string]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.resource)
}
