package slurmctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

// What is asked for: each at most once in a round.
const (
	askJobs       = "jobs"
	askNodes      = "nodes"
	askPartitions = "partitions"
	askDiag       = "diag"
	askShares     = "shares"
	askMetrics    = "openmetrics"
	askConfig     = "config"
	askPriorities = "priorities"
	askQOS        = "qos"
	askUsers      = "users"
)

// Config says how to reach a controller.
type Config struct {
	Cluster string // its name; empty: slurm.conf or the answers say it
	Tools   string // folder of Slurm's programs; empty: the usual ones
	Conf    string // path of slurm.conf; empty: the programs know
	REST    REST
	// OpenMetrics is the address of the controller's own metrics, 25.11 and later. Jobs and
	// nodes are then not asked for one by one.
	OpenMetrics string
	Shares      bool          // ask for fair shares, too
	Timeout     time.Duration // of a round in all

	_ struct{}
}

// REST is a slurmrestd to ask instead of the tools.
type REST struct {
	Address   string // empty: none
	TokenFile string
	User      string
}

// Client asks one controller. One question is under way at a time.
type Client struct {
	cfg     Config
	metrics *metricsClient // nil: none
	rest    *slurm.REST    // nil: the tools
	now     func() time.Time

	mu       sync.Mutex
	tools    slurm.Tools
	found    bool // the tools
	cluster  string
	looked   bool            // for the name of the cluster
	plain    map[string]bool // asked for as text: there is no JSON
	off      map[string]bool // not asked for any more: this Slurm has none
	requests map[string]int64
	errors   map[string]int64
}

