package workloadprocessor

import (
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/workload"
)

// Bounds of recent. Applications send every few seconds, and a new pod may soon get a better
// name.
const (
	recentFor   = 5 * time.Second
	recentLimit = 4096
)

// recent caches the owners of containers for a moment: batches repeat the same containers, and
// describing a pod costs more than everything else. Unknown containers are looked up again.
// Processes are not cached, because pids are reused.
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
