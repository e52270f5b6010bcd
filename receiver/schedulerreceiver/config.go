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

// Config is the configuration under receivers::scheduler.
type Config struct {
	metadata.MetricsBuilderConfig `mapstructure:",squash"`

	// Scheduler is slurm, kubernetes, queueing: only the pages of queueing systems, or node: what the agent of a machine saw of
	// its jobs.
	Scheduler string `mapstructure:"scheduler"`
	// Slurm has no effect with another scheduler, and neither has Kubernetes.
	Slurm      SlurmConfig      `mapstructure:"slurm"`
	Kubernetes KubernetesConfig `mapstructure:"kubernetes"`
	// Queueing are the metrics pages of queueing systems. It has no effect with slurm.
	Queueing QueueingConfig `mapstructure:"queueing"`
	// Node has no effect with another scheduler than node.
	Node NodeConfig `mapstructure:"node"`
}

// The values of Config.Scheduler.
const (
	slurmKind      = "slurm"
	kubernetesKind = "kubernetes"
	queueingKind   = "queueing"
	nodeKind       = "node"
)

// Validate implements component.ConfigValidator.
func (c *Config) Validate() error {
	switch c.Scheduler {
	case slurmKind, kubernetesKind, nodeKind:
		return nil
	case queueingKind:
		if len(c.Queueing.Pages) == 0 {
			return errors.New("queueing::pages is empty: without a cluster only pages of a list are read")
		}
		return nil
	}
	return fmt.Errorf("scheduler must be %s, %s, %s or %s, is %q", slurmKind, kubernetesKind, queueingKind, nodeKind, c.Scheduler)
}

// SlurmConfig configures how a Slurm controller is queried, and for what.
type SlurmConfig struct {
	// Interval is how often the controller is queried. A round costs at most one request of each
	// kind.
	Interval time.Duration `mapstructure:"interval"`
	// Timeout is the deadline of a round, at most Interval.
	Timeout time.Duration `mapstructure:"timeout"`
	// Cluster is the value of slurm.cluster. Empty: from slurm.conf or the controller.
	Cluster string `mapstructure:"cluster"`
	// Tools is the folder of Slurm's programs. Empty: the usual folders.
	Tools string `mapstructure:"tools"`
	// Conf is the path of slurm.conf. Empty: the programs' default.
	Conf string `mapstructure:"conf"`
	// REST is a slurmrestd to query instead of running the programs.
	REST RESTConfig `mapstructure:"rest"`
	// OpenMetrics is the address of the controller's own metrics (25.11 and later), used
	// instead of querying jobs and nodes.
	OpenMetrics string `mapstructure:"openmetrics"`
	// MaxSeries bounds the series of jobs by partition, account and user. Series beyond it are
	// combined as the user other, then as the account other.
	MaxSeries int `mapstructure:"max_series"`
	// Histograms enables histograms of how long jobs wait, run and are suspended.
	Histograms bool `mapstructure:"histograms"`
	// Records selects what is also sent as log records: squeue, sprio, sshare, qos, users,
	// partitions, config.
	Records []string `mapstructure:"records"`
	// RecordsInterval is how often records are sent.
	RecordsInterval time.Duration `mapstructure:"records_interval"`
	// Accounting sends a log record for each finished job.
	Accounting AccountingConfig `mapstructure:"accounting"`
}

// RESTConfig is the address of a slurmrestd and how to authenticate.
type RESTConfig struct {
	// Address is http://host:6820, https://... or unix:/path. Empty: none.
	Address string `mapstructure:"address"`
	// TokenFile has the JWT, as scontrol token writes it. It is read for each request.
	TokenFile string `mapstructure:"token_file"`
	// User is the owner of the token, where slurmrestd requires it.
	User string `mapstructure:"user"`
}

// AccountingConfig configures whether and how finished jobs are read from the accounting.
type AccountingConfig struct {
	Enabled bool `mapstructure:"enabled"`
	// Interval is how often the accounting is queried.
	Interval time.Duration `mapstructure:"interval"`
	// Since is how far back to start if there is no cursor yet. 0: now.
	Since time.Duration `mapstructure:"since"`
	// StateDir is the folder of the cursor. Empty: the cursor is in memory, and a restart starts
	// over.
	StateDir string `mapstructure:"state_dir"`
	// Prometheus is the base URL of a Prometheus-compatible API with the gpu_workload_* series.
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
			errs = append(errs, fmt.Errorf("records: unknown kind %q, must be one of %s", r, strings.Join(kinds, ", ")))
		}
	}
	if _, err := slurmctl.New(c.client()); err != nil {
		errs = append(errs, err)
	}
	if p := c.Accounting.Prometheus; p != "" {
		if u, err := url.Parse(p); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			errs = append(errs, errors.New("accounting::prometheus is not an http:// or https:// address"))
		}
	}
	return errors.Join(errs...)
}

// client returns the configuration of the client.
func (c *SlurmConfig) client() slurmctl.Config {
	return slurmctl.Config{
		Cluster: c.Cluster, Tools: c.Tools, Conf: c.Conf,
		REST:        slurmctl.REST{Address: c.REST.Address, TokenFile: c.REST.TokenFile, User: c.REST.User},
		OpenMetrics: c.OpenMetrics, Timeout: min(c.Timeout, c.Interval),
	}
}

func createDefaultConfig() component.Config {
	return &Config{
		MetricsBuilderConfig: metadata.NewDefaultMetricsBuilderConfig(), Scheduler: slurmKind,
		Kubernetes: KubernetesConfig{Interval: 30 * time.Second, Lease: "gpumeter-scheduler", MaxSeries: 2000},
		Queueing:   QueueingConfig{Interval: 30 * time.Second, Timeout: 10 * time.Second, Discover: true},
		Slurm: SlurmConfig{
			Interval: time.Minute, Timeout: 20 * time.Second, MaxSeries: 2000, Histograms: true, RecordsInterval: 5 * time.Minute,
			Accounting: AccountingConfig{Interval: time.Minute},
		},
	}
}
