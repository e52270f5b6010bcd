package workloadprocessor

import (
	"strings"
	"testing"
)

// A configuration mistake must be reported.
func TestValidate(t *testing.T) {
	f := func(change func(*Config), want string) {
		t.Helper()
		c := createDefaultConfig().(*Config)
		change(c)
		err := c.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want %q", err, want)
		}
	}
	f(func(*Config) {}, "")
	f(func(c *Config) { c.Attributes.PID = nil }, "")
	f(func(c *Config) { c.Mode = "Node" }, `mode: must be node or gateway, not "Node"`)
	f(func(c *Config) { c.Expiry = 0 }, "expiry: must be positive")
	f(func(c *Config) { c.MaxDevices = 0 }, "max_devices: must be positive")
	f(func(c *Config) { c.Attributes.PID = []string{""} }, "must not be empty")
	f(func(c *Config) { c.Attributes.Index = append(c.Attributes.Index, "UUID") }, `"UUID" is listed twice`)
}
