package hubexporter

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	rpc "google.golang.org/grpc/status"

	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/hub/access"
	"github.com/gpumeter/gpumeter/internal/hub/events"
)

func gauge(name string, ago time.Duration) pmetric.Metrics {
	md, ms := node(nil)
	p := add(ms, name, "").SetEmptyGauge().DataPoints().AppendEmpty()
	p.SetTimestamp(at(ago))
	p.SetDoubleValue(1)
	return md
}

func proto(t *testing.T, md pmetric.Metrics) []byte {
	t.Helper()
	b, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalProto()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func zipped(t *testing.T, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// nested returns a request of about size bytes whose only attribute is a deeply nested list.
func nested(size int) []byte {
	buf := make([]byte, size)
	pos := len(buf)
	wrap := func(field byte) {
		head := []byte{field<<3 | 2}
		n := uint(len(buf) - pos)
		for ; n >= 0x80; n >>= 7 {
			head = append(head, byte(n)|0x80)
		}
		head = append(head, byte(n))
		pos -= len(head)
		copy(buf[pos:], head)
	}
	for pos > 100 {
		wrap(1) // ArrayValue.values
		wrap(5) // AnyValue.array_value
	}
	for _, field := range []byte{2, 1, 1, 1} { // KeyValue.value, Resource.attributes, ResourceMetrics.resource, request
		wrap(field)
	}
	return buf[pos:]
}

// Catches a response that makes a sender drop retryable data or retry permanent failures, and a
// body that kills the process.
func TestHTTP(t *testing.T) {
	s := openStore(t)
	server := httptest.NewServer(NewOTLP(NewWriter(s, nil), s.Refusals()).Handler())
	defer server.Close()
	post := func(path, kind, coding string, body []byte) (int, []byte) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+path, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", kind)
		r.Header.Set("Content-Encoding", coding)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, text
	}
	good := proto(t, gauge("good", time.Second))
	bomb := zipped(t, make([]byte, MaxBody+1<<20))
	deepJSON := []byte(strings.Repeat(`{"a":[`, 1000) + strings.Repeat(`]}`, 1000))
	for _, c := range []struct {
		name, kind, coding string
		body               []byte
		want               int
		why                hub.Reason
	}{
		{"plain", protobuf, "", good, 200, -1},
		{"gzip", protobuf, "gzip", zipped(t, good), 200, -1},
		{"a kind with parameters", "application/x-protobuf; charset=utf-8", "", good, 200, -1},
		{"no OTLP", protobuf, "", []byte("hello"), 400, hub.Malformed},
		{"no gzip", protobuf, "gzip", good, 400, hub.Malformed},
		{"a coding we do not know", protobuf, "br", good, 400, hub.Malformed},
		{"a form", "application/x-www-form-urlencoded", "", good, 415, hub.Malformed},
		{"too long", protobuf, "", make([]byte, MaxBody+1), 413, hub.BodySize},
		{"a bomb", protobuf, "gzip", bomb, 413, hub.BodySize},
		{"too deep", protobuf, "", nested(1 << 20), 400, hub.Malformed},
		{"too deep behind a group", protobuf, "", append([]byte{0xa3, 0x06, 0xa4, 0x06}, nested(15<<20)...), 400, hub.Malformed},
		{"too many parts", protobuf, "", bytes.Repeat([]byte{0x0a, 0x00}, maxFields+1), 400, hub.Malformed},
		{"too deep in JSON", jsonType, "", deepJSON, 400, hub.Malformed},
	} {
		before := uint64(0)
		if c.why >= 0 {
			before = s.Refusals().Count(c.why)
		}
		if code, text := post("/v1/metrics", c.kind, c.coding, c.body); code != c.want {
			t.Errorf("%s: %d %.200q, want %d", c.name, code, text, c.want)
		}
		if c.why >= 0 && s.Refusals().Count(c.why) != before+1 {
			t.Errorf("%s is not counted", c.name)
		}
	}
	both := gauge("old", 50*time.Hour)
	gauge("new", time.Second).ResourceMetrics().MoveAndAppendTo(both.ResourceMetrics())
	code, text := post("/v1/metrics", protobuf, "", proto(t, both))
	answer := pmetricotlp.NewExportResponse()
	if err := answer.UnmarshalProto(text); err != nil || code != 200 || answer.PartialSuccess().RejectedDataPoints() != 1 ||
		!strings.Contains(answer.PartialSuccess().ErrorMessage(), "old has a timestamp of") {
		t.Errorf("partly too old: %d %q %v", code, text, err)
	}
	if code, text := post("/v1/metrics", protobuf, "", proto(t, gauge("ahead", -24*time.Hour))); code != 503 {
		t.Errorf("a wrong clock: %d %q", code, text)
	}
	if code, text := post("/v1/metrics", jsonType, "", []byte(`{"resourceMetrics":[]}`)); code != 200 || string(text) != `{"partialSuccess":{}}` {
		t.Errorf("JSON: %d %q", code, text)
	}
}

// Catches logs that are lost or duplicated, or lose their resource.
func TestLogs(t *testing.T) {
	s := openStore(t)
	server := httptest.NewServer(NewOTLP(NewWriter(s, nil), s.Refusals()).Handler())
	defer server.Close()
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	rl.Resource().Attributes().PutStr("host.name", "node-a")
	rl.Resource().Attributes().PutStr("both", "resource")
	rec := rl.ScopeLogs().AppendEmpty().LogRecords().AppendEmpty()
	rec.SetObservedTimestamp(at(time.Second))
	rec.SetEventName("gpu.xid")
	rec.SetSeverityNumber(plog.SeverityNumberError2)
	rec.Body().SetStr("it fell off the bus")
	rec.Attributes().PutInt("gpu.xid.code", 79)
	rec.Attributes().PutStr("both", "record")
	body, err := plogotlp.NewExportRequestFromLogs(ld).MarshalProto()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r, err := http.Post(server.URL+"/v1/logs", protobuf, bytes.NewReader(body))
		if err != nil || r.StatusCode != http.StatusOK {
			t.Fatal(r, err)
		}
		r.Body.Close()
	}
	got, err := s.Events(t.Context(), events.Query{From: now.Add(-time.Hour), Attributes: map[string]string{"gpu.xid.code": "79"}})
	if err != nil || len(got) != 1 || got[0].Attributes["both"] != "record" || got[0].Attributes["host.name"] != "node-a" || got[0].Severity != "ERROR" || got[0].Name != "gpu.xid" {
		t.Errorf("%+v %v", got, err)
	}
}

