package inferencereceiver

import (
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/config/configopaque"
	"go.opentelemetry.io/collector/config/configtls"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/inference"
)

// Catches a target that is read without its certificates or headers, and one that is read although its certificate is
// of somebody else.
func TestTLSAndHeaders(t *testing.T) {
	t.Parallel()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer sesame" || r.Host != "models.example.com" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, "vllm:num_requests_running{model_name=\"m\"} 1\n")
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	ca := configtls.ClientConfig{Config: configtls.Config{CAPem: configopaque.String(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))}}
	headers := map[string]configopaque.String{"Authorization": "Bearer sesame", "Host": "models.example.com"}
	cfg := createDefaultConfig().(*Config)
	cfg.Timeout = cfg.Interval // the machine may be slow
	cfg.Targets = []TargetConfig{
		{URL: s.URL + "/a", TLS: ca, Headers: headers}, {URL: s.URL + "/b", TLS: ca}, {URL: s.URL + "/c", Headers: headers}, {URL: s.URL + "/d", TLS: ca, Headers: headers},
	}
	m, sink := start(t, cfg, nil)
	m.tick(0)
	await.True(t, "all batches", func() bool { return len(sink.AllMetrics()) == len(cfg.Targets) })
	var got []string
	for _, md := range sink.AllMetrics() {
		for _, l := range lines(t, md) {
			if name, rest, _ := strings.Cut(l, "{engine="+s.URL); name == inference.Up.Name {
				got = append(got, rest)
			}
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"/a} 1", "/b} 0", "/c} 0", "/d} 1"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