// New returns a client. Nothing is asked yet, and Slurm need not be there.
func New(cfg Config) (*Client, error) {
	c := &Client{
		cfg: cfg, cluster: cfg.Cluster, now: time.Now,
		plain: map[string]bool{}, off: map[string]bool{}, requests: map[string]int64{}, errors: map[string]int64{},
	}
	var err error
	if cfg.REST.Address != "" {
		if c.rest, err = slurm.NewREST(cfg.REST.Address, cfg.REST.TokenFile, cfg.REST.User); err != nil {
			return nil, err
		}
	}
	if cfg.OpenMetrics != "" {
		if c.metrics, err = newMetricsClient(cfg.OpenMetrics, cfg.REST); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Snapshot is what the controller said in one round. What it did not say is nil.
type Snapshot struct {
	Time       time.Time
	Cluster    string
	Up         bool // all that must be answered was
	Jobs       []slurm.Job
	Nodes      []Node
	Partitions []Partition // by slurmrestd only: the tools would ask for them twice
	Diag       *Diag
	Shares     []Share
	Native     *Native
	// Requests and Errors are how often each thing was asked for, and not answered, since
	// the client was made.
	Requests, Errors map[string]int64
	Err              error // why something is not there
}

// question is one thing to ask for, in each way that there is.
type question struct {
	source     string
	path       string // of slurmrestd; empty: it has none
	json, text []string
	parseJSON  func(io.Reader) error
	parseText  func(io.Reader) error
}

// errNoTools means that this machine has no Slurm.
var errNoTools = errors.New("there are no Slurm programs on this machine, and no slurmrestd is named")

// ask asks once. A tool that cannot write JSON is asked for text from then on.
func (c *Client) ask(ctx context.Context, q question) error {
	err := c.put(ctx, q)
	if err != nil {
		c.errors[q.source]++
		return fmt.Errorf("%s: %w", q.source, err)
	}
	return nil
}

func (c *Client) put(ctx context.Context, q question) error {
	if c.rest != nil && q.path != "" {
		c.requests[q.source]++
		return c.rest.Get(ctx, "slurm", q.path, q.parseJSON)
	}
	if !c.found {
		if c.tools, c.found = slurm.FindTools(c.cfg.Tools, c.cfg.Conf, "squeue", "scontrol"); !c.found {
			return errNoTools
		}
	}
	if q.json != nil && !c.plain[q.source] {
		err := c.tools.Run(ctx, q.parseJSON, q.json[0], q.json[1:]...)
		if !slurm.WithoutJSON(err) || ctx.Err() != nil {
			c.requests[q.source]++
			return err
		}
		if errors.Is(err, slurm.ErrTooLong) { // the controller answered, for nothing
			c.requests[q.source]++
		}
		c.plain[q.source] = true
	}
	c.requests[q.source]++
	return c.tools.Run(ctx, q.parseText, q.text[0], q.text[1:]...)
}

// Snapshot asks the controller for everything, each thing once. If it does not answer the
// first question it is not asked the others.
func (c *Client) Snapshot(ctx context.Context) Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	s := Snapshot{Time: c.now()}
	if c.metrics != nil {
		s.Err = c.native(ctx, &s)
	} else {
		s.Err = c.core(ctx, &s)
	}
	s.Up = s.Err == nil
	if s.Up && c.cfg.Shares && !c.off[askShares] {
		s.Err = c.shares(ctx, &s)
	}
	c.name(ctx, &s)
	s.Cluster = c.cluster
	s.Requests, s.Errors = maps.Clone(c.requests), maps.Clone(c.errors)
	return s
}

func (c *Client) core(ctx context.Context, s *Snapshot) error {
	jobs := &jobList{}
	if err := c.ask(ctx, question{
		source: askJobs, path: "jobs", parseJSON: jobs.json, parseText: jobs.text,
		json: []string{"squeue", "--all", "--states=all", "--json"}, // scontrol has JSON since 23.02 only
		text: []string{"scontrol", "--all", "show", "jobs"},         // squeue would ask for partitions, too
	}); err != nil {
		return err
	}
	nodes := &nodeList{}
	if err := c.ask(ctx, question{
		source: askNodes, path: "nodes", parseJSON: nodes.json, parseText: nodes.text,
		json: []string{"scontrol", "--all", "--json", "show", "nodes"},
		text: []string{"scontrol", "--all", "--details", "show", "nodes"},
	}); err != nil {
		return err
	}
	parts := &partitionList{}
	if c.rest != nil { // scontrol asks for them with the nodes: a second time would be one too many
		if err := c.ask(ctx, question{source: askPartitions, path: "partitions", parseJSON: parts.json}); err != nil {
			return err
		}
	}
	diag := &Diag{}
	if err := c.ask(ctx, question{
		source: askDiag, path: "diag", parseJSON: diag.json, parseText: diag.text,
		json: []string{"sdiag", "--json"}, text: []string{"sdiag"},
	}); err != nil {
		return err
	}
	// All or nothing: half of the numbers would look like the whole.
	s.Jobs, s.Nodes, s.Partitions, s.Diag = jobs.list, nodes.list, parts.list, diag
	if c.cluster == "" {
		c.cluster = jobs.cluster
	}
	return nil
}

// shares asks for fair shares. A cluster without slurmdbd, or with another priority
// plugin, has none.
func (c *Client) shares(ctx context.Context, s *Snapshot) error {
	list := &shareList{}
	err := c.ask(ctx, question{
		source: askShares, path: "shares", parseJSON: list.json, parseText: list.text,
		text: []string{"sshare", "--all", "--parsable2", "--format=Account,User,RawShares,NormShares,RawUsage,EffectvUsage,FairShare"},
	})
	if err != nil {
		if text := err.Error(); strings.Contains(text, "404") || strings.Contains(text, "not running a supported") || strings.Contains(text, "cannot run") {
			c.off[askShares] = true
		}
		return err
	}
	s.Shares = list.list
	return nil
}

// name finds out what the cluster is called, once.
func (c *Client) name(ctx context.Context, s *Snapshot) {
	if c.cluster != "" || c.looked {
		return
	}
	c.cluster = clusterOf(c.cfg.Conf)
	if c.cluster != "" || !s.Up {
		return
	}
	c.looked = true
	if !c.found {
		return
	}
	var list configList
	if err := c.ask(ctx, question{source: askConfig, text: []string{"scontrol", "show", "config"}, parseText: list.text}); err == nil {
		c.cluster = list.get("ClusterName")
	}
}

// confs are where slurm.conf is: the usual place, and that of a cluster without files.
var confs = []string{"/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/etc/slurm-llnl/slurm.conf"}

func clusterOf(conf string) string {
	list := confs
	if conf != "" {
		list = []string{conf}
	}
	for _, path := range list {
		b, err := slurm.ReadFile(path, 1<<20)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			line, _, _ = strings.Cut(line, "#")
			key, value, ok := strings.Cut(line, "=")
			if ok && strings.EqualFold(strings.TrimSpace(key), "ClusterName") {
				return strings.ToLower(slurm.Text(value)) // as the controller has it
			}
		}
	}
	return ""
}
