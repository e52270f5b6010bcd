package kubeapi

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpumeter/gpumeter/internal/workload/kubeapi/kubeapitest"
)

// candidate is a process of an election with a way to the API server of its own.
type candidate struct {
	h    *handler
	stop context.CancelFunc
	done chan struct{}

	mu    sync.Mutex
	leads bool
	last  Elected
}

func (c *candidate) leading() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leads
}

func (c *candidate) state() Elected {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// enter starts a candidate.
func enter(t *testing.T, s *kubeapitest.Server, name string) *candidate {
	t.Helper()
	c := &candidate{h: &handler{next: s}, done: make(chan struct{})}
	dial, stop := kubeapitest.Pipe(c.h)
	api := &API{newREST(server{url: &url.URL{Scheme: "http", Host: "test"}}, dial)}
	ctx, cancel := context.WithCancel(t.Context())
	c.stop = cancel
	go func() {
		defer close(c.done)
		api.Elect(ctx, Lease{Namespace: "gpumeter", Name: "scheduler", Identity: name}, func(ctx context.Context) {
			set := func(leads bool) {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.leads = leads
			}
			set(true)
			<-ctx.Done()
			set(false)
		}, func(e Elected) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.last = e
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-c.done
		api.Close()
		stop()
	})
	synctest.Wait()
	return c
}

// Catches two leaders at once, an election that nobody wins, and a loser that requests anything but the Lease.
func TestElect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		a, b := enter(t, s, "a"), enter(t, s, "b")
		f := func(when string, leader string) {
			t.Helper()
			synctest.Wait()
			got := ""
			for name, c := range map[string]*candidate{"a": a, "b": b} {
				if c.leading() {
					got += name
				}
			}
			if got != leader {
				t.Errorf("%s: %q leads, want %q", when, got, leader)
			}
		}
		f("at the start", "a")
		time.Sleep(time.Hour)
		f("after an hour", "a")
		if st := b.state(); st.Holder != "a" || st.Leads || st.Err != nil {
			t.Errorf("the other says %+v", st)
		}

		// The leader hangs. It has stopped before the other may begin.
		a.h.set(func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true })
		for i := range 600 {
			time.Sleep(100 * time.Millisecond)
			if a.leading() && (b.leading() || i > int(leaseRenew/(100*time.Millisecond))) {
				t.Fatalf("it leads %d00 ms later; the other: %v", i, b.leading())
			}
		}
		f("the leader was cut off", "b")
		if st := a.state(); st.Leads || st.Err == nil {
			t.Errorf("it says %+v", st)
		}
		a.h.set(func(http.ResponseWriter, *http.Request) bool { return false })
		time.Sleep(time.Hour)
		f("it came back", "b")

		b.stop()
		<-b.done
		time.Sleep(2*leaseLook + time.Second)
		f("the leader was stopped, and gave the Lease up", "a")
		if got := s.Holder("gpumeter", "scheduler"); got != "a" {
			t.Errorf("the Lease names %q", got)
		}
		for _, r := range s.Requests() {
			if !strings.Contains(r, "/leases") {
				t.Errorf("request %s", r)
			}
		}
	})
}

// Catches a comparison of clocks: a Lease with times of another day is valid as long as it is renewed.
func TestElectIgnoresClocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		const path = "/apis/coordination.k8s.io/v1/namespaces/gpumeter/leases/scheduler"
		renew := func(version string) {
			s.Put(path, object{
				"metadata": object{"name": "scheduler", "resourceVersion": version, "labels": object{"kept": "yes"}},
				"spec":     object{"holderIdentity": "other", "leaseDurationSeconds": 30, "renewTime": "1999-01-01T00:00:00.000000Z", "leaseTransitions": 4},
			})
		}
		renew("1")
		a := enter(t, s, "a")
		for _, version := range []string{"2", "3", "4"} {
			time.Sleep(25 * time.Second)
			renew(version)
		}
		if a.leading() {
			t.Error("leads although the other renewed")
		}
		time.Sleep(30*time.Second + 2*2*leaseLook) // until it sees the last renewal, and looks again
		synctest.Wait()
		if !a.leading() {
			t.Error("nobody leads")
		}
	})
}

// Catches a missing permission that ends the election, or makes a leader.
func TestElectDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		s.Fail("/apis/coordination.k8s.io", kubeapitest.Fault{Status: 403})
		a := enter(t, s, "a")
		if st := a.state(); st.Leads || !Denied(st.Err) || st.Err.Error() != "cannot read the Lease gpumeter/scheduler: the test says 403" {
			t.Errorf("%+v", st)
		}
		s.Heal()
		time.Sleep(2 * leaseLook)
		synctest.Wait()
		if !a.leading() {
			t.Error("nobody leads")
		}
	})
}
