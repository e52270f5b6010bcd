//go:build linux

package cli_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gpumeter/gpumeter/internal/await"
)

// Catches an agent that forwards bills, findings or devices that a local user made up, that a web
// page reaches by DNS rebinding, or that a small request fills with memory.
func TestReceiverDoors(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "out")
	a, addresses := startReceiver(t, file)
	post := func(path, host, coding, kind string, body []byte) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addresses[1]+path, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		req.Header.Set("Content-Type", kind)
		req.Header.Set("Content-Encoding", coding)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(text)
	}
	const json, proto = "application/json", "application/x-protobuf"
	metrics := []byte(`{"resourceMetrics":[{"resource":{"attributes":[{"key":"host.name","value":{"stringValue":"victim"}}]},"scopeMetrics":[{"metrics":[` +
		`{"name":"gpu_workload_allocated_time_seconds_total","gauge":{"dataPoints":[{"asInt":"1","attributes":[{"key":"forged","value":{"stringValue":"forged-point"}}]}]}},` +
		`{"name":"app.loss","gauge":{"dataPoints":[{"asInt":"1"}]}}]}]}]}`)
	logs := []byte(`{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"eventName":"gpu.finding","body":{"stringValue":"forged-finding"}},{"eventName":"app.event"}]}]}]}`)

	// A page of another site, whose name now resolves to this machine.
	for _, path := range []string{"/v1/metrics", "/v1/logs", "/v1/traces"} {
		if code, text := post(path, "evil.example:4318", "", json, metrics); code != http.StatusForbidden {
			t.Errorf("%s of a rebound page: %d %s", path, code, text)
		}
	}
	for _, path := range []string{"/", "/metrics", "/healthz", "/readyz"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.url()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "evil.example:9400"
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("GET %s of a rebound page: %s", path, resp.Status)
		}
	}
	if resp, err := http.Post("http://"+addresses[0]+"/opentelemetry.proto.collector.metrics.v1.MetricsService/Export", json, bytes.NewReader(metrics)); err == nil {
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			t.Error("gRPC answers HTTP/1.1, which a web page can send")
		}
	}

	// Bombs: 64 MiB of zeros in a few bytes.
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	_, _ = z.Write(make([]byte, 64<<20))
	_ = z.Close()
	if code, text := post("/v1/metrics", "localhost", "gzip", proto, bomb.Bytes()); code < 400 || code >= 500 {
		t.Errorf("a gzip bomb: %d %s", code, text)
	}
	for coding, body := range map[string][]byte{
		"zstd":   {0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x98, 0x02, 0x00, 0x00}, // a window of 512 MiB, one block of raw bytes
		"snappy": {0xff, 0xff, 0xff, 0xff, 0x0f, 0x00},                   // 4 GiB announced
	} {
		if code, text := post("/v1/metrics", "localhost", coding, proto, body); code != http.StatusBadRequest || !strings.Contains(text, "unsupported") {
			t.Errorf("%s: %d %s", coding, code, text)
		}
	}
	conn, err := grpc.NewClient(addresses[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	send := func(body []byte, head string, options ...grpc.CallOption) codes.Code {
		m := rawMessage(body)
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x", head)
		return status.Code(conn.Invoke(ctx, "/opentelemetry.proto.collector.logs.v1.LogsService/Export", m, &m, append(options, grpc.ForceCodec(rawCodec{}))...))
	}
	if code := send(nil, strings.Repeat("x", 1<<20)); code == codes.OK {
		t.Error("gRPC takes headers of 1 MiB")
	}
	if code := send(make([]byte, 64<<20), "", grpc.UseCompressor("gzip")); code != codes.ResourceExhausted {
		t.Errorf("a gzip bomb over gRPC: %s", code)
	}

	// After all of that the agent still takes what applications may send.
	for path, body := range map[string][]byte{"/v1/metrics": metrics, "/v1/logs": logs} {
		if code, text := post(path, "localhost", "", json, body); code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	var text []byte
	await.NoError(t, func() error {
		var err error
		text, err = os.ReadFile(file)
		for _, want := range []string{`"app.loss"`, `"app.event"`, `"gpumeter.reserved.dropped"`} {
			if err == nil && !bytes.Contains(text, []byte(want)) {
				err = fmt.Errorf("no %s was forwarded", want)
			}
		}
		return err
	})
	for _, forged := range []string{"forged-point", "forged-finding", "victim"} {
		if bytes.Contains(text, []byte(forged)) {
			t.Errorf("the agent forwards the %s", forged)
		}
	}
	dropped := func() int { return strings.Count(a.log.String(), "a name that belongs to gpumeter") }
	await.True(t, "dropped names are logged", func() bool { return dropped() >= 2 })
	a.stop()
	if n := dropped(); n != 2 { // metrics and logs
		t.Errorf("dropped names are logged %d times, want once per signal", n)
	}
}
