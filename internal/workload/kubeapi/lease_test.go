package kubeapi

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
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

	mu      sync.Mutex
	leads   bool
	last    Elected
	found   string // the note of the last leader
	note    string // to write
	written string // known to be written
}

// Lead implements Leader.
func (c *candidate) Lead(ctx context.Context, note string) {
	set := func(leads bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.leads, c.found = leads, note
	}
	set(true)
	<-ctx.Done()
	set(false)
}

// Note implements Leader.
func (c *candidate) Note() (string, func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	note := c.note
	return note, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.written = note
	}
}

// writes sets the note to write.
func (c *candidate) writes(note string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note = note
}

// notes returns what it found in the Lease, and what it knows to be there.
func (c *candidate) notes() [2]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return [2]string{c.found, c.written}
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
		api.Elect(ctx, Lease{Namespace: "gpumeter", Name: "scheduler", Identity: name}, c, func(e Elected) {
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

// Catches a note that is lost with a leader, believed although it is not known to be written, taken from another Lease, or
// sent again with each renewal.
func TestElectNote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		a := enter(t, s, "a")
		after := func(d time.Duration, c *candidate, found, written string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if got := c.notes(); got != [2]string{found, written} || !c.leading() {
				t.Errorf("leads %v, found and written: %q, want %q and %q", c.leading(), got, found, written)
			}
		}
		a.writes("1")
		after(leaseRetry+time.Second, a, "", "1")
		var sent []string
		a.h.set(func(_ http.ResponseWriter, r *http.Request) bool {
			b, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(b))
			if r.Method == http.MethodPatch {
				sent = append(sent, string(b))
			}
			return false
		})
		after(time.Minute, a, "", "1")
		if text := strings.Join(sent, ""); len(sent) < 15 || strings.Contains(text, "annotations") {
			t.Errorf("%d renewals without news: %s", len(sent), text)
		}

		// The answer to a write is lost: it counts as written once it is seen.
		a.writes("2")
		a.h.set(func(_ http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPatch {
				s.ServeHTTP(httptest.NewRecorder(), r)
				panic(http.ErrAbortHandler)
			}
			return false
		})
		after(leaseRetry, a, "", "1")
		if note := s.LeaseNote("gpumeter", "scheduler"); !strings.HasSuffix(note, " 2") {
			t.Fatalf("the Lease says %q", note)
		}
		a.h.set(func(http.ResponseWriter, *http.Request) bool { return false })
		after(leaseRetry, a, "", "2")

		// Killed: no release. The other continues.
		a.h.set(func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) })
		a.writes("3")
		a.stop()
		<-a.done
		b := enter(t, s, "b")
		after(leaseFor+2*2*leaseLook, b, "2", "")
		b.writes("4")
		b.stop() // and this one writes what it has
		<-b.done
		c := enter(t, s, "c")
		after(0, c, "4", "")
		c.stop()
		<-c.done

		const path = "/apis/coordination.k8s.io/v1/namespaces/gpumeter/leases/scheduler"
		s.Put(path, object{"metadata": object{
			"name": "scheduler", "uid": "another", "resourceVersion": "1", "annotations": object{"gpumeter/note": s.LeaseNote("gpumeter", "scheduler")},
		}, "spec": object{}})
		d := enter(t, s, "d")
		after(0, d, "", "")
		d.writes("5")
		after(leaseRetry+time.Second, d, "", "5")
		s.Delete(path)
		after(2*leaseRetry+time.Second, d, "", "5")
		if note := s.LeaseNote("gpumeter", "scheduler"); !strings.HasSuffix(note, " 5") {
			t.Errorf("after somebody deleted the Lease it says %q", note)
		}
	})
}

// Catches a note that is too large, or that a policy forbids, and ends the lead, or is tried with each renewal.
func TestElectNoteRefused(t *testing.T) {
	for _, status := range []int{http.StatusBadRequest, http.StatusForbidden, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity} {
		synctest.Test(t, func(t *testing.T) { noteRefusedWith(t, status) })
	}
}

func noteRefusedWith(t *testing.T, status int) {
	t.Helper()
	s := kubeapitest.New()
	a := enter(t, s, "a")
	refused := 0
	a.h.set(func(w http.ResponseWriter, r *http.Request) bool {
		b, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(b))
		if !bytes.Contains(b, []byte("annotations")) {
			return false
		}
		refused++
		w.WriteHeader(status)
		return true
	})
	a.writes("long")
	time.Sleep(5 * time.Minute)
	synctest.Wait()
	want := fmt.Sprintf("cannot write a note into the Lease gpumeter/scheduler: server answers %d %s", status, http.StatusText(status))
	if st := a.state(); !a.leading() || a.notes()[1] != "" || refused > 6 || st.Err != nil || st.Note == nil || st.Note.Error() != want {
		t.Errorf("%d: leads %v, written %q, %d times refused, %v", status, a.leading(), a.notes()[1], refused, st.Note)
	}
	a.h.set(func(http.ResponseWriter, *http.Request) bool { return false })
	time.Sleep(2 * leaseNoteAgain)
	synctest.Wait()
	if st := a.state(); !a.leading() || a.notes()[1] != "long" || st.Note != nil {
		t.Errorf("%d healed: written %q, %v", status, a.notes()[1], st.Note)
	}
}

// slow is a leader that ends when it is told to.
type slow struct{ lost, end chan struct{} }

// Lead implements Leader.
func (s slow) Lead(ctx context.Context, _ string) {
	<-ctx.Done()
	close(s.lost)
	<-s.end
}

// Note implements Leader.
func (slow) Note() (string, func()) { return "of the last leader", func() {} }

// Catches a process that is stopped just when it has lost the Lease, and takes it from the next leader with a note that is old:
// what that leader counted is lost.
func TestElectReleasesOnlyItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		dial, stop := kubeapitest.Pipe(s)
		defer stop()
		api := &API{newREST(server{url: &url.URL{Scheme: "http", Host: "test"}}, dial)}
		defer api.Close()
		ctx, cancel := context.WithCancel(t.Context())
		a, done := slow{make(chan struct{}), make(chan struct{})}, make(chan struct{})
		go func() {
			defer close(done)
			api.Elect(ctx, Lease{Namespace: "gpumeter", Name: "scheduler", Identity: "a"}, a, func(Elected) {})
		}()
		time.Sleep(2 * leaseRetry)
		s.Put("/apis/coordination.k8s.io/v1/namespaces/gpumeter/leases/scheduler", object{
			"metadata": object{"name": "scheduler", "uid": "x", "resourceVersion": "100", "annotations": object{"gpumeter/note": "x of b"}},
			"spec":     object{"holderIdentity": "b", "leaseDurationSeconds": 15},
		})
		<-a.lost
		cancel()
		close(a.end)
		<-done
		if holder, note := s.Holder("gpumeter", "scheduler"), s.LeaseNote("gpumeter", "scheduler"); holder != "b" || note != "x of b" {
			t.Errorf("%q has the Lease, with the note %q", holder, note)
		}
	})
}
