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

// Sources, as they appear in Requests and Errors. Each is queried at most once per round.
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
	Cluster string // cluster name; if empty, taken from slurm.conf or from the answers
	Tools   string // directory of Slurm's tools; if empty, the usual ones are searched
	Conf    string // path of slurm.conf; if empty, the tools use their default
	REST    REST
	// OpenMetrics is the address of the controller's own metrics, available since 25.11. If
	// set, jobs and nodes are not queried one by one.
	OpenMetrics string
	Shares      bool          // also query fair shares
	Timeout     time.Duration // for a whole round

	_ struct{}
}

// REST is a slurmrestd to query instead of running the tools.
type REST struct {
	Address   string // empty: run the tools
	TokenFile string
	User      string
}

// Client queries one controller, with at most one request in flight.
type Client struct {
	cfg     Config
	metrics *metricsClient // nil: not configured
	rest    *slurm.REST    // nil: the tools are run
	now     func() time.Time

	mu       sync.Mutex
	tools    slurm.Tools
	found    bool // whether tools is set
	cluster  string
	looked   bool            // whether the controller was asked for the cluster name
	plain    map[string]bool // sources requested as text because the tool cannot write JSON
	off      map[string]bool // sources disabled because this Slurm does not have them
	requests map[string]int64
	errors   map[string]int64
}

// New returns a client. It sends no request, and Slurm may be absent.
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

// Snapshot is what the controller reported in one round. Fields it did not report are nil.
type Snapshot struct {
	Time       time.Time
	Cluster    string
	Up         bool // every required source answered
	Jobs       []slurm.Job
	Nodes      []Node
	Partitions []Partition // from slurmrestd only: with the tools this would be a second request
	Diag       *Diag
	Shares     []Share
	Native     *Native
	// Requests and Errors count requests and failed requests by source since the client was
	// created.
	Requests, Errors map[string]int64
	Err              error // why fields are missing
	odd              error // what of a complete answer cannot be parsed
}

// question is one source and how to query it through each interface.
type question struct {
	source     string
	path       string // in slurmrestd; empty if slurmrestd does not offer the source
	json, text []string
	parseJSON  func(io.Reader) error
	parseText  func(io.Reader) error
}

// errNoTools means that Slurm is not installed on this machine.
var errNoTools = errors.New("no Slurm tools on this machine and no slurmrestd configured")

// ask queries one source and counts a failure.
func (c *Client) ask(ctx context.Context, q question) error {
	err := c.put(ctx, q)
	if err != nil {
		c.errors[q.source]++
		return fmt.Errorf("%s: %w", q.source, err)
	}
	return nil
}

// put sends the request. A tool that cannot write JSON is asked for text from then on.
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
		if errors.Is(err, slurm.ErrTooLong) { // the answer was discarded but did cost the controller a request
			c.requests[q.source]++
		}
		c.plain[q.source] = true
	}
	c.requests[q.source]++
	return c.tools.Run(ctx, q.parseText, q.text[0], q.text[1:]...)
}

// Snapshot queries every source once. If the first one fails, the others are not queried.
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
	s.Err = errors.Join(s.Err, s.odd)
	if s.Up && c.cfg.Shares && !c.off[askShares] {
		s.Err = errors.Join(s.Err, c.shares(ctx, &s))
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
		json: []string{"squeue", "--all", "--states=all", "--json"}, // scontrol writes JSON only since 23.02
		// squeue would also request the partitions. ParseJobsText needs --verbose.
		text: []string{"scontrol", "--verbose", "--local", "--all", "show", "jobs"},
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
	if c.rest != nil { // scontrol already requests partitions together with the nodes
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
	// All or nothing: a partial count is indistinguishable from a complete one.
	s.Jobs, s.Nodes, s.Partitions, s.Diag = jobs.list, nodes.list, parts.list, diag
	s.odd = errors.Join(jobs.odd, nodes.odd)
	if c.cluster == "" {
		c.cluster = jobs.cluster
	}
	return nil
}

// shares queries fair shares. A cluster without slurmdbd, or with a priority plugin other
// than multifactor, has none.
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

// name determines the cluster name, once.
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

// confs are the usual paths of slurm.conf, including the one of a configless cluster.
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
				return strings.ToLower(slurm.Text(value)) // the controller lowercases the name
			}
		}
	}
	return ""
}
