package schedulerreceiver

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/component"

	"github.com/gpumeter/gpumeter/internal/scheduler/slurmctl"
	"github.com/gpumeter/gpumeter/receiver/schedulerreceiver/internal/metadata"
)

// Config is what users set under receivers::scheduler.
type Config struct {
	metadata.MetricsBuilderConfig `mapstructure:",squash"`

	// Slurm is the one scheduler so far.
	Slurm SlurmConfig `mapstructure:"slurm"`
}

// SlurmConfig says how a Slurm controller is asked, and for what.
type SlurmConfig struct {
	// Interval is how often the controller is asked. A round costs it at most one request of
	// each kind.
	Interval time.Duration `mapstructure:"interval"`
	// Timeout is what a round may take, at most Interval.
	Timeout time.Duration `mapstructure:"timeout"`
	// Cluster is the name for slurm.cluster. Empty: slurm.conf or the controller says it.
	Cluster string `mapstructure:"cluster"`
	// Tools is the folder of Slurm's programs. Empty: the usual ones.
	Tools string `mapstructure:"tools"`
	// Conf is the path of slurm.conf. Empty: the programs know.
	Conf string `mapstructure:"conf"`
	// REST is a slurmrestd to ask instead of the programs.
	REST RESTConfig `mapstructure:"rest"`
	// OpenMetrics is the address of the controller's own metrics, 25.11 and later, to read
	// instead of asking for jobs and nodes.
	OpenMetrics string `mapstructure:"openmetrics"`
	// MaxSeries bounds the series of jobs by partition, account and user. What is over is
	// folded into the user other, then into the account other.
	MaxSeries int `mapstructure:"max_series"`
	// Histograms of how long jobs wait, run and are suspended.
	Histograms bool `mapstructure:"histograms"`
	// Records are what is sent as log records as well: squeue, sprio, sshare, qos, users,
	// partitions, config.
	Records []string `mapstructure:"records"`
	// RecordsInterval is how often.
	RecordsInterval time.Duration `mapstructure:"records_interval"`
	// Accounting makes a log record of each job that ended.
	Accounting AccountingConfig `mapstructure:"accounting"`
}

// RESTConfig names a slurmrestd.
type RESTConfig struct {
	// Address is http://host:6820, https://... or unix:/path. Empty: none.
	Address string `mapstructure:"address"`
	// TokenFile has the JWT, as scontrol token writes it. It is read anew for each request.
	TokenFile string `mapstructure:"token_file"`
	// User is whose token it is, where slurmrestd wants to know.
	User string `mapstructure:"user"`
}

// AccountingConfig says whether and how jobs that ended are read from the accounting.
type AccountingConfig struct {
	Enabled bool `mapstructure:"enabled"`
	// Interval is how often accounting is asked.
	Interval time.Duration `mapstructure:"interval"`
	// Since is how long ago to begin if there is no cursor yet. 0: now.
	Since time.Duration `mapstructure:"since"`
	// StateDir is the folder for the cursor. Empty: it is in memory, and a restart begins anew.
	StateDir string `mapstructure:"state_dir"`
	// Prometheus is the base URL of a Prometheus-compatible API with our gpu_workload_* series.
	Prometheus string `mapstructure:"prometheus"`
}

// Validate implements component.ConfigValidator.
func (c *SlurmConfig) Validate() error {
	var errs []error
	atLeast := func(key string, d, least time.Duration) {
		if d < least {
			errs = append(errs, fmt.Errorf("%s must be at least %s, is %s", key, least, d))
		}
	}
	atLeast("interval", c.Interval, time.Second)
	atLeast("timeout", c.Timeout, time.Millisecond)
	if len(c.Records) > 0 {
		atLeast("records_interval", c.RecordsInterval, time.Second)
	}
	if c.Accounting.Enabled {
		atLeast("accounting::interval", c.Accounting.Interval, time.Second)
		atLeast("accounting::since", c.Accounting.Since, 0)
	}
	if c.MaxSeries < 10 {
		errs = append(errs, fmt.Errorf("max_series must be at least 10, is %d", c.MaxSeries))
	}
	kinds := slices.Sorted(maps.Keys(slurmctl.Kinds))
	for _, r := range c.Records {
		if !slices.Contains(kinds, r) {
			errs = append(errs, fmt.Errorf("records knows no %q, but %s", r, strings.Join(kinds, ", ")))
		}
	}
	if _, err := slurmctl.New(c.client()); err != nil {
		errs = append(errs, err)
	}
	if p := c.Accounting.Prometheus; p != "" {
		if u, err := url.Parse(p); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			errs = append(errs, errors.New("accounting::prometheus is no http:// or https:// address"))
		}
	}
	return errors.Join(errs...)
}

// client returns how the controller is reached.
func (c *SlurmConfig) client() slurmctl.Config {
	return slurmctl.Config{
		Cluster: c.Cluster, Tools: c.Tools, Conf: c.Conf,
		REST:        slurmctl.REST{Address: c.REST.Address, TokenFile: c.REST.TokenFile, User: c.REST.User},
		OpenMetrics: c.OpenMetrics, Timeout: min(c.Timeout, c.Interval),
	}
}

func createDefaultConfig() component.Config {
	return &Config{
		MetricsBuilderConfig: metadata.NewDefaultMetricsBuilderConfig(),
		Slurm: SlurmConfig{
			Interval: time.Minute, Timeout: 20 * time.Second, MaxSeries: 2000, Histograms: true, RecordsInterval: 5 * time.Minute,
			Accounting: AccountingConfig{Interval: time.Minute},
		},
	}
}
