package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Lease is the name of a Lease by which one of several processes is elected.
type Lease struct {
	Namespace, Name string
	Identity        string // of this process; unique
	_               struct{}
}

// The intervals of an election. Those of a leader are about what client-go has for the controllers of Kubernetes.
const (
	// leaseFor is how long a leader is safe after it renewed the Lease.
	leaseFor = 15 * time.Second
	// leaseRenew is how long a leader tries to renew before it stops leading. It has stopped before another may begin.
	leaseRenew = 10 * time.Second
	// leaseRetry is how often the leader renews.
	leaseRetry = 3 * time.Second
	// leaseLook is how often the others look at least, twice that at most. Each look carries the note, which has up to 200 KiB:
	// meant are two or three agents. A thousand would read up to 13 MB a second from the API server.
	leaseLook = 10 * time.Second
	// leaseNoteAgain is when a note is tried again that the server refused, such as one that is too large.
	leaseNoteAgain = time.Minute
)

// noteRefused are the answers to a write that may be due to its note. Webhooks and policies of admission choose their own.
var noteRefused = []int{http.StatusBadRequest, http.StatusForbidden, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity}

// Elected is how an election stands.
type Elected struct {
	Leads  bool
	Holder string // of the Lease, empty if nobody has it or it is not known
	Err    error  // of the last request
	Note   error  // why the note of the leader cannot be written; the lead goes on
}

// Leader is what the elected process does.
type Leader interface {
	// Lead works until ctx is done: the Lease is lost then, and Lead must return. note is what the last leader wrote into
	// this Lease, empty if there is nothing.
	Lead(ctx context.Context, note string)
	// Note returns what to write into the Lease with a renewal; empty: what is there stays. written is called once it is
	// known to be there, which may be a write later.
	Note() (text string, written func())
}

// Elect lets a leader lead while this process holds the Lease, until ctx is done. report is called when something has
// changed, and with each error.
//
// Clocks of machines are not compared: a Lease has expired when it was not renewed for as long as it says, as
// seen from here.
func (a *API) Elect(ctx context.Context, l Lease, leader Leader, report func(Elected)) {
	e := &election{api: a, lease: l, report: report}
	for pause := time.Duration(0); sleep(ctx, pause); pause = leaseLook + rand.N(leaseLook) {
		leads, err := e.acquire(ctx, nil)
		if ctx.Err() != nil {
			return
		}
		report(Elected{Leads: leads, Holder: e.seen.Spec.Holder, Err: err})
		if !leads {
			continue
		}
		if err := e.hold(ctx, leader); ctx.Err() == nil {
			report(Elected{Holder: e.seen.Spec.Holder, Err: err})
		}
	}
}

// election is one participant.
type election struct {
	api    *API
	lease  Lease
	report func(Elected)
	seen   leaseObject // as last read or written
	since  time.Time   // when seen was first seen in this form, or its writing began
	noteAt time.Time   // no note is written before
}

// leaseObject is a Lease of the API.
type leaseObject struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Metadata   leaseMeta `json:"metadata"`
	Spec       leaseSpec `json:"spec"`
}

type leaseMeta struct {
	Namespace       string           `json:"namespace"`
	Name            string           `json:"name"`
	UID             string           `json:"uid,omitempty"`
	ResourceVersion string           `json:"resourceVersion,omitempty"`
	Annotations     leaseAnnotations `json:"annotations,omitzero"`
}

// leaseAnnotations are the annotations that are read and written. Those of others stay.
type leaseAnnotations struct {
	// Note is the UID of the Lease, a space and the note: a Lease that was copied, to another cluster perhaps, has none.
	Note string `json:"gpumeter/note,omitempty"`
}

// note returns what the last leader wrote into this very Lease.
func (m *leaseMeta) note() string {
	note, _ := strings.CutPrefix(m.Annotations.Note, m.UID+" ")
	if m.UID == "" || note == m.Annotations.Note {
		return ""
	}
	return note
}

type leaseSpec struct {
	Holder      string `json:"holderIdentity"`
	Seconds     int    `json:"leaseDurationSeconds"`
	Acquired    string `json:"acquireTime,omitempty"`
	Renewed     string `json:"renewTime,omitempty"`
	Transitions int    `json:"leaseTransitions"`
}

func (e *election) path() []string {
	return []string{"apis", "coordination.k8s.io", "v1", "namespaces", e.lease.Namespace, "leases"}
}

// acquire takes the Lease if nobody has it, or renews it with the note of a leader. That somebody else has it is no error.
func (e *election) acquire(ctx context.Context, leader Leader) (leads bool, err error) {
	b, err := e.api.rest.get(ctx, plainJSON, append(e.path(), e.lease.Name), nil)
	if notFound(err) {
		e.seen = leaseObject{}
		return e.write(ctx, e.lease.Identity, nil)
	}
	if err != nil {
		return false, e.failed("read", err)
	}
	var now leaseObject
	if err := json.Unmarshal(b, &now); err != nil {
		return false, e.failed("read", err)
	}
	if now != e.seen {
		e.seen, e.since = now, time.Now()
	}
	valid := max(leaseFor, time.Duration(now.Spec.Seconds)*time.Second)
	if holder := now.Spec.Holder; holder != "" && holder != e.lease.Identity && time.Since(e.since) < valid {
		return false, nil
	}
	return e.write(ctx, e.lease.Identity, leader)
}

