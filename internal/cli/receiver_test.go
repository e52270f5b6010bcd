//go:build linux

package cli_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip" // what is compressed is bounded, too
	"google.golang.org/grpc/status"

	"github.com/gpumeter/gpumeter/internal/await"
)

// deepLogs returns a request of at most size bytes with a body that is nested as deeply as
// fits, by the fields of one level from the inside.
func deepLogs(size int, level ...byte) []byte {
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
		for _, field := range level {
			wrap(field)
		}
	}
	for _, field := range []byte{5, 2, 2, 1} { // LogRecord.body, ScopeLogs, ResourceLogs, request
		wrap(field)
	}
	return buf[pos:]
}

// startReceiver starts an agent with --otlp-receiver that writes to a file, and returns the
// addresses of gRPC and HTTP. It returns when the agent accepts telemetry.
func startReceiver(t *testing.T, file string) (*agent, [2]string) {
	t.Helper()
	r := run(t, "agent", "--print-config", "--otlp-receiver", "--otlp-file", file, "--simulate", "h100", "--host-name", "n1",
		"--listen", "localhost:0", "--state-dir", "", "--interval", "100ms", "--no-cloud")
	if r.code != 0 {
		t.Fatal(r.stderr)
	}
	config, addresses := r.stdout, [2]string{}
	for i, fixed := range []string{"localhost:4317", "localhost:4318"} { // may be another's here
		l, err := net.Listen("tcp", loopback()+":0")
		if err != nil {
			t.Fatal(err)
		}
		addresses[i] = l.Addr().String()
		l.Close()
		if !strings.Contains(config, fixed) {
			t.Fatalf("no %s in the configuration", fixed)
		}
		config = strings.ReplaceAll(config, fixed, addresses[i])
	}
	a := startWith(t, nil, "--config", write(t, "config.yaml", config))
	await.NoError(t, func() error { // the first tick names the machine
		a.running()
		resp, err := http.Get(a.url() + "/readyz")
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	})
	return a, addresses
}

// The most deeply nested request that --otlp-receiver accepts must not crash the agent, and one
// that would must be rejected, however it is compressed: OTLP is decoded recursively.
func TestReceiverOfDeepRequests(t *testing.T) {
	t.Parallel()
	a, addresses := startReceiver(t, filepath.Join(t.TempDir(), "out"))
	conn, err := grpc.NewClient(addresses[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	overGRPC := func(body []byte, options ...grpc.CallOption) error {
		m := rawMessage(body)
		return conn.Invoke(t.Context(), "/opentelemetry.proto.collector.logs.v1.LogsService/Export", m, &m, append(options, grpc.ForceCodec(rawCodec{}))...)
	}
	overHTTP := func(body []byte, coding string) int {
		t.Helper()
		if coding == "gzip" {
			var b bytes.Buffer
			z := gzip.NewWriter(&b)
			_, _ = z.Write(body)
			_ = z.Close()
			body = b.Bytes()
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addresses[1]+"/v1/logs", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-protobuf")
		req.Header.Set("Content-Encoding", coding)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	const limit = 4 << 20
	fits, large := deepLogs(limit, 1, 5), deepLogs(4*limit, 1, 5) // lists
	codings, options := []string{"", "gzip"}, [][]grpc.CallOption{nil, {grpc.UseCompressor("gzip")}}
	if testing.Short() { // a second is what one request takes
		codings, options = codings[1:], options[:1]
	}
	for _, coding := range codings {
		if code := overHTTP(fits, coding); code != http.StatusOK {
			t.Errorf("%q over HTTP: %d", coding, code)
		}
		if code := overHTTP(large, coding); code == http.StatusOK {
			t.Errorf("%q over HTTP: 16 MiB are taken", coding)
		}
	}
	fits, large = deepLogs(limit, 2, 1, 6), deepLogs(4*limit, 2, 1, 6) // maps
	for _, o := range options {
		if err := overGRPC(fits, o...); err != nil {
			t.Errorf("over gRPC: %v", err)
		}
		if err := overGRPC(large, o...); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("over gRPC: 16 MiB: %v", err)
		}
	}
	a.stop() // which it must be there for
}

// rawCodec sends bytes as they are.
type (
	rawCodec   struct{}
	rawMessage []byte
)

func (rawCodec) Marshal(v any) ([]byte, error)   { return v.(rawMessage), nil }
func (rawCodec) Unmarshal(b []byte, v any) error { *v.(*rawMessage) = b; return nil }
func (rawCodec) Name() string                    { return "proto" }
