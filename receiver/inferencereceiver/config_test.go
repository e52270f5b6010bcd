package inferencereceiver

import (
	"testing"
	"time"
)

// Catches a configuration that cannot work, and a password in an error.
func TestValidate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		change func(*Config)
		want   string
	}{
		{func(*Config) {}, ""},
		{func(c *Config) { c.Interval = 0 }, "interval must be at least 1s, is 0s"},
		{func(c *Config) { c.Timeout = time.Minute }, "timeout must be above 0 and at most the interval, is 1m0s"},
		{func(c *Config) { c.Targets = []TargetConfig{{URL: "localhost:8000/metrics"}} }, `targets::0: "localhost:8000/metrics" is not an http:// or https:// address`},
		{func(c *Config) { c.Targets = []TargetConfig{{URL: "http://localhost:8000"}} }, "targets::0: http://localhost:8000 has no path, such as /metrics"},
		{func(c *Config) { c.Targets = []TargetConfig{{URL: "http://u:geheim@localhost:8000/metrics"}} }, "targets::0: the address has a password, which belongs under headers"},
		{func(c *Config) { c.Targets = []TargetConfig{{URL: "ftp://u:geheim@h/"}} }, `targets::0: "ftp://u:xxxxx@h/" is not an http:// or https:// address`},
		{func(c *Config) { c.Targets = []TargetConfig{{URL: "http://h/m"}, {URL: "http://h/m"}} }, "targets::1: http://h/m is listed twice"},
		{func(c *Config) { c.Targets = []TargetConfig{{URL: "http://h/m", Interval: time.Millisecond}} }, "targets::0: interval must be at least 1s, is 1ms"},
	} {
		cfg := createDefaultConfig().(*Config)
		tt.change(cfg)
		got := ""
		if err := cfg.Validate(); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}
