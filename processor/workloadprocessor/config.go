package workloadprocessor

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
)

// The modes.
const (
	modeNode    = "node"    // use the gpu extension of this node
	modeGateway = "gateway" // learn from the agents' metrics that pass through
)

// Config is the configuration under processors::workload.
type Config struct {
	// Mode is node or gateway.
	Mode string `mapstructure:"mode"`

	// Counters also adds the owner of a device to its counters and histograms. Their series
	// then end whenever the owner changes, and the increase between the last point of the old
	// series and the first of the new one is lost.
	Counters bool `mapstructure:"counters"`

	// Expiry is how long a gateway trusts an agent's last data: at least three intervals of the
	// agents.
	Expiry time.Duration `mapstructure:"expiry"`

	// MaxDevices bounds the devices that a gateway remembers.
	MaxDevices int `mapstructure:"max_devices"`

	// Attributes are the attribute names that identify what telemetry is about.
	Attributes Attributes `mapstructure:"attributes"`

	_ struct{}
}

// Attributes lists attribute names by meaning, the most trusted first. An empty list disables
// a kind of match.
type Attributes struct {
	UUID      []string `mapstructure:"uuid"`
	Index     []string `mapstructure:"index"`
	PCI       []string `mapstructure:"pci"`
	Partition []string `mapstructure:"partition"` // UUID of a partition
	Instance  []string `mapstructure:"instance"`  // GPU instance number within its GPU
	Profile   []string `mapstructure:"profile"`   // partition profile
	Host      []string `mapstructure:"host"`
	PID       []string `mapstructure:"pid"`
	Container []string `mapstructure:"container"`

	_ struct{}
}

var _ confmap.Validator = (*Config)(nil)

// createDefaultConfig uses the names of OpenTelemetry, gpumeter and dcgm-exporter.
func createDefaultConfig() component.Config {
	return &Config{
		Mode:       modeNode,
		Expiry:     5 * time.Minute,
		MaxDevices: 100_000,
		Attributes: Attributes{
			UUID:      []string{"gpu.uuid", "hw.id", "UUID", "uuid", "gpu_uuid"},
			Index:     []string{"gpu.index", "gpu", "gpu_index"},
			PCI:       []string{"gpu.pci.address", "pci_bus_id"},
			Partition: []string{"gpu.partition.id"},
			Instance:  []string{"GPU_I_ID"},
			Profile:   []string{"gpu.partition.profile", "GPU_I_PROFILE"},
			Host:      []string{"host.name", "k8s.node.name", "Hostname", "hostname"},
			PID:       []string{"process.pid"},
			Container: []string{"container.id"},
		},
	}
}

// Validate implements confmap.Validator.
func (c *Config) Validate() error {
	var errs []error
	if c.Mode != modeNode && c.Mode != modeGateway {
		errs = append(errs, fmt.Errorf("mode: must be %s or %s, not %q", modeNode, modeGateway, c.Mode))
	}
	if c.Expiry <= 0 {
		errs = append(errs, fmt.Errorf("expiry: must be positive, is %s", c.Expiry))
	}
	if c.MaxDevices < 1 {
		errs = append(errs, fmt.Errorf("max_devices: must be positive, is %d", c.MaxDevices))
	}
	var seen []string
	for _, list := range c.Attributes.lists() {
		for _, name := range list {
			switch {
			case name == "":
				errs = append(errs, errors.New("attributes: a name must not be empty"))
			case slices.Contains(seen, name):
				errs = append(errs, fmt.Errorf("attributes: %q is listed twice", name))
			}
			seen = append(seen, name)
		}
	}
	return errors.Join(errs...)
}
