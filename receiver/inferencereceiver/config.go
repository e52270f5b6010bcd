package inferencereceiver

import (
	"errors"
	"fmt"
	"net/url"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configopaque"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/config/configtls"

	"github.com/gpumeter/gpumeter/internal/inference"
)

// Config is the configuration under receivers::inference.
type Config struct {
	// Discover finds the engines of this machine: it needs the gpu extension, and the host's PID namespace.
	Discover bool `mapstructure:"discover"`
	// Targets are the metrics pages of further engines.
	Targets []TargetConfig `mapstructure:"targets"`
	// Interval and Timeout are those of found engines, and of targets without their own.
	Interval time.Duration `mapstructure:"interval"`
	Timeout  time.Duration `mapstructure:"timeout"`
	// TenantLabels are the labels of pages that say who asked, in the order in which they are looked for.
	TenantLabels []string `mapstructure:"tenant_labels"`
	// Proc is where the host's procfs is mounted.
	Proc string `mapstructure:"proc"`
	// Routing serves what decides which engine gets the next request. It has the keys of confighttp.
	Routing configoptional.Optional[confighttp.ServerConfig] `mapstructure:"routing"`
}

// TargetConfig is the metrics page of an engine.
type TargetConfig struct {
	// URL is its address, such as http://localhost:8000/metrics.
	URL string `mapstructure:"url"`
	// Interval is how often the page is read. 0: that of the receiver.
	Interval time.Duration `mapstructure:"interval"`
	// Timeout is how long a reading may take. 0: that of the receiver.
	Timeout time.Duration `mapstructure:"timeout"`
	// TLS has certificates for https.
	TLS configtls.ClientConfig `mapstructure:"tls"`
	// Headers are sent with each request, such as Authorization.
	Headers map[string]configopaque.String `mapstructure:"headers"`
}

// Validate implements component.ConfigValidator.
func (c *Config) Validate() error {
	errs := []error{valid("", c.Interval, c.Timeout)}
	known := map[string]bool{}
	for i := range c.Targets {
		t, at := &c.Targets[i], fmt.Sprintf("targets::%d: ", i)
		u, err := url.Parse(t.URL)
		switch {
		case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
			errs = append(errs, fmt.Errorf("%s%q is not an http:// or https:// address", at, redacted(t.URL)))
		case u.User != nil:
			errs = append(errs, fmt.Errorf("%sthe address has a password, which belongs under headers", at))
		case u.Path == "" || u.Path == "/":
			errs = append(errs, fmt.Errorf("%s%s has no path, such as /metrics", at, t.URL))
		case known[t.URL]:
			errs = append(errs, fmt.Errorf("%s%s is listed twice", at, t.URL))
		}
		known[t.URL] = true
		errs = append(errs, valid(at, c.interval(t), c.timeout(t)))
	}
	return errors.Join(errs...)
}

func valid(at string, interval, timeout time.Duration) error {
	if interval < time.Second {
		return fmt.Errorf("%sinterval must be at least 1s, is %s", at, interval)
	}
	if timeout <= 0 || timeout > interval {
		return fmt.Errorf("%stimeout must be above 0 and at most the interval, is %s", at, timeout)
	}
	return nil
}

// redacted returns an address that is invalid, without what may be a password.
func redacted(text string) string {
	if u, err := url.Parse(text); err == nil {
		return u.Redacted()
	}
	return "(not shown)"
}

func (c *Config) interval(t *TargetConfig) time.Duration {
	if t.Interval != 0 {
		return t.Interval
	}
	return c.Interval
}

func (c *Config) timeout(t *TargetConfig) time.Duration {
	if t.Timeout != 0 {
		return t.Timeout
	}
	return min(c.Timeout, c.interval(t))
}

func createDefaultConfig() component.Config {
	routing := confighttp.NewDefaultServerConfig()
	routing.NetAddr.Endpoint = "localhost:9402"
	return &Config{
		Discover: true, Interval: 10 * time.Second, Timeout: 2 * time.Second, Proc: "/proc", TenantLabels: inference.Tenants(),
		Routing: configoptional.Default(routing), // not served unless it is configured
	}
}
