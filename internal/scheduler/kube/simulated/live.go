package simulated

import (
	"context"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube/live"
)

// Watch is a live.Watcher of a cluster that does not exist: the only one, and always elected.
type Watch struct {
	script *Cluster
	waits  *kube.Waits

	mu    sync.Mutex
	known *kube.Cluster
	clock time.Time // of the last feed
}

// NewWatch returns a Watch of a script. teamLabel is the pod label that names the team.
func NewWatch(script *Cluster, vendors device.Vendors, teamLabel string) *Watch {
	w := &Watch{script: script, waits: kube.NewWaits(time.Time{})}
	w.known = kube.NewCluster(vendors, teamLabel, w.waits)
	return w
}

// Run does nothing until ctx is done: a script has no connection.
func (*Watch) Run(ctx context.Context) { <-ctx.Done() }

// Events returns what happened since the last call.
func (w *Watch) Events() []kube.Event { return w.known.Events() }

// View returns what an elected Watcher would know at a moment, which must not be before that of the last call.
func (w *Watch) View(now time.Time) live.View {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clock = now
	v := live.View{Leads: true}
	if v.Err = w.script.Feed(kube.PodSink{Cluster: w.known, Now: func() time.Time { return w.clock }}, kube.NodeSink{Cluster: w.known}, now); v.Err != nil {
		return v
	}
	v.Snapshot = w.known.Snapshot(now)
	v.Waits = w.waits.Totals()
	return v
}
