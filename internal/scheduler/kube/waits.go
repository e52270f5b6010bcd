package kube

import (
	"cmp"
	"crypto/sha256"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/scheduler"
)

// Waits measures how long pods waited: from their creation until they were scheduled, and from there until their first
// container started. Each counts once for each pod, over any number of processes that watch one after the other, as long as
// each continues with the Note of the last.
//
// What has been counted is known without a list of all pods: those that were scheduled up to a moment, the mark, and by
// UID those after it and those that have not started yet. All these times are of the API server: clocks are not compared.
//
// Its methods may be called concurrently.
type Waits struct {
	mu     sync.Mutex
	totals Totals
	// fresh means that nobody counted before, or that it is not known: what the first list has does not count.
	fresh bool
	// begun means that a list is complete: there is something to note.
	begun bool
	// mark and newest are in Unix seconds, the precision of conditions. Pods that were scheduled up to mark count as counted;
	// the newest was scheduled at newest; 0: none was seen.
	mark, newest int64
	// listing means that a list is being applied. Pods older than the newest so far may follow in it: the mark must not pass them.
	listing bool
	counted map[podID]stage
	gates   gateLog
	refused int    // pods whose start could not be remembered
	note    string // of the present state; empty: it has changed
}

// Totals are durations since a moment.
type Totals struct {
	Since time.Time // zero: not known
	// Scheduled are from creation to scheduling, and Started from there to the first container, by namespace.
	Scheduled, Started scheduler.Histograms
	// Phases are parts of both, by phase and size of the request, separated by a space.
	Phases scheduler.Histograms
}

func newTotals(since time.Time) Totals {
	return Totals{Since: since, Scheduled: scheduler.Histograms{}, Started: scheduler.Histograms{}, Phases: scheduler.Histograms{}}
}

// podID is a part of the hash of a UID. Of a million pods, one in a hundred thousand clusters takes one for another.
type podID [6]byte

func idOf(uid string) podID {
	h := sha256.Sum256([]byte(uid))
	return podID(h[:6])
}

// stage is what has been counted of a pod that was scheduled.
type stage struct {
	scheduled int64 // Unix seconds
	started   bool  // nothing is left to count
}

const (
	// lag is how late the API server may say that a pod was scheduled, compared with others: several may have clocks
	// that differ.
	lag = 2 * 60
	// maxCounted bounds the pods that are known by UID.
	maxCounted = 5000
)

// NewWaits returns Waits that count from a moment on, zero if it does not matter. They may outlive the Cluster that fills them.
func NewWaits(since time.Time) *Waits {
	return &Waits{totals: newTotals(since), fresh: true, mark: -1 << 62, counted: map[podID]stage{}, gates: newGateLog()}
}

// Totals returns copies of the histograms.
func (w *Waits) Totals() Totals {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.totals.clone()
}

func (t *Totals) clone() Totals {
	return Totals{Since: t.Since, Scheduled: t.Scheduled.Clone(), Started: t.Started.Clone(), Phases: t.Phases.Clone()}
}

// Refused returns how many pods were too many to be remembered.
func (w *Waits) Refused() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.refused
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
	p, id := s.pod, idOf(s.pod.UID)
	if w.gates.seen(id, s) {
		w.note = ""
	}
	if p.Scheduled.IsZero() || p.Created.IsZero() {
		return false
	}
	is, known := w.counted[id]
	was, counts := is, !w.fresh || !s.first
	if !known {
		// A pod that was seen waiting has not counted, whatever the clocks of the API servers say.
		waited := s.old != nil && s.old.Scheduled.IsZero()
		if is.scheduled = p.Scheduled.Unix(); is.scheduled <= w.mark && !waited {
			w.gates.forget(id)
			return false
		}
		w.newest = max(w.newest, is.scheduled)
		if counts {
			w.totals.Scheduled.Add(p.Namespace, p.Scheduled.Sub(p.Created))
			w.gates.add(w.totals.Phases, id, s)
		}
	}
	if !is.started && !p.Started.IsZero() {
		if is.started, started = true, counts; counts {
			w.totals.Started.Add(p.Namespace, p.Started.Sub(p.Scheduled))
			startup(w.totals.Phases, s)
		}
	}
	if p.State == scheduler.Finished {
		is.started = true // it never will be
	}
	if w.gates.forget(id) || !known || is != was {
		w.counted[id], w.note = is, ""
	}
	return started
}

// again reports whether what happened to a pod at a moment is told again: it was before the first list, and the process that
// watched then may have been killed before it had told.
func (w *Waits) again(s sight, at time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return s.first && !w.fresh && at.Unix() > w.mark
}

// gone forgets a pod that exists no more.
func (w *Waits) gone(uid string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := idOf(uid)
	if w.gates.forget(id) {
		w.note = ""
	}
	// It stays here until the mark passes it: an API server that is behind may show it again to who watches next.
	if is, ok := w.counted[id]; ok && !is.started {
		is.started = true
		w.counted[id], w.note = is, ""
	}
}

// list says that the pods of a list follow, until listed.
func (w *Waits) list() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listing = true
}

// listed says that a list is complete, and which pods are in it.
func (w *Waits) listed(all map[string]*Pod, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listing = false
	there := make(map[podID]bool, len(all))
	for uid := range all {
		there[idOf(uid)] = true
	}
	for id, is := range w.counted {
		if !there[id] && !is.started {
			is.started = true
			w.counted[id], w.note = is, ""
		}
	}
	for _, id := range w.gates.all() {
		if !there[id] {
			w.gates.forget(id)
			w.note = ""
		}
	}
	if w.newest == 0 && !w.begun {
		w.mark = now.Unix() - lag // whoever watches next must not count all pods since 1970
	}
	w.begun = true
	w.advance(now)
}

// resolved says that pods that are first known by their claims have all been seen, as list says that they follow.
func (w *Waits) resolved() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listing = false
}

// advance moves the mark, and forgets whom it passes. A clock that is wrong, here or there, cannot move it too far alone.
func (w *Waits) advance(now time.Time) {
	if w.listing || w.newest == 0 {
		return
	}
	if mark := min(w.newest, now.Unix()) - lag; mark > w.mark {
		w.pass(mark)
	}
	if over := len(w.counted) - maxCounted; over > 0 {
		ids := slices.SortedFunc(maps.Keys(w.counted), func(a, b podID) int {
			return cmp.Or(cmp.Compare(w.counted[a].scheduled, w.counted[b].scheduled), slices.Compare(a[:], b[:]))
		})
		mark := w.mark
		for _, id := range ids[:over] {
			mark = max(mark, w.counted[id].scheduled)
			if !w.counted[id].started {
				w.refused++
			}
			delete(w.counted, id)
		}
		w.pass(mark)
	}
}

func (w *Waits) pass(mark int64) {
	w.mark, w.note = mark, ""
	maps.DeleteFunc(w.counted, func(_ podID, s stage) bool { return s.started && s.scheduled <= mark })
}
