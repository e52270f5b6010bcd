//go:build linux

package cli_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/gpumeter/gpumeter/exporter/hubexporter"
	"github.com/gpumeter/gpumeter/exporter/pageexporter"
	"github.com/gpumeter/gpumeter/internal/await"
)

// get returns what the hub answers.
func (h *hubProcess) get(path, token string) (int, string) {
	h.t.Helper()
	r, err := http.NewRequestWithContext(h.t.Context(), http.MethodGet, h.url+path, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		h.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// Catches TLS flags without effect: a hub that serves clear text, or that accepts clients
// without a certificate or with one from an unknown CA, over either protocol.
func TestHubTLS(t *testing.T) {
	t.Parallel()
	ca, stranger := newAuthority(t), newAuthority(t)
	cert, key := ca.issue()
	own := func(a *authority) []tls.Certificate {
		pair, err := tls.LoadX509KeyPair(a.issue())
		if err != nil {
			t.Fatal(err)
		}
		return []tls.Certificate{pair}
	}
	trust := x509.NewCertPool()
	trust.AddCert(ca.cert)
	const address = "127.0.0.1:0" // for which the certificate is
	args := []string{"hub", "--listen", address, "--listen-grpc", address, "--tls-cert", cert, "--tls-key", key, "--data-dir"}

	// ask returns whether the hub answers over HTTP, and what it answers over gRPC.
	ask := func(h *hubProcess, c *tls.Config) (bool, error) {
		t.Helper()
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: c}}
		defer client.CloseIdleConnections()
		resp, err := client.Post(h.url+"/v1/metrics", "application/x-protobuf", bytes.NewReader(request(t, time.Now(), 1, 1)))
		ok := err == nil && resp.StatusCode == http.StatusOK
		if err == nil {
			resp.Body.Close()
		}
		conn, err := grpc.NewClient(h.grpcAddress(), grpc.WithTransportCredentials(credentials.NewTLS(c)))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		m := rawMessage(request(t, time.Now().Add(time.Millisecond), 1, 1))
		return ok, conn.Invoke(t.Context(), "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export", m, &m, grpc.ForceCodec(rawCodec{}))
	}
	check := func(h *hubProcess, what string, c *tls.Config, want bool) {
		t.Helper()
		ok, err := ask(h, c)
		if ok != want || (err == nil) != want || !want && status.Code(err) != codes.Unavailable {
			t.Errorf("%s: over HTTP %t, over gRPC %v, want %t", what, ok, err, want)
		}
	}
	plain := startServer(t, append(args, t.TempDir())...)
	check(plain, "TLS", &tls.Config{RootCAs: trust}, true)
	check(plain, "who does not trust it", &tls.Config{RootCAs: x509.NewCertPool()}, false)
	if resp, err := http.Get(strings.Replace(plain.url, "https", "http", 1) + "/healthz"); err == nil && resp.StatusCode == http.StatusOK {
		t.Error("it answers without TLS, too")
	}
	mutual := startServer(t, append(args, t.TempDir(), "--client-ca", ca.file)...)
	check(mutual, "a client with a certificate", &tls.Config{RootCAs: trust, Certificates: own(ca)}, true)
	check(mutual, "one without", &tls.Config{RootCAs: trust}, false)
	check(mutual, "one with a stranger's", &tls.Config{RootCAs: trust, Certificates: own(stranger)}, false)

	// An agent as users start it gets its readings in.
	clientCert, clientKey := ca.issue()
	startWith(t, nil, "--listen", "localhost:0", "--simulate", "h100", "--interval", "100ms", "--no-cloud",
		"--otlp-endpoint", mutual.url, "--otlp-ca", ca.file, "--otlp-cert", clientCert, "--otlp-key", clientKey)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trust, Certificates: own(ca)}}}
	await.NoError(t, func() error {
		resp, err := client.Get(mutual.url + "/api/v1/query?query=count(gpu_up)")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || !strings.Contains(string(text), `"value"`) {
			return fmt.Errorf("no device: %s %w", text, err)
		}
		return nil
	})
}

// grpcAddress returns where the hub takes gRPC.
func (h *hubProcess) grpcAddress() string {
	h.t.Helper()
	_, rest, _ := strings.Cut(h.log.String(), `"Accepting OTLP over gRPC","address":"`)
	address, _, ok := strings.Cut(rest, `"`)
	if !ok {
		h.t.Fatalf("no address of gRPC in %s", h.log)
	}
	return address
}

