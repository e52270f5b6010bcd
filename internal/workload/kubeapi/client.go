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

// ErrNotInCluster says that this process is not in a pod and was given no kubeconfig.
var ErrNotInCluster = errors.New("not in a pod of Kubernetes, and no kubeconfig is given")

// Config is how a Client is made.
type Config struct {
	Node string // the name of this node in the API
	// Kubeconfig is the path of a file that says how to reach the API server. Empty: as a
	// pod does, with its service account.
	Kubeconfig string
	Labels     []string // keys of the pod labels to keep
	TeamLabel  string   // key of the pod label that names the team
	_          struct{} // keyed literals only: it grows
}

// Client knows the pods of one node.
type Client struct {
	cfg  Config
	rest *rest

	health     health
	generation atomic.Uint64 // counts changes of what is known
	pods       podStore
	owners     owners
	devices    devices
	claims     claims
	pace       pace
	node       atomic.Pointer[Node]
}

// New returns a Client that has not asked anything yet. The error is ErrNotInCluster where
// there is nobody to ask.
func New(cfg Config) (*Client, error) {
	s, err := newServer(cfg.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeapi: %w", err)
	}
	return newClient(cfg, newREST(s, nil))
}

func newClient(cfg Config, r *rest) (*Client, error) {
	if cfg.Node == "" {
		return nil, errors.New("kubeapi: the name of the node is not known")
	}
	c := &Client{cfg: cfg, rest: r}
	c.pods.init(c)
	c.owners.init()
	c.devices.init()
	c.claims.init()
	return c, nil
}

// Run learns until ctx is done. It logs nothing; State has what went wrong.
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

// Part is a kind of thing that is asked for, each with a permission of its own.
type Part string

// The parts.
const (
	Pods   Part = "pods"
	Nodes  Part = "nodes"
	Owners Part = "owners"
	Slices Part = "resourceslices"
	Claims Part = "resourceclaims"
)

// Problem says that a part is not answered.
type Problem struct {
	Part   Part
	Denied bool      // by the server; otherwise it could not be asked, or answered nonsense
	Since  time.Time // of the first failure in a row
	Err    error
}

// State is how well the API server answers.
type State struct {
	Synced     bool   // the pods were listed once; they are current if there is no Problem with them
	Generation uint64 // changes when an answer of this Client may have changed
	Refused    int    // pods beyond what is held
	Problems   []Problem
}

// Problem returns the one with a part.
func (s State) Problem(p Part) (Problem, bool) {
	for _, q := range s.Problems {
		if q.Part == p {
			return q, true
		}
	}
	return Problem{}, false
}

// State returns how well the API server answers now.
func (c *Client) State() State {
	s := State{Generation: c.generation.Load(), Problems: c.health.problems()}
	s.Synced, s.Refused = c.pods.state()
	if p, ok := c.owners.problem(); ok {
		s.Problems = append(s.Problems, p)
	}
	slices.SortStableFunc(s.Problems, func(a, b Problem) int { return cmp.Compare(a.Part, b.Part) })
	return s
}

// health is the last answer of each part.
type health struct {
	mu   sync.Mutex
	last map[Part]Problem
}

// set notes how a part was answered. A context that is done says nothing of the server.
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

// shorten keeps what people read of an error: servers put whole pages into theirs.
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

// pace lets one request a second pass.
type pace struct{ next time.Time }

const paceEvery = time.Second

func (p *pace) wait(ctx context.Context) error {
	if !sleep(ctx, time.Until(p.next)) {
		return ctx.Err()
	}
	p.next = time.Now().Add(paceEvery)
	return nil
}

// hold lets nothing pass for as long as the server said.
func (p *pace) hold(err error) {
	if d := retryAfter(err); d > 0 {
		p.next = time.Now().Add(d)
	}
}

// sleep reports whether it slept for d, and not until ctx was done.
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

// backoff is how long to wait after a failure: about a second, and twice as long each
// time, up to a minute, and never less than the server said. The agents of a cluster must
// not come back to a server all at once.
type backoff struct{ last time.Duration }

func (b *backoff) next(err error) time.Duration {
	if err == nil {
		b.last = 0
		return 0
	}
	b.last = min(max(2*b.last, time.Second), time.Minute)
	return max(b.last/2+rand.N(b.last/2), retryAfter(err))
}
