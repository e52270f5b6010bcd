package hostreceiver

import (
	"fmt"
	"path/filepath"
	"time"

	"go.opentelemetry.io/collector/component"

	"github.com/gpumeter/gpumeter/internal/host"
	"github.com/gpumeter/gpumeter/receiver/hostreceiver/internal/metadata"
)

// Config is the configuration under receivers::host.
type Config struct {
	metadata.MetricsBuilderConfig `mapstructure:",squash"`

	// Interval is the time between two readings.
	Interval time.Duration `mapstructure:"interval"`
	// Root is where the host's file system is mounted in a container.
	Root string `mapstructure:"root"`
	// HostName is reported as host.name; empty: the gpu extension's name, else the kernel's.
	HostName string `mapstructure:"host_name"`
	// Resource has additional resource attributes, such as k8s.cluster.name, besides those of the
	// gpu extension.
	Resource map[string]string `mapstructure:"resource"`
}

// Validate implements component.ConfigValidator.
func (c *Config) Validate() error {
	if c.Interval < 100*time.Millisecond {
		return fmt.Errorf("interval must be at least 100ms, is %s", c.Interval)
	}
	return nil
}

func (c *Config) reader() host.Reader {
	return host.Reader{Proc: filepath.Join("/", c.Root, "proc"), Cgroup: filepath.Join("/", c.Root, "sys/fs/cgroup")}
}

func createDefaultConfig() component.Config {
	return &Config{MetricsBuilderConfig: metadata.NewDefaultMetricsBuilderConfig(), Interval: 10 * time.Second}
}
