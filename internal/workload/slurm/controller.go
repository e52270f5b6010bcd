package slurm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/workload"
)

// asker queries the controller once for the jobs that hold resources on this node. It costs
// the controller one request.
type asker interface {
	ask(ctx context.Context) ([]Job, error)
}

// controller caches the controller's answers. It queries in the background, normally once
// per refresh, and earlier for an unknown job, but never more often than soonest.
type controller struct {
	asker    asker
	refresh  time.Duration
	soonest  time.Duration
	timeout  time.Duration
	staleFor time.Duration
	wake     chan struct{}

	mu     sync.Mutex
	jobs   map[string]Job
	at     time.Time // time of the last good answer
	tried  time.Time // time of the last query
	err    error     // error of the last query
	asked  uint64
	wanted map[string]time.Time // jobs for which it was queried early, and when
}

const maxWanted = 1024

func newController(a asker, refresh, staleFor time.Duration) *controller {
	return &controller{
		asker: a, refresh: refresh, soonest: min(5*time.Second, refresh), timeout: min(10*time.Second, refresh),
		staleFor: staleFor, wake: make(chan struct{}, 1), wanted: map[string]time.Time{},
	}
}

// run queries until ctx ends. changed is called after each answer.
func (c *controller) run(ctx context.Context, changed func()) {
	for {
		c.once(ctx)
		changed()
		next := time.After(c.refresh)
		select {
		case <-ctx.Done():
			return
		case <-time.After(c.soonest):
		}
		select { // no earlier than soonest
		case <-ctx.Done():
			return
		case <-next:
		case <-c.wake:
		}
	}
}

func (c *controller) once(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	c.mu.Lock()
	c.asked++
	c.tried = time.Now()
	c.mu.Unlock()
	jobs, err := c.asker.ask(ctx)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && err != nil {
		err = fmt.Errorf("no answer within %v", c.timeout)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err = err; err != nil {
		return
	}
	c.at = time.Now()
	c.jobs = make(map[string]Job, len(jobs))
	for _, j := range jobs {
		c.jobs[j.ID] = j
	}
	for id, t := range c.wanted {
		if _, known := c.jobs[id]; known || c.at.Sub(t) > c.staleFor {
			delete(c.wanted, id)
		}
	}
}

// want requests an early query for a job that was seen. If the job is still unknown
// afterwards, because the controller may not tell or the job is over, it is not queried for
// again and want returns true.
func (c *controller) want(job string) (unknown bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, known := c.jobs[job]
	since, twice := c.wanted[job]
	if known || twice || len(c.wanted) >= maxWanted {
		return twice && since.Before(c.at)
	}
	c.wanted[job] = time.Now()
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return false
}

// answer is the controller's last answer.
type answer struct {
	jobs   map[string]Job // read-only
	before map[string]Job // the same, also after the answer has expired; read-only
	at     time.Time
	reason workload.Reason
	err    error
	asked  uint64
}

// last returns the answer that may still be used.
func (c *controller) last(now time.Time) answer {
	if c == nil {
		return answer{reason: workload.Absent}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	a := answer{jobs: c.jobs, before: c.jobs, at: c.at, reason: workload.OK, err: c.err, asked: c.asked}
	switch {
	case c.at.IsZero() && c.err == nil:
		a.reason = workload.Absent
	case c.at.IsZero():
		a.reason = workload.Failed
	case now.Sub(c.at) > c.staleFor:
		a.jobs, a.reason = nil, workload.Expired
	case c.err != nil:
		a.reason = workload.Stale
	}
	return a
}