// Catches a page or a query that is not answered from --backend, a hub that accepts samples it
// cannot store, and rejections that are not counted.
func TestHubBackend(t *testing.T) {
	t.Parallel()
	secret := write(t, "tokens", "read read-0123456789abcdef\nwrite write-0123456789abcdef\n")
	store := startHub(t, t.TempDir(), "--tokens", secret)
	startWith(t, []string{"OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer write-0123456789abcdef"},
		"--listen", "localhost:0", "--simulate", "h100", "--interval", "100ms", "--no-cloud", "--otlp-endpoint", store.url)
	front := startServer(t, "hub", "--listen", "localhost:0", "--backend", store.url, "--token-file", write(t, "token", "read-0123456789abcdef\n"))
	await.NoError(t, func() error {
		if code, text := front.get("/api/v1/query?query=count(gpu_up)", ""); code != http.StatusOK || !strings.Contains(text, `"value"`) {
			return fmt.Errorf("%d %s", code, text)
		}
		if code, text := front.get("/api/page/fleet", ""); code != http.StatusOK || !strings.Contains(text, "H100") {
			return fmt.Errorf("page: %d %.300s", code, text)
		}
		return nil
	})
	if code, text := front.post("/v1/metrics", request(t, time.Now(), 1, 1), ""); code == http.StatusOK {
		t.Errorf("it takes samples: %d %s", code, text)
	}
	if code, text := front.get("/metrics", ""); code != http.StatusOK || !strings.Contains(text, `gpumeter_hub_refused_total{reason="forbidden"} 0`) {
		t.Errorf("/metrics: %d %s", code, text)
	} else if !strings.Contains(text, "\ngpumeter_build_info{") {
		t.Errorf("no build info in\n%s", text)
	}
	r := run(t, "hub", "--listen", "localhost:0", "--backend", store.url)
	if r.code != 1 || !strings.Contains(r.stderr, "--backend") || !strings.Contains(r.stderr, "401") {
		t.Errorf("without a token: %d %s", r.code, r.stderr)
	}
}

// Catches a query that has one answer on the agent's page and another in the hub, because
// the two make labels of other attributes; and an instance type or a rack that no price or
// page can see.
func TestHubLabelsAreThePages(t *testing.T) {
	t.Parallel()
	page := pageexporter.NewFactory().CreateDefaultConfig().(*pageexporter.Config).ResourceLabels
	if diff := cmp.Diff(page, hubexporter.DefaultResourceLabels()); diff != "" {
		t.Error(diff)
	}
	h := startHub(t, t.TempDir(), "--resource-label", "k8s.node.label.pool")
	a := startWith(t, []string{"OTEL_RESOURCE_ATTRIBUTES=k8s.node.label.pool=spot,rack=r1,host.type=p5.48xlarge,cloud.region=eu-1,cloud.availability_zone=eu-1a"},
		"--listen", "localhost:0", "--simulate", "h100", "--interval", "100ms", "--no-cloud", "--otlp-endpoint", h.url)
	const query = `count(gpu_workload_allocated_time_seconds_total{k8s_node_label_pool="spot",rack="r1",host_type="p5.48xlarge",cloud_region="eu-1",cloud_availability_zone="eu-1a"})`
	await.NoError(t, func() error {
		code, text := h.get("/api/v1/query?query="+url.QueryEscape(query), "")
		if code != http.StatusOK || !strings.Contains(text, `"value"`) {
			return fmt.Errorf("%d %s", code, text)
		}
		resp, err := http.Get(a.url() + "/metrics")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		all, err := io.ReadAll(resp.Body)
		if err != nil || !regexp.MustCompile(`(?m)^gpu_up\{cloud_availability_zone="eu-1a",cloud_region="eu-1",.*host_type="p5.48xlarge",.*rack="r1"\} 1$`).Match(all) {
			return fmt.Errorf("not on the page: %.1000s %w", all, err)
		}
		return nil
	})
}

// Catches a refusal that is not counted where it can be alerted on, and tokens that hold
// after they were taken out of the file, or not after they were put in.
func TestHubCountsAndTokensChange(t *testing.T) {
	t.Parallel()
	file := write(t, "tokens", "read read-0123456789abcdef\nwrite write-0123456789abcdef\n")
	h := startHub(t, t.TempDir(), "--tokens", file)
	body := request(t, time.Now(), 1, 1)
	h.post("/v1/metrics", body, "wrong")
	h.post("/v1/metrics", body, "read-0123456789abcdef")
	h.post("/v1/metrics", make([]byte, 17<<20), "write-0123456789abcdef")
	h.post("/v1/metrics", []byte("nonsense"), "write-0123456789abcdef")
	h.get("/api/v1/query?timeout=0&query=rate(up[5m])", "read-0123456789abcdef")
	_, text := h.get("/metrics", "read-0123456789abcdef")
	for _, reason := range []string{"unauthorized", "forbidden", "body_size", "malformed", "query_timeout"} {
		if want := fmt.Sprintf("gpumeter_hub_refused_total{reason=%q} 1\n", reason); !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}

	put := func(text string) {
		t.Helper()
		other := filepath.Join(filepath.Dir(file), "new")
		if err := os.WriteFile(other, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(other, file); err != nil {
			t.Fatal(err)
		}
	}
	put("read\n")
	await.NoError(t, func() error {
		if !strings.Contains(h.log.String(), "the hub keeps the current tokens") {
			return fmt.Errorf("nothing is said of a file that is wrong")
		}
		return nil
	})
	if code, _ := h.get("/metrics", "read-0123456789abcdef"); code != http.StatusOK {
		t.Errorf("a wrong file locks out: %d", code)
	}
	put("read other-0123456789abcdef\n")
	await.NoError(t, func() error {
		before, _ := h.get("/metrics", "read-0123456789abcdef")
		after, _ := h.get("/metrics", "other-0123456789abcdef")
		if before != http.StatusUnauthorized || after != http.StatusOK {
			return fmt.Errorf("%d, %d", before, after)
		}
		return nil
	})
}