func (e *election) failed(verb string, err error) error {
	return fmt.Errorf("cannot %s the Lease %s/%s: %w", verb, e.lease.Namespace, e.lease.Name, shorten(err))
}

// write writes the Lease with a holder and the note of a leader, nil if there is none, unless somebody else was faster.
func (e *election) write(ctx context.Context, holder string, leader Leader) (ok bool, err error) {
	next := leaseObject{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Metadata: e.seen.Metadata, Spec: e.seen.Spec}
	next.Metadata.Namespace, next.Metadata.Name = e.lease.Namespace, e.lease.Name
	next.Metadata.Annotations = leaseAnnotations{}
	stamp := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z") // the API refuses other precisions
	if next.Spec.Holder != holder && holder != "" {
		if next.Spec.Acquired != "" {
			next.Spec.Transitions++
		}
		next.Spec.Acquired = stamp
	}
	next.Spec.Holder, next.Spec.Renewed, next.Spec.Seconds = holder, stamp, int(leaseFor/time.Second)
	note, written := "", func() {}
	if uid := e.seen.Metadata.UID; leader != nil && uid != "" && !time.Now().Before(e.noteAt) {
		if text, done := leader.Note(); text != "" {
			note, written = uid+" "+text, done
		}
	}
	if note != e.seen.Metadata.Annotations.Note {
		next.Metadata.Annotations.Note = note
	}
	ok, err = e.send(ctx, next)
	if next.Metadata.Annotations.Note != "" && slices.Contains(noteRefused, code(err)) {
		// The annotations of all together may be too large, or an admission policy may forbid them. That must not end the lead.
		e.noteAt = time.Now().Add(leaseNoteAgain)
		e.report(Elected{Leads: holder != "", Holder: holder, Note: fmt.Errorf("cannot write a note into the Lease %s/%s: %w", e.lease.Namespace, e.lease.Name, shorten(err))})
		next.Metadata.Annotations.Note, note = "", ""
		ok, err = e.send(ctx, next)
	}
	if err != nil {
		return false, e.failed("write", err)
	}
	if ok && note != "" && e.seen.Metadata.Annotations.Note == note {
		written()
		if !e.noteAt.IsZero() {
			e.noteAt = time.Time{}
			e.report(Elected{Leads: holder != "", Holder: holder})
		}
	}
	return ok, nil
}

// send creates or changes the Lease. It is not ok if somebody else was faster.
func (e *election) send(ctx context.Context, next leaseObject) (ok bool, err error) {
	body, err := json.Marshal(next)
	if err != nil {
		return false, err
	}
	// A patch keeps what others have set. With the version that was read it fails if the Lease has changed since.
	method, path := http.MethodPost, e.path()
	if next.Metadata.ResourceVersion != "" {
		method, path = http.MethodPatch, append(path, e.lease.Name)
	}
	began := time.Now()
	b, err := e.api.rest.call(ctx, method, plainJSON, path, nil, body)
	if code(err) == http.StatusConflict {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var written leaseObject
	if err := json.Unmarshal(b, &written); err != nil {
		return false, err
	}
	e.seen, e.since = written, began
	return true, nil
}

// hold lets a leader lead and renews the Lease meanwhile. It returns when the Lease is lost, or when ctx is done, in which
// case it gives the Lease up.
func (e *election) hold(parent context.Context, leader Leader) error {
	ctx, stop := context.WithCancel(parent)
	done, note := make(chan struct{}), e.seen.Metadata.note()
	go func() {
		defer close(done)
		leader.Lead(ctx, note)
	}()
	var err error
	renewed := e.since
	for sleep(ctx, min(leaseRetry, time.Until(renewed.Add(leaseRenew)))) && time.Since(renewed) < leaseRenew {
		// A server that hangs must not outlast the Lease.
		attempt, cancel := context.WithDeadline(ctx, renewed.Add(leaseRenew))
		var leads bool
		leads, err = e.acquire(attempt, leader)
		cancel()
		if leads {
			renewed = e.since
		} else if holder := e.seen.Spec.Holder; err == nil && holder != e.lease.Identity {
			break
		}
	}
	stop()
	<-done
	if parent.Err() != nil {
		e.release(context.WithoutCancel(parent), leader)
	}
	return err
}

// release gives the Lease up, so that another process need not wait until it expires. One that somebody else has is left alone,
// with the note in it.
func (e *election) release(ctx context.Context, leader Leader) {
	if e.seen.Spec.Holder != e.lease.Identity {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaseRetry)
	defer cancel()
	_, _ = e.write(ctx, "", leader) // best effort: otherwise it expires
}
