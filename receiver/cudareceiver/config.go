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

// Config is what users set under receivers::cuda.
type Config struct {
	metadata.MetricsBuilderConfig `mapstructure:",squash"`

	// Interval is the least time between two readings. They are made at ticks of the gpu
	// extension, so that the devices of the same moment are known.
	Interval time.Duration `mapstructure:"interval"`
	// Proc is the host's /proc. Processes of others are found there.
	Proc string `mapstructure:"proc"`
	// Mode forces a kind of probe: session, multi or perf. Empty: the best of the kernel's.
	Mode string `mapstructure:"mode"`
	// PerProcess adds process.pid, and a series of each process instead of one of all that
	// a workload has on a device.
	PerProcess bool `mapstructure:"per_process"`
	// PerOperation makes a histogram of the times of each function, instead of one of each
	// class of those that wait or work.
	PerOperation bool `mapstructure:"per_operation"`
	// Histograms is explicit, with buckets at powers of 4 of a second, or exponential, with
	// those of the kernel: scale 1. The page of the agent shows explicit ones only.
	Histograms string `mapstructure:"histograms"`
	// MaxSeries bounds the points of one reading. Those beyond it are counted.
	MaxSeries int `mapstructure:"max_series"`
	// MaxWorkloads bounds the workloads, each on one device. The rest is the workload other.
	MaxWorkloads int `mapstructure:"max_workloads"`
	// MaxKernels and MaxCommunicators bound those of a workload on a device. The rest is other.
	MaxKernels       int `mapstructure:"max_kernels"`
	MaxCommunicators int `mapstructure:"max_communicators"`
	// MaxRecords bounds the log records of one reading.
	MaxRecords int `mapstructure:"max_records"`
	// HangAfter is how long a rank may wait for another until that is a hang.
	HangAfter time.Duration `mapstructure:"hang_after"`
	// AnomalyFile is where anomalies are kept for gpumeter explain, as lines of JSON. It and
	// the one before it have at most 4 MiB each. Empty: they are not kept.
	AnomalyFile string `mapstructure:"anomaly_file"`
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
		errs = append(errs, fmt.Errorf("histograms knows no %q, but %s and %s", c.Histograms, explicit, exponential))
	}
	switch c.Mode {
	case "", "session", "multi", "perf":
	default:
		errs = append(errs, fmt.Errorf("mode knows no %q, but session, multi and perf", c.Mode))
	}
	return errors.Join(errs...)
}

func createDefaultConfig() component.Config {
	return &Config{
		MetricsBuilderConfig: metadata.NewDefaultMetricsBuilderConfig(),
		Interval:             10 * time.Second,
		Proc:                 "/proc",
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
