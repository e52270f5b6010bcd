package kubeapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// ErrNotInCluster means that this process is not in a pod and has no kubeconfig.
var ErrNotInCluster = errors.New("not running in a Kubernetes pod, and no kubeconfig is configured")

// Config configures a Client.
type Config struct {
	Node string // name of this node in the API
	// Kubeconfig is the path of a kubeconfig file. Empty means the service account of the
	// pod.
	Kubeconfig string
	Labels     []string // keys of the pod labels to keep
	TeamLabel  string   // key of the pod label that names the team
	_          struct{} // enforces keyed literals
}

// Client knows the pods of one node.
type Client struct {
	cfg  Config
	rest *rest

	health     health
	generation atomic.Uint64 // incremented when what is known changes
	pods       podStore
	owners     owners
	devices    devices
	claims     claims
	pace       pace
	node       atomic.Pointer[Node]
}

// New returns a Client that has not sent any request yet. The error is ErrNotInCluster if
// there is no API server to query.
func New(cfg Config) (*Client, error) {
	s, err := newServer(cfg.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeapi: %w", err)
	}
	return newClient(cfg, newREST(s, nil))
}

func newClient(cfg Config, r *rest) (*Client, error) {
	if cfg.Node == "" {
		return nil, errors.New("kubeapi: the name of the node is unknown")
	}
	c := &Client{cfg: cfg, rest: r}
	c.pods.init(c)
	c.owners.init()
	c.devices.init()
	c.claims.init()
	return c, nil
}

// Run queries the API server until ctx is done. It logs nothing; State reports failures.
func (c *Client) Run(ctx context.Context) error {
	defer c.rest.close()
	var wg sync.WaitGroup
	wg.Go(func() { c.followPods(ctx) })
	wg.Go(func() { c.answer(ctx) })
	wg.Go(func() { c.pollDevices(ctx) })
	wg.Go(func() { c.pollNode(ctx) })
	wg.Wait()
	return nil
}

// Part is a kind of object that is requested, each with its own permission.
type Part string

// The parts of the API that are used.
const (
	Pods   Part = "pods"
	Nodes  Part = "nodes"
	Owners Part = "owners"
	Slices Part = "resourceslices"
	Claims Part = "resourceclaims"
)

// Problem means that requests for a part fail.
type Problem struct {
	Part   Part
	Denied bool      // denied by the server; otherwise the request failed or the answer was invalid
	Since  time.Time // first of the consecutive failures
	Err    error
}

// State is how well the API server answers.
type State struct {
	Synced     bool   // the pods were listed at least once; they are current unless there is a Problem with Pods
	Generation uint64 // changes when an answer of this Client may have changed
	Refused    int    // pods rejected for exceeding the limit
	Problems   []Problem
}

// Problem returns the problem with a part, if any.
func (s State) Problem(p Part) (Problem, bool) {
	for _, q := range s.Problems {
		if q.Part == p {
			return q, true
		}
	}
	return Problem{}, false
}

// State returns how well the API server currently answers.
func (c *Client) State() State {
	s := State{Generation: c.generation.Load(), Problems: c.health.problems()}
	s.Synced, s.Refused = c.pods.state()
	if p, ok := c.owners.problem(); ok {
		s.Problems = append(s.Problems, p)
	}
	slices.SortStableFunc(s.Problems, func(a, b Problem) int { return cmp.Compare(a.Part, b.Part) })
	return s
}

// health is the last result for each part.
type health struct {
	mu   sync.Mutex
	last map[Part]Problem
}

// set records the result for a part. A canceled context says nothing about the server.
func (h *health) set(ctx context.Context, p Part, err error) {
	if err != nil && ctx.Err() != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		delete(h.last, p)
		return
	}
	if h.last == nil {
		h.last = map[Part]Problem{}
	}
	since := h.last[p].Since
	if since.IsZero() {
		since = time.Now()
	}
	h.last[p] = Problem{Part: p, Denied: denied(err), Since: since, Err: shorten(err)}
}

func (h *health) problems() []Problem {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Values(h.last))
}

// shorten truncates an error to a readable length: servers may return whole pages.
func shorten(err error) error {
	const most = 300
	if s := err.Error(); len(s) > most {
		return shortError{strings.ToValidUTF8(s[:most], "") + " ...", err}
	}
	return err
}

type shortError struct {
	text string
	err  error
}

func (e shortError) Error() string { return e.text }
func (e shortError) Unwrap() error { return e.err }

// pace limits requests to one per second.
type pace struct{ next time.Time }

const paceEvery = time.Second

func (p *pace) wait(ctx context.Context) error {
	if !sleep(ctx, time.Until(p.next)) {
		return ctx.Err()
	}
	p.next = time.Now().Add(paceEvery)
	return nil
}

// hold delays the next request for as long as the server asked.
func (p *pace) hold(err error) {
	if d := retryAfter(err); d > 0 {
		p.next = time.Now().Add(d)
	}
}

// sleep reports whether it slept for d without ctx ending.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// backoff is an exponential backoff from about a second up to a minute, with jitter, and
// never shorter than the server asked. The jitter keeps the agents of a cluster from
// returning to a server all at once.
type backoff struct{ last time.Duration }

func (b *backoff) next(err error) time.Duration {
	if err == nil {
		b.last = 0
		return 0
	}
	b.last = min(max(2*b.last, time.Second), time.Minute)
	return max(b.last/2+rand.N(b.last/2), retryAfter(err))
}