// Catches gRPC that accepts what HTTP rejects, skips authentication, or dies of a nested
// message.
func TestGRPC(t *testing.T) {
	s := openStore(t)
	tokens, err := access.ParseTokens([]byte("write write-0123456789\nread read-0123456789ab\n"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- NewOTLP(NewWriter(s, nil), s.Refusals()).Serve(ctx, l, nil, tokens) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.UseCompressor("gzip")))
	if err != nil {
		t.Fatal(err)
	}
	client := pmetricotlp.NewGRPCClient(conn)
	send := func(token string, md pmetric.Metrics) (pmetricotlp.ExportResponse, codes.Code) {
		ctx := t.Context()
		if token != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
		}
		r, err := client.Export(ctx, pmetricotlp.NewExportRequestFromMetrics(md))
		return r, rpc.Code(err)
	}
	for token, want := range map[string]codes.Code{"": codes.Unauthenticated, "wrong": codes.Unauthenticated, "read-0123456789ab": codes.PermissionDenied, "write-0123456789": codes.OK} {
		if _, got := send(token, gauge("g", time.Second)); got != want {
			t.Errorf("token %q: %s, want %s", token, got, want)
		}
	}
	if r, code := send("write-0123456789", gauge("old", 50*time.Hour)); code != codes.OK || r.PartialSuccess().RejectedDataPoints() != 1 {
		t.Errorf("too old: %s %d", code, r.PartialSuccess().RejectedDataPoints())
	}
	if _, code := send("write-0123456789", gauge("ahead", -24*time.Hour)); code != codes.Unavailable {
		t.Errorf("a wrong clock: %s", code)
	}
	deep := rawMessage(nested(1 << 20))
	err = conn.Invoke(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer write-0123456789"),
		"/opentelemetry.proto.collector.metrics.v1.MetricsService/Export", deep, &deep, grpc.ForceCodec(rawCodec{}))
	if rpc.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "nested too deeply") {
		t.Errorf("too deep: %v", err)
	}
	long := rawMessage(make([]byte, MaxBody+1)) // a few KiB as it is sent
	err = conn.Invoke(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer write-0123456789"),
		"/opentelemetry.proto.collector.metrics.v1.MetricsService/Export", long, &long, grpc.ForceCodec(rawCodec{}))
	if rpc.Code(err) != codes.ResourceExhausted {
		t.Errorf("too long: %v", err)
	}
	_ = conn.Close()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for why, want := range map[hub.Reason]uint64{hub.Unauthorized: 2, hub.Forbidden: 1, hub.Malformed: 1, hub.BodySize: 1} {
		if got := s.Refusals().Count(why); got != want {
			t.Errorf("reason %d: %d are counted, want %d", why, got, want)
		}
	}
}

// Catches a sender that never completes its request and is not counted, or is told not to
// retry.
func TestSlowBody(t *testing.T) {
	s := openStore(t)
	o := NewOTLP(NewWriter(s, nil), s.Refusals())
	o.pace.Grace = 100 * time.Millisecond
	server := httptest.NewServer(o.Handler())
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "POST /v1/metrics HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\nContent-Length: 100\r\n\r\nhalf"); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if n := s.Refusals().Count(hub.BodyTimeout); answer.StatusCode != http.StatusServiceUnavailable || n != 1 {
		t.Errorf("%d, %d are counted", answer.StatusCode, n)
	}
}

// rawCodec sends bytes as they are.
type (
	rawCodec   struct{}
	rawMessage []byte
)

func (rawCodec) Marshal(v any) ([]byte, error)   { return v.(rawMessage), nil }
func (rawCodec) Unmarshal(b []byte, v any) error { *v.(*rawMessage) = b; return nil }
func (rawCodec) Name() string                    { return "proto" }
