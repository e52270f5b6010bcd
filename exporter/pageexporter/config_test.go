package pageexporter

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/confmap/confmaptest"
)

// Defaults are documented, and a configured list must replace the default list instead of
// overwriting its first elements.
func TestConfigDefaultsAndFile(t *testing.T) {
	type keys struct {
		Endpoint, Path string
		ResourceLabels []string
	}
	of := func(c *Config) keys { return keys{c.HTTP.NetAddr.Endpoint, c.Path, c.ResourceLabels} }

	cfg := createDefaultConfig().(*Config)
	want := keys{"localhost:9400", "/metrics", []string{"host.name", "host.type", "k8s.node.name", "k8s.cluster.name", "cloud.region", "cloud.availability_zone", "rack", "gpumeter.simulated"}}
	if diff := cmp.Diff(want, of(cfg)); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	if err := cfg.Validate(); err != nil {
		t.Errorf("defaults: %v", err)
	}

	conf, err := confmaptest.LoadConf(filepath.Join("testdata", "config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := conf.Unmarshal(cfg); err != nil {
		t.Fatal(err)
	}
	want = keys{"0.0.0.0:9500", "/gpu/metrics", []string{"host.name"}}
	if diff := cmp.Diff(want, of(cfg)); diff != "" {
		t.Errorf("file (-want +got):\n%s", diff)
	}
}

// A wrong value must be rejected before the start with a message that names its key. Some paths
// would make http.ServeMux panic.
func TestConfigValidate(t *testing.T) {
	f := func(change func(*Config), want string) {
		t.Helper()
		cfg := createDefaultConfig().(*Config)
		change(cfg)
		err := cfg.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("Validate() = %v, want %q", err, want)
		}
	}
	f(func(c *Config) { c.HTTP.NetAddr.Endpoint = "" }, "endpoint: must be set")
	f(func(c *Config) { c.HTTP.NetAddr.Endpoint = "9400" }, "endpoint: must be host:port")
	f(func(c *Config) { c.HTTP.NetAddr.Endpoint = ":9400" }, "")
	f(func(c *Config) { c.HTTP.NetAddr.Endpoint, c.HTTP.NetAddr.Transport = "/run/page.sock", "unix" }, "")
	f(func(c *Config) { c.Path = "/gpu/metrics" }, "")
	for _, path := range []string{"", "/", "metrics", "/metrics/", "/{x}", "/a b", "/a/../b", "/healthz", "/readyz"} {
		f(func(c *Config) { c.Path = path }, "path: ")
	}
	f(func(c *Config) { c.ResourceLabels = nil }, "")
	for _, attribute := range []string{"", "__name__", "___", "le", "quantile"} {
		f(func(c *Config) { c.ResourceLabels = []string{attribute} }, "resource_labels: ")
	}
	f(func(c *Config) { c.ResourceLabels = []string{"a.b", "a_b"} }, `resource_labels: "a_b" maps to label a_b, which already exists`)
}
