package live

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi"
)

// Config configures a Watcher.
type Config struct {
	Vendors   device.Vendors
	TeamLabel string // key of the pod label that names the team; empty: none
	// Lease elects the process that watches. An empty namespace is that of this pod.
	Lease kubeapi.Lease
	_     struct{}
}

// Watcher watches the pods and nodes of a cluster while it is elected. Those that are not elected only look at the
// Lease.
type Watcher struct {
	cfg Config
	api *kubeapi.API

	mu      sync.Mutex
	elected kubeapi.Elected
	waits   *kube.Waits // since it was elected last; nil: it never was
	// written are those of waits that are in the Lease: nobody will count them again.
	written kube.Totals
	damaged error         // why it does not continue what was counted before
	cluster *kube.Cluster // nil: this process does not watch
	left    []kube.Event  // of the time when it did
	// pods and nodes are the errors of the last requests; nil: what is known is current.
	pods, nodes error
	kinds       kinds // the same of further kinds of objects
}

// NewWatcher returns a Watcher that has not sent any request yet.
func NewWatcher(api *kubeapi.API, cfg Config) *Watcher {
	if cfg.Lease.Namespace == "" {
		cfg.Lease.Namespace = api.Namespace()
	}
	return &Watcher{cfg: cfg, api: api}
}

// Run watches whenever this process is elected, until ctx is done.
func (w *Watcher) Run(ctx context.Context) {
	w.api.Elect(ctx, w.cfg.Lease, w, func(e kubeapi.Elected) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.elected = e
	})
	w.api.Close()
}

// Lead follows pods and nodes until ctx is done. It implements kubeapi.Leader.
func (w *Watcher) Lead(ctx context.Context, note string) {
	waits, damaged := kube.ContinueWaits(note, time.Now())
	cluster := kube.NewCluster(w.cfg.Vendors, w.cfg.TeamLabel, waits)
	w.set(func() {
		w.waits, w.written, w.damaged = waits, waits.Totals(), damaged
		w.cluster, w.pods, w.nodes, w.kinds = cluster, nil, nil, kinds{}
	})
	defer w.set(func() { w.cluster, w.left = nil, append(w.left, cluster.Events()...) })
	var wg sync.WaitGroup
	known := w.followKinds(ctx, &wg, cluster)
	wg.Go(func() {
		known() // what pods ask for by claims
		w.api.Follow(ctx, kubeapi.AllPods(), kube.PodSink{Cluster: cluster, Now: time.Now}, func(err error) {
			w.set(func() { w.pods = err })
		})
	})
	wg.Go(func() {
		w.api.Follow(ctx, kubeapi.AllNodes(), kube.NodeSink{Cluster: cluster}, func(err error) {
			w.set(func() { w.nodes = err })
		})
	})
	wg.Wait()
}

// Note implements kubeapi.Leader. Only what has been written is reported: what was not, the next one counts again.
func (w *Watcher) Note() (text string, written func()) {
	w.mu.Lock()
	waits := w.waits
	w.mu.Unlock()
	if waits == nil { // elected just now
		return "", nil
	}
	text, totals := waits.Note(time.Now())
	return text, func() {
		w.set(func() {
			if w.waits == waits {
				w.written = totals
			}
		})
	}
}

func (w *Watcher) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// Events returns what happened to pods since the last call.
func (w *Watcher) Events() []kube.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.left
	w.left = nil
	if w.cluster != nil {
		list = append(list, w.cluster.Events()...)
	}
	return list
}

// View is what a Watcher knows at one moment.
type View struct {
	Leads  bool
	Holder string // of the Lease, empty if it is not known
	// Snapshot is nil while the pods are not known: without them nothing is known of what the nodes have left. Its
	// Nodes are nil while those are not known.
	Snapshot *kube.Snapshot
	// Waits are how long pods waited and how many were evicted, as far as it is in the Lease. NoWaits says why they are not
	// current, or do not continue those of the last leader.
	Waits   kube.Totals
	NoWaits error
	// Err says what is not known, and why.
	Err error
	// Denied says which kinds of objects this process may not watch. What they would tell is absent.
	Denied error
}

// View returns what is known now. Nothing in it is older than the connection: what cannot be kept current is absent.
func (w *Watcher) View(now time.Time) View {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := View{Leads: w.cluster != nil, Holder: w.elected.Holder, Err: w.elected.Err}
	if !v.Leads {
		return v
	}
	var ill error
	v.Denied, ill = w.kinds.errors()
	v.Err = errors.Join(v.Err, w.pods, w.nodes, ill)
	v.Waits, v.NoWaits = w.written, errors.Join(w.damaged, w.elected.Note)
	if s := w.cluster.Snapshot(now); s.Pods != nil && w.pods == nil {
		v.Snapshot = s
		s.Refused += w.waits.Refused()
		if w.nodes != nil {
			s.Nodes = nil
		}
	}
	return v
}
