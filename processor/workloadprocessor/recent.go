package workloadprocessor

import (
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/workload"
)

// Bounds of recent. An application sends every few seconds, and a pod that was just
// created may get a better name in the next.
const (
	recentFor   = 5 * time.Second
	recentLimit = 4096
)

// recent remembers for a moment whose containers are: each batch has the same ones, and
// describing a pod anew costs more than all the rest. Who is not known is asked for again.
// Processes are not remembered, whose numbers are given out again.
type recent struct {
	mu    sync.RWMutex
	since time.Time
	known map[string]owner
}

func (r *recent) get(id string, ask func(string) (workload.Workload, bool)) (owner, bool) {
	now := time.Now()
	r.mu.RLock()
	found, ok := r.known[id]
	fresh := now.Sub(r.since) < recentFor
	r.mu.RUnlock()
	if ok && fresh {
		return found, true
	}
	w, ok := ask(id)
	if !ok {
		return owner{}, false
	}
	found = owner{matched, w.Identity()}
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.since) >= recentFor || len(r.known) >= recentLimit {
		r.known, r.since = map[string]owner{}, now
	}
	r.known[id] = found
	return found, true
}
