package slurm

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/slurm"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// script is a fake controller with scripted answers that records when it was queried.
type script struct {
	mu    sync.Mutex
	began time.Time
	asked []time.Duration
	jobs  []Job
	err   error
	hangs bool
}

func (s *script) ask(ctx context.Context) ([]Job, error) {
	s.mu.Lock()
	s.asked = append(s.asked, time.Since(s.began))
	jobs, err, hangs := s.jobs, s.err, s.hangs
	s.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return jobs, err
}

func (s *script) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *script) hang() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hangs = true
}

func asks(t *testing.T, f func(s *script, c *controller)) []time.Duration {
	var out []time.Duration
	synctest.Test(t, func(t *testing.T) {
		s := &script{began: time.Now(), jobs: []Job{{Job: slurm.Job{ID: "7"}}}}
		c := newController(s, 30*time.Second, 15*time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { c.run(ctx, func() {}); close(done) }()
		synctest.Wait()
		f(s, c)
		synctest.Wait()
		out = s.asked
		cancel()
		<-done
	})
	return out
}

const sec = time.Second

// The controller of a large cluster must not feel the agents of its nodes: one query per
// refresh, early only for a new job, and never twice for the same one.
func TestControllerRate(t *testing.T) {
	f := func(name string, do func(s *script, c *controller), want ...time.Duration) {
		t.Helper()
		if diff := cmp.Diff(want, asks(t, do)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	f("nobody asks", func(*script, *controller) { time.Sleep(61 * sec) }, 0, 30*sec, 60*sec)
	f("known jobs", func(_ *script, c *controller) {
		for range 60 {
			c.want("7")
			time.Sleep(sec)
		}
	}, 0, 30*sec, 60*sec)
	f("a new job, at once", func(_ *script, c *controller) { time.Sleep(12 * sec); c.want("8"); time.Sleep(2 * sec) }, 0, 12*sec)
	f("a new job, too soon", func(_ *script, c *controller) { time.Sleep(sec); c.want("8"); time.Sleep(5 * sec) }, 0, 5*sec)
	f("a job that it never knows", func(_ *script, c *controller) {
		for range 100 {
			c.want("8")
			time.Sleep(sec)
		}
	}, 0, 5*sec, 35*sec, 65*sec, 95*sec)
	f("many new jobs", func(_ *script, c *controller) {
		for i := range 18 {
			c.want(string(rune('a' + i)))
			time.Sleep(sec)
		}
	}, 0, 5*sec, 10*sec, 15*sec)
	f("it fails", func(s *script, _ *controller) { s.fail(errors.New("x")); time.Sleep(65 * sec) }, 0, 30*sec, 60*sec)
	f("it hangs", func(s *script, _ *controller) { s.hang(); time.Sleep(125 * sec) }, 0, 30*sec, 70*sec, 110*sec)
}

// While the controller is unreachable, its last answer is used for a time and marked as
// stale.
func TestControllerStale(t *testing.T) {
	var got []string
	note := func(c *controller) {
		a := c.last(time.Now())
		s := string(a.reason)
		if a.jobs["7"].ID != "" {
			s += " 7"
		}
		got = append(got, s)
	}
	asks(t, func(s *script, c *controller) {
		note(c)
		s.fail(errors.New("connection refused"))
		time.Sleep(31 * sec)
		note(c)
		time.Sleep(14 * time.Minute)
		note(c)
		time.Sleep(time.Minute)
		note(c)
		s.fail(nil)
		time.Sleep(30 * sec)
		note(c)
	})
	if diff := cmp.Diff([]string{"ok 7", "stale 7", "stale 7", "expired", "ok 7"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var none *controller
	if a := none.last(time.Now()); a.reason != workload.Absent {
		t.Errorf("none: %s", a.reason)
	}
}
