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
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // every OTLP server has it
	"google.golang.org/grpc/metadata"

	"github.com/gpumeter/gpumeter/internal/await"
)

// refusal is how a backend rejects a request.
type refusal struct {
	code       int    // of HTTP; 0: the connection is reset
	retryAfter string // the header; empty: none
	body       string
	unread     bool  // reset before the body is read
	err        error // of gRPC
	details    []byte
}

// backend is an OTLP server for every protocol. It can be stopped and restarted at the same
// address.
type backend struct {
	t    *testing.T
	addr string
	// refuse is asked before each request of metrics; nil, or what it returns: taken.
	refuse func(n int) *refusal
	// keep makes it keep the bodies of requests as they came, for a test that greps them.
	keep bool
	// slow is how long a request of metrics takes.
	slow atomic.Int64

	mu       sync.Mutex
	got      map[string][]tick // by the resource attribute run
	refused  []tick
	asked    []time.Time // when requests of metrics came
	headers  []string
	types    []string
	resource map[string]string // of the last tick
	others   map[string]int    // requests of other signals
	bodies   []byte
	stop     func()
}

func newBackend(t *testing.T) *backend {
	t.Helper()
	return newBackendAt(t, loopback())
}

func newBackendAt(t *testing.T, host string) *backend {
	t.Helper()
	l, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return &backend{t: t, addr: l.Addr().String(), got: map[string][]tick{}, others: map[string]int{}}
}

// up starts it at its address.
func (b *backend) up(grpcToo bool) {
	b.t.Helper()
	var l net.Listener
	await.NoError(b.t, func() (err error) { // while the backend was down, a connection may have been given its port
		l, err = net.Listen("tcp", b.addr)
		return err
	})
	if grpcToo {
		srv := grpc.NewServer()
		pmetricotlp.RegisterGRPCServer(srv, &grpcMetrics{b: b})
		go func() { _ = srv.Serve(l) }()
		b.stop = srv.Stop
	} else {
		srv := &http.Server{Handler: b, ReadHeaderTimeout: time.Hour}
		go func() { _ = srv.Serve(l) }()
		b.stop = func() { _ = srv.Close() }
	}
	b.t.Cleanup(b.stop)
}

// verdict returns how the next metrics request is rejected, nil if it is accepted.
func (b *backend) verdict() *refusal {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = append(b.asked, time.Now())
	if b.refuse == nil {
		return nil
	}
	return b.refuse(len(b.asked))
}

func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var no *refusal
	if strings.HasSuffix(r.URL.Path, "/metrics") {
		if no = b.verdict(); no != nil && no.unread {
			no.write(w)
			return
		}
	}
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(r.Body)
		if err != nil { // killed before it came
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
	if b.keep {
		b.bodies = append(b.bodies, data...)
	}
	if signal != "metrics" {
		b.others[signal]++
	}
	b.mu.Unlock()
	m, ok := req.(pmetricotlp.ExportRequest)
	switch {
	case !ok:
	case no != nil:
		b.turnDown(m.Metrics())
		no.write(w)
	default:
		// A request may be cut off before it counts, and after.
		half := time.Duration(b.slow.Load() / 2)
		select {
		case <-r.Context().Done():
			return
		case <-time.After(half):
		}
		b.add(m.Metrics())
		time.Sleep(half)
	}
}

// write rejects an HTTP request.
func (r *refusal) write(w http.ResponseWriter) {
	if r.code == 0 {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		_ = conn.(*net.TCPConn).SetLinger(0) // what is closed now is reset
		conn.Close()
		return
	}
	if r.retryAfter != "" {
		w.Header().Set("Retry-After", r.retryAfter)
	}
	w.WriteHeader(r.code)
	_, _ = io.WriteString(w, r.body) // the status has said it
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
	if g.b.keep {
		data, _ := req.MarshalProto() // of what just was unmarshalled
		g.b.bodies = append(g.b.bodies, data...)
	}
	g.b.mu.Unlock()
	if no := g.b.verdict(); no != nil {
		g.b.turnDown(req.Metrics())
		if no.details != nil {
			_ = grpc.SetTrailer(ctx, metadata.Pairs("grpc-status-details-bin", string(no.details)))
		}
		return pmetricotlp.NewExportResponse(), no.err
	}
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
		if attrs["service.name"] == "" {
			b.others["metrics"]++ // an application's
			continue
		}
		tick := newTick(md, time.Now())
		if !tick.own {
			b.others["self"]++ // what the agent says of itself
			continue
		}
		b.resource = attrs
		b.got[attrs["run"]] = append(b.got[attrs["run"]], tick)
	}
}

// turnDown records what was rejected.
func (b *backend) turnDown(md pmetric.Metrics) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused = append(b.refused, newTick(md, time.Now()))
}

// ticks returns the distinct tick times of a run in order, and the number of duplicates.
func (b *backend) ticks(run string) (list []time.Time, again int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, tick := range b.got[run] {
		list = append(list, tick.time)
	}
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
