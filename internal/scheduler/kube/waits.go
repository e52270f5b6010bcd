package kube

import (
	"sync"

	"github.com/gpumeter/gpumeter/internal/scheduler"
)

// Waits measures how long pods waited, by namespace: from their creation until they were scheduled, and from there
// until the first container started. Each pod counts once, when that is seen to happen: not if it had happened
// before the first list, when another process may have counted it.
type Waits struct {
	mu                sync.Mutex
	scheduled, starts scheduler.Histograms
}

// NewWaits returns empty histograms. They may outlive the Cluster that fills them.
func NewWaits() *Waits {
	return &Waits{scheduled: scheduler.Histograms{}, starts: scheduler.Histograms{}}
}

// Histograms returns copies of the histograms.
func (w *Waits) Histograms() (scheduled, started scheduler.Histograms) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.scheduled.Clone(), w.starts.Clone()
}

// seen records what has happened to a pod since it was last seen. old is nil if it is new.
func (w *Waits) seen(old, p *Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !p.Scheduled.IsZero() && !p.Created.IsZero() && (old == nil || old.Scheduled.IsZero()) {
		w.scheduled.Add(p.Namespace, p.Scheduled.Sub(p.Created))
	}
	if !p.Started.IsZero() && !p.Scheduled.IsZero() && (old == nil || old.Started.IsZero()) {
		w.starts.Add(p.Namespace, p.Started.Sub(p.Scheduled))
	}
}
