package gpuextension

import (
	"time"

	"go.opentelemetry.io/collector/component"

	"github.com/gpumeter/gpumeter/internal/local"
)

// Config is what users set under extensions::gpu.
type Config struct {
	// Interval is the time between two ticks, 100ms to 5m.
	Interval time.Duration `mapstructure:"interval"`
	// SlowInterval is the time between two readings of values that cost milliseconds
	// or rarely change: energy, errors, links, limits.
	SlowInterval time.Duration `mapstructure:"slow_interval"`
	// HostName is reported as host.name; empty is what the kernel says.
	HostName string `mapstructure:"host_name"`
	// Root is where the host's file system is mounted, in a container.
	Root string `mapstructure:"root"`
	// NVIDIALibrary is the path of libnvidia-ml.so.1; empty searches the usual places.
	NVIDIALibrary string `mapstructure:"nvidia_library"`
	// NVIDIALibraryDirs are searched before the usual places.
	NVIDIALibraryDirs []string `mapstructure:"nvidia_library_dirs"`
	// PCIeThroughput measures PCIe traffic on NVIDIA GPUs before Hopper, which keeps
	// the driver busy for 40 ms every 30 s.
	PCIeThroughput bool `mapstructure:"pcie_throughput"`
	// Simulate names a model to simulate instead of reading hardware.
	Simulate string `mapstructure:"simulate"`
	// StateDir is the folder in which counts of events outlive the Collector; empty: they
	// begin at 0 with it.
	StateDir string `mapstructure:"state_dir"`
	// Resource are more resource attributes of what the gpu receiver emits, such as
	// k8s.cluster.name.
	Resource map[string]string `mapstructure:"resource"`
	// Cloud asks the metadata server of AWS, Google or Azure for region, zone and
	// instance type, if the firmware says that this is such a machine.
	Cloud bool `mapstructure:"cloud"`
}

func createDefaultConfig() component.Config {
	return &Config{Interval: local.DefaultInterval, SlowInterval: local.DefaultSlowInterval, PCIeThroughput: true}
}

// Validate implements component.ConfigValidator.
func (c *Config) Validate() error { return c.Local().Validate() }

// Local returns the configuration of the View.
func (c *Config) Local() local.Config {
	return local.Config{
		Interval:         c.Interval,
		SlowInterval:     c.SlowInterval,
		Host:             c.HostName,
		Root:             c.Root,
		NVIDIALibrary:    c.NVIDIALibrary,
		LibraryDirs:      c.NVIDIALibraryDirs,
		NoPCIeThroughput: !c.PCIeThroughput,
		Simulate:         c.Simulate,
		StateDir:         c.StateDir,
		Resource:         c.Resource,
		Cloud:            c.Cloud,
	}
}
