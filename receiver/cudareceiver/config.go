package cudareceiver

import (
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/collector/component"

	"github.com/gpumeter/gpumeter/internal/tracer/ledger"
	"github.com/gpumeter/gpumeter/receiver/cudareceiver/internal/metadata"
)

// Forms of histograms.
const (
	explicit    = "explicit"
	exponential = "exponential"
)

// Config is the configuration under receivers::cuda.
type Config struct {
	metadata.MetricsBuilderConfig `mapstructure:",squash"`

	// Interval is the minimum time between two readings. Readings coincide with ticks of the gpu
	// extension, so that the devices at the same moment are known.
	Interval time.Duration `mapstructure:"interval"`
	// Proc is the host's /proc, which lists the processes of all users and containers.
	Proc string `mapstructure:"proc"`
	// Mode forces a kind of probe: session, multi or perf. Empty selects the best available.
	Mode string `mapstructure:"mode"`
	// Budget is the share of a thread's time that tracing it may cost. Beyond it, most durations of its
	// launches are not measured; their number stays exact. It has an effect in mode session only.
	// Negative: no limit.
	Budget float64 `mapstructure:"budget"`
	// PerProcess adds process.pid and reports each process separately instead of one series per
	// workload and device.
	PerProcess bool `mapstructure:"per_process"`
	// PerOperation reports one duration histogram per function instead of one per class of
	// functions that wait or work.
	PerOperation bool `mapstructure:"per_operation"`
	// Histograms is explicit (buckets at powers of 4 of a second) or exponential (the kernel's
	// buckets, scale 1). The agent's page shows only explicit ones.
	Histograms string `mapstructure:"histograms"`
	// MaxSeries bounds the points of one reading. Further points are dropped and counted.
	MaxSeries int `mapstructure:"max_series"`
	// MaxWorkloads bounds the workloads, each on one device. Further workloads become other.
	MaxWorkloads int `mapstructure:"max_workloads"`
	// MaxKernels and MaxCommunicators bound those of a workload on a device. Further ones
	// become other.
	MaxKernels       int `mapstructure:"max_kernels"`
	MaxCommunicators int `mapstructure:"max_communicators"`
	// MaxRecords bounds the log records of one reading.
	MaxRecords int `mapstructure:"max_records"`
	// HangAfter is how long ranks may wait for another before that counts as a hang.
	HangAfter time.Duration `mapstructure:"hang_after"`
	// AnomalyFile is the file of JSON lines that keeps anomalies for gpumeter explain. The file
	// and its rotated predecessor are at most 4 MiB each. Empty disables it.
	AnomalyFile string `mapstructure:"anomaly_file"`
	// Keep is a folder on a bpf file system, such as /sys/fs/bpf/gpumeter, in which probes and their
	// counts outlive the receiver, so that after a restart the kernels, communicators and memory of
	// running processes are known. Without a receiver they go on for 10 minutes, then they sleep until
	// gpumeter trace --stop removes them. Empty disables it.
	Keep string `mapstructure:"keep"`
	// StateFile keeps the last reading, so that after a restart nothing is counted twice or lost. Without
	// it, what happened during the restart is not counted. Only used with Keep.
	StateFile string `mapstructure:"state_file"`
}

// Validate implements component.ConfigValidator.
func (c *Config) Validate() error {
	var errs []error
	for _, n := range []struct {
		key   string
		value int
	}{
		{"max_series", c.MaxSeries},
		{"max_workloads", c.MaxWorkloads},
		{"max_kernels", c.MaxKernels},
		{"max_communicators", c.MaxCommunicators},
		{"max_records", c.MaxRecords},
	} {
		if n.value < 1 {
			errs = append(errs, fmt.Errorf("%s must be above 0, is %d", n.key, n.value))
		}
	}
	if c.Interval < time.Second || c.Interval > 5*time.Minute {
		errs = append(errs, fmt.Errorf("interval must be between 1s and 5m, is %s", c.Interval))
	}
	if c.HangAfter < time.Second {
		errs = append(errs, fmt.Errorf("hang_after must be at least 1s, is %s", c.HangAfter))
	}
	if c.Histograms != explicit && c.Histograms != exponential {
		errs = append(errs, fmt.Errorf("histograms must be %s or %s, is %q", explicit, exponential, c.Histograms))
	}
	if c.Budget == 0 || c.Budget > 1 {
		errs = append(errs, fmt.Errorf("budget must be above 0 and at most 1, or negative for no limit, is %v", c.Budget))
	}
	switch c.Mode {
	case "", "session", "multi", "perf":
	default:
		errs = append(errs, fmt.Errorf("mode must be session, multi or perf, is %q", c.Mode))
	}
	return errors.Join(errs...)
}

func createDefaultConfig() component.Config {
	return &Config{
		MetricsBuilderConfig: metadata.NewDefaultMetricsBuilderConfig(),
		Interval:             10 * time.Second,
		Proc:                 "/proc",
		Budget:               0.01,
		Histograms:           explicit,
		MaxSeries:            10_000,
		MaxWorkloads:         128,
		MaxKernels:           20,
		MaxCommunicators:     32,
		MaxRecords:           100,
		HangAfter:            30 * time.Second,
	}
}

func (c *Config) ledger() ledger.Options {
	return ledger.Options{PerProcess: c.PerProcess, MaxWorkloads: c.MaxWorkloads, MaxKernels: c.MaxKernels, MaxCommunicators: c.MaxCommunicators}
}
