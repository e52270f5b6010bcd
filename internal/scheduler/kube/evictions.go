package kube

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/gpumeter/gpumeter/internal/scheduler"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube/gang"
	"github.com/gpumeter/gpumeter/internal/workload/podgroup"
)

// Eviction is what evictions have in common that are counted together.
type Eviction struct{ Queue, Team, Reason string }

// Evictions counts pods that lost their accelerators before they ended, each once, when that is seen to happen. Its methods
// may be called concurrently.
type Evictions struct {
	mu  sync.Mutex
	all map[Eviction]int64
}

// NewEvictions returns a counter at zero.
func NewEvictions() *Evictions { return &Evictions{all: map[Eviction]int64{}} }

// maxEvictions bounds the groups. Beyond it the team, and then the namespace, is other.
const maxEvictions = 1000

func (e *Evictions) add(p *Pod) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := Eviction{p.Namespace, p.Team, p.Evicted}
	for _, less := range []Eviction{{p.Namespace, "other", p.Evicted}, {"other", "other", p.Evicted}} {
		if _, ok := e.all[key]; ok || len(e.all) < maxEvictions {
			break
		}
		key = less
	}
	e.all[key]++
}

// Counts returns a copy of the numbers.
func (e *Evictions) Counts() map[Eviction]int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.all)
}

// disruptions are the reasons of the condition DisruptionTarget, in the words of all schedulers.
//
// https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
var disruptions = map[string]string{
	"PreemptionByScheduler":  "preempted",
	"DeletionByTaintManager": "taint",
	"EvictionByEvictionAPI":  "eviction_api",
	"DeletionByPodGC":        "node_gone",
	"TerminationByKubelet":   "kubelet",
}

// kueueEvictions are the reasons of Kueue's condition Evicted. A cause may follow Deactivated.
var kueueEvictions = map[string]string{
	"Preempted":           "preempted",
	"PodsReadyTimeout":    "pods_ready_timeout",
	"AdmissionCheck":      "admission_check",
	"ClusterQueueStopped": "queue_stopped",
	"LocalQueueStopped":   "queue_stopped",
	"NodeFailures":        "node_failures",
	"FlavorMigration":     "flavor_migration",
}

// judgeEviction finds out whether a pod was evicted. Kueue says so of the Workload, and then ends its pods.
func (c *Cluster) judgeEviction(old, p *Pod, deleted bool) {
	if old != nil {
		p.Evicted = cmp.Or(old.Evicted, p.Evicted)
	}
	if had := p.State == scheduler.Stopping || deleted && p.State.Has(); p.Evicted != "" || !had {
		return
	}
	if c.kueue.known() == nil {
		return
	}
	for _, w := range c.kueue.picked {
		if w.Namespace == p.Namespace && p.isOf(&w) {
			p.Evicted = cmp.Or(kueueEvictions[w.Evicted], "other")
			if strings.HasPrefix(w.Evicted, "Deactivated") {
				p.Evicted = "deactivated"
			}
			return
		}
	}
}

// isOf reports whether a pod belongs to a Workload of its namespace.
func (p *Pod) isOf(w *gang.Workload) bool {
	return p.Workload == w.Name || p.member.group.System == podgroup.Kueue && p.member.group.Name == w.Name ||
		slices.ContainsFunc(w.Owners, func(uid string) bool { return uid == p.UID || slices.Contains(p.owners, uid) })
}
