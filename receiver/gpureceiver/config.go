package gpureceiver

import (
	"errors"
	"fmt"

	"go.opentelemetry.io/collector/component"

	"github.com/gpumeter/gpumeter/receiver/gpureceiver/internal/metadata"
)

// Config is the configuration under receivers::gpu.
type Config struct {
	metadata.MetricsBuilderConfig `mapstructure:",squash"`

	// MaxSeries bounds the points of one tick. The largest metrics lose points first; workloads
	// beyond the limit, which has at least half of the points for them, are exported together as
	// other.
	MaxSeries int `mapstructure:"max_series"`
	// MaxProcesses bounds the processes reported per device, most memory first.
	MaxProcesses int `mapstructure:"max_processes"`
	// Snapshots adds a log record of each device at each tick, for backends that store only
	// logs.
	Snapshots bool `mapstructure:"snapshots"`
}

// Validate implements component.ConfigValidator.
func (c *Config) Validate() error {
	var errs []error
	if c.MaxSeries < 1 {
		errs = append(errs, fmt.Errorf("max_series must be above 0, is %d", c.MaxSeries))
	}
	if c.MaxProcesses < 1 {
		errs = append(errs, fmt.Errorf("max_processes must be above 0, is %d", c.MaxProcesses))
	}
	return errors.Join(errs...)
}

func createDefaultConfig() component.Config {
	return &Config{
		MetricsBuilderConfig: metadata.NewDefaultMetricsBuilderConfig(),
		MaxSeries:            20_000, // twice what 16 devices need with every metric enabled, per link and per process
		MaxProcesses:         16,
	}
}
