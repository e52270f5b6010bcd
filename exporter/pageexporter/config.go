package pageexporter

import (
	"errors"
	"fmt"
	"net"
	"path"
	"regexp"
	"slices"
	"strings"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/confmap"
)

// Config is the configuration of the exporter. The keys of confighttp (endpoint, tls, auth,
// timeouts) are on the same level.
type Config struct {
	HTTP confighttp.ServerConfig `mapstructure:",squash"`

	// Path of the page.
	Path string `mapstructure:"path"`

	// ResourceLabels are the resource attributes that become labels of every series. The hub
	// promotes the same list, so a query gives the same answer on both paths.
	ResourceLabels []string `mapstructure:"resource_labels"`

	// ReadyScope is the instrumentation scope whose absence makes /readyz fail, so that other
	// scopes on the page do not hide its silence. Empty means any scope.
	ReadyScope string `mapstructure:"ready_scope"`

	_ struct{}
}

var _ confmap.Validator = (*Config)(nil)

func createDefaultConfig() component.Config {
	http := confighttp.NewDefaultServerConfig()
	http.NetAddr.Endpoint = "localhost:9400"
	return &Config{
		HTTP:           http,
		Path:           "/metrics",
		ResourceLabels: []string{"host.name", "host.type", "k8s.node.name", "k8s.cluster.name", "cloud.region", "cloud.availability_zone", "rack", simulatedAttribute},
	}
}

// plainPath rejects what http.ServeMux would interpret as a pattern.
var plainPath = regexp.MustCompile(`^(/[A-Za-z0-9._~-]+)+$`)

// Validate implements confmap.Validator.
func (c *Config) Validate() error {
	return errors.Join(c.validateEndpoint(), c.validatePath(), c.validateResourceLabels())
}

func (c *Config) validateEndpoint() error {
	addr := c.HTTP.NetAddr
	if addr.Endpoint == "" {
		return errors.New(`endpoint: must be set, for example "localhost:9400"`)
	}
	if !strings.HasPrefix(string(addr.Transport), "tcp") {
		return nil
	}
	if _, _, err := net.SplitHostPort(addr.Endpoint); err != nil {
		return fmt.Errorf(`endpoint: must be host:port, for example "localhost:9400": %w`, err)
	}
	return nil
}

func (c *Config) validatePath() error {
	if !plainPath.MatchString(c.Path) || path.Clean(c.Path) != c.Path {
		return fmt.Errorf(`path: must be an absolute path of plain characters, for example "/metrics", not %q`, c.Path)
	}
	if c.Path == healthPath || c.Path == readyPath {
		return fmt.Errorf("path: %q is reserved", c.Path)
	}
	return nil
}

func (c *Config) validateResourceLabels() error {
	var errs []error
	var labels []string
	for _, attribute := range c.ResourceLabels {
		label := labelName(attribute)
		switch {
		case label == "" || label == bucketLabel || label == quantileLabel:
			errs = append(errs, fmt.Errorf("resource_labels: %q cannot be a label", attribute))
		case slices.Contains(labels, label):
			errs = append(errs, fmt.Errorf("resource_labels: %q maps to label %s, which already exists", attribute, label))
		}
		labels = append(labels, label)
	}
	return errors.Join(errs...)
}
