package gpuspanprocessor

import (
	"errors"
	"fmt"
	"slices"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"

	"github.com/gpumeter/gpumeter/internal/device"
)

// The vocabularies of attributes.
const (
	namesOwn   = "gpumeter"
	namesGuide = "guide"
	namesBoth  = "both"
)

// Config is the configuration under processors::gpuspan.
type Config struct {
	// Names says which attributes spans get: gpumeter, guide (the names that people use who read
	// the GPU in their own code), or both.
	Names string `mapstructure:"names"`

	// Events are the events that spans get.
	Events Events `mapstructure:"events"`

	// Root is where the host's file system is mounted in a container.
	Root string `mapstructure:"root"`

	_ struct{}
}

// Events configures the events of spans.
type Events struct {
	// HighUtilization is the utilization, 0 to 1, above which a span gets gpu_high_utilization;
	// 1 turns it off.
	HighUtilization float64 `mapstructure:"high_utilization"`
	// HighTemperature is the same for gpu_high_temperature, in degrees Celsius; 0 turns it off.
	HighTemperature float64 `mapstructure:"high_temperature"`
	// Throttled are the buckets of causes for gpu_throttled; none turns it off.
	Throttled []string `mapstructure:"throttled"`
	// Neighbour is the part of the device's time, 0 to 1, above which the use by other workloads
	// is a gpu_neighbour; 1 turns it off.
	Neighbour float64 `mapstructure:"neighbour"`

	_ struct{}
}

// buckets are the classes of throttling causes by name.
var buckets = map[string]device.Buckets{
	"power": device.BucketPower, "thermal": device.BucketThermal, "sw": device.BucketSW, "hw": device.BucketHW,
}

var bucketOrder = []string{"power", "thermal", "sw", "hw"}

var _ confmap.Validator = (*Config)(nil)

func createDefaultConfig() component.Config {
	return &Config{
		Names:  namesOwn,
		Events: Events{HighUtilization: 0.9, HighTemperature: 80, Throttled: []string{"power", "thermal", "hw"}, Neighbour: 0.05},
	}
}

// Validate implements confmap.Validator.
func (c *Config) Validate() error {
	var errs []error
	if !slices.Contains([]string{namesOwn, namesGuide, namesBoth}, c.Names) {
		errs = append(errs, fmt.Errorf("names: must be %s, %s or %s, not %q", namesOwn, namesGuide, namesBoth, c.Names))
	}
	for key, v := range map[string]float64{"high_utilization": c.Events.HighUtilization, "neighbour": c.Events.Neighbour} {
		if !(v >= 0 && v <= 1) {
			errs = append(errs, fmt.Errorf("events::%s: must be from 0 to 1, is %v", key, v))
		}
	}
	if v := c.Events.HighTemperature; !(v >= 0) {
		errs = append(errs, fmt.Errorf("events::high_temperature: must not be negative, is %v", v))
	}
	for _, name := range c.Events.Throttled {
		if _, ok := buckets[name]; !ok {
			errs = append(errs, fmt.Errorf("events::throttled: unknown bucket %q: must be power, thermal, sw or hw", name))
		}
	}
	return errors.Join(errs...)
}
