package hubexporter

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/exporter/exportertest"
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/gpumeter/gpumeter/internal/hub"
)

// Catches two pipelines that open two stores in one directory, a store closed while in use,
// and a store that stays open.
func TestFactory(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	f := NewFactory()
	cfg := f.CreateDefaultConfig().(*Config)
	cfg.DataDir, cfg.Endpoint = t.TempDir(), address
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a reload
		set := exportertest.NewNopSettings(f.Type())
		set.ID = component.NewID(f.Type())
		metrics, err := f.CreateMetrics(t.Context(), set, cfg)
		if err != nil {
			t.Fatal(err)
		}
		logs, err := f.CreateLogs(t.Context(), set, cfg)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []component.Component{metrics, logs} {
			if err := c.Start(t.Context(), componenttest.NewNopHost()); err != nil {
				t.Fatal(err)
			}
		}
		md := gauge("g", time.Second)
		md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints().At(0).SetTimestamp(stampNow())
		if err := metrics.ConsumeMetrics(t.Context(), md); err != nil {
			t.Error(err)
		}
		if err := metrics.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if err := logs.ConsumeLogs(t.Context(), plog.NewLogs()); err != nil {
			t.Error(err)
		}
		resp, err := http.Get("http://" + address + "/api/v1/query?query=g")
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if !strings.Contains(string(text), `"__name__":"g"`) {
			t.Errorf("%s", text)
		}
		if err := logs.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	}
	s, err := hub.Open(cfg.DataDir, hub.Options{})
	if err != nil {
		t.Fatalf("it is still open: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Catches settings whose effect differs from their meaning.
func TestConfig(t *testing.T) {
	for _, c := range []struct {
		set  func(*Config)
		want string
	}{
		{func(*Config) {}, ""},
		{func(c *Config) { c.Retention = time.Minute }, "retention"},
		{func(c *Config) { c.MaxBytes = -1 }, "max_bytes"},
		{func(c *Config) { c.ResourceLabels = []string{"a.b", "a_b"} }, "already exists"},
		{func(c *Config) { c.ResourceLabels = []string{"le"} }, "cannot be a label"},
	} {
		cfg := createDefaultConfig().(*Config)
		c.set(cfg)
		err := cfg.Validate()
		if got := fmt.Sprint(err); (err == nil) != (c.want == "") || !strings.Contains(got, c.want) && c.want != "" {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}
