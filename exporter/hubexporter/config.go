package hubexporter

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"

	"github.com/gpumeter/gpumeter/internal/hub"
)

// Config is the configuration under exporters::hub.
type Config struct {
	// DataDir is the directory of the store. It is ignored in gpumeter's own binary, which
	// opens the store itself.
	DataDir string `mapstructure:"data_dir"`
	// Retention is how long samples and events are kept.
	Retention time.Duration `mapstructure:"retention"`
	// MaxBytes bounds samples on disk; 0 means no limit.
	MaxBytes int64 `mapstructure:"max_bytes"`
	// MaxSeries bounds series in memory.
	MaxSeries int `mapstructure:"max_series"`
	// Endpoint is the address of the Prometheus API; empty disables it. It is ignored in
	// gpumeter's own binary.
	Endpoint string `mapstructure:"endpoint"`
	// ResourceLabels are the resource attributes that become labels of every series.
	ResourceLabels []string `mapstructure:"resource_labels"`

	_ struct{}
}

var _ confmap.Validator = (*Config)(nil)

func createDefaultConfig() component.Config {
	return &Config{
		Retention: hub.DefaultRetention, MaxSeries: hub.DefaultMaxSeries, ResourceLabels: DefaultResourceLabels(),
	}
}

// Validate implements confmap.Validator.
func (c *Config) Validate() error {
	var errs []error
	if c.Retention < 2*time.Hour {
		errs = append(errs, fmt.Errorf("retention: must be at least 2h, is %s", c.Retention))
	}
	if c.MaxBytes < 0 || c.MaxSeries <= 0 {
		errs = append(errs, errors.New("max_bytes and max_series must not be negative"))
	}
	var names []string
	for _, attribute := range c.ResourceLabels {
		name := labelName(attribute)
		switch {
		case name == "" || name == bucketLabel || name == quantileLabel:
			errs = append(errs, fmt.Errorf("resource_labels: %q cannot be a label", attribute))
		case slices.Contains(names, name):
			errs = append(errs, fmt.Errorf("resource_labels: %q maps to label %s, which already exists", attribute, name))
		}
		names = append(names, name)
	}
	return errors.Join(errs...)
}
