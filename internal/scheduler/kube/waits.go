package kube

import (
	"maps"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/scheduler"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube/tally"
)

// Waits measures how long pods waited: from their creation until they were scheduled, and from there until their first
// container started; how long Workloads of Kueue waited until they were admitted; and how many pods were evicted. Each counts
// once, over any number of processes that watch one after the other, as long as each continues with the Note of the last. All
// these times are of the API server: clocks are not compared.
//
// Its methods may be called concurrently.
type Waits struct {
	mu     sync.Mutex
	totals Totals
	// pods are by when they were scheduled, admitted are Workloads by when they were admitted, and evicted pods by when
	// they were evicted.
	pods, admitted, evicted tally.Tally
	gates                   gateLog
	note                    string // of the present state; empty: it has changed
}

// Totals are what was counted since a moment.
type Totals struct {
	Since time.Time // zero: not known
	// Scheduled are from creation to scheduling, Started from there to the first container, and Admitted from the creation of
	// a Workload to its admission, by namespace.
	Scheduled, Started, Admitted scheduler.Histograms
	// Phases are parts of the first two, by phase and size of the request, separated by a space.
	Phases scheduler.Histograms
	// Evicted are pods that lost their accelerators before they ended.
	Evicted map[Eviction]int64
}

func newTotals(since time.Time) Totals {
	return Totals{
		Since: since, Scheduled: scheduler.Histograms{}, Started: scheduler.Histograms{}, Admitted: scheduler.Histograms{},
		Phases: scheduler.Histograms{}, Evicted: map[Eviction]int64{},
	}
}

const (
	// maxCounted bounds the pods that are known by UID, and maxOnce those that were evicted, and the Workloads.
	maxCounted = 5000
	maxOnce    = 1000
)

// NewWaits returns Waits that count from a moment on, zero if it does not matter. They may outlive the Cluster that fills them.
func NewWaits(since time.Time) *Waits {
	return &Waits{totals: newTotals(since), pods: tally.New(maxCounted), admitted: tally.New(maxOnce), evicted: tally.New(maxOnce), gates: newGateLog()}
}

// Totals returns copies of the histograms.
func (w *Waits) Totals() Totals {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.totals.clone()
}

func (t *Totals) clone() Totals {
	return Totals{
		Since: t.Since, Scheduled: t.Scheduled.Clone(), Started: t.Started.Clone(), Admitted: t.Admitted.Clone(), Phases: t.Phases.Clone(),
		Evicted: maps.Clone(t.Evicted),
	}
}

// Refused returns how many pods were too many to be remembered.
func (w *Waits) Refused() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pods.Refused
}

// sight is a pod that asks for accelerators, as it is seen.
type sight struct {
	old, pod *Pod // old is how it was seen last, nil if it is new
	devices  int64
	now      time.Time
	listed   bool // in a list, the first or a later one: what happened since is not known
	first    bool // in the first list, or by claims that are known for the first time
}

// seen counts what has happened to a pod. started reports whether its start has counted now.
func (w *Waits) seen(s sight) (started bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, id := s.pod, tally.Of(s.pod.UID)
	if w.gates.seen(id, s) {
		w.note = ""
	}
	if p.Scheduled.IsZero() || p.Created.IsZero() {
		return false
	}
	// A pod that was seen waiting has not counted, whatever the clocks of the API servers say.
	is, known, passed := w.pods.Look(id, p.Scheduled, s.old != nil && s.old.Scheduled.IsZero())
	if passed {
		w.gates.forget(id)
		return false
	}
	was, counts := is, w.pods.Counts(s.first)
	if !known && counts {
		w.totals.Scheduled.Add(p.Namespace, p.Scheduled.Sub(p.Created))
		w.gates.add(w.totals.Phases, id, s)
	}
	if !is.Done && !p.Started.IsZero() {
		if is.Done, started = true, counts; counts {
			w.totals.Started.Add(p.Namespace, p.Started.Sub(p.Scheduled))
			startup(w.totals.Phases, s)
		}
	}
	if p.State == scheduler.Finished {
		is.Done = true // it never will be
	}
	if w.gates.forget(id) || !known || is != was {
		w.pods.Counted[id], w.note = is, ""
	}
	return started
}

// again reports whether what happened to a pod at a moment is told again: it was before the first list, and the process that
// watched then may have been killed before it had told.
func (w *Waits) again(s sight, at time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return s.first && !w.pods.Fresh && at.Unix() > w.pods.Mark
}

// gone forgets a pod that exists no more.
func (w *Waits) gone(uid string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := tally.Of(uid)
	if w.gates.forget(id) {
		w.note = ""
	}
	if w.pods.Finish(id) {
		w.note = ""
	}
}

// list says that the pods of a list follow, until listed.
func (w *Waits) list() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pods.Listing, w.evicted.Listing = true, true
}

// listed says that a list is complete, and which pods are in it.
func (w *Waits) listed(all map[string]*Pod, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	there := make(map[tally.ID]bool, len(all))
	for uid := range all {
		there[tally.Of(uid)] = true
	}
	for id := range w.pods.Counted {
		if !there[id] && w.pods.Finish(id) {
			w.note = ""
		}
	}
	for _, id := range w.gates.all() {
		if !there[id] {
			w.gates.forget(id)
			w.note = ""
		}
	}
	w.pods.Listed(now)
	w.evicted.Listed(now)
	w.advance(now)
}

// resolved says that pods that are first known by their claims have all been seen, as list says that they follow.
func (w *Waits) resolved() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pods.Listing, w.evicted.Listing = false, false
}

// advance moves the marks.
func (w *Waits) advance(now time.Time) {
	for _, t := range []*tally.Tally{&w.pods, &w.admitted, &w.evicted} {
		if t.Advance(now) {
			w.note = ""
		}
	}
}
