package kube

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/scheduler"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube/gang"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube/tally"
	"github.com/gpumeter/gpumeter/internal/workload/podgroup"
)

// Eviction is what evictions have in common that are counted together.
type Eviction struct{ Queue, Team, Reason string }

// maxEvictions bounds the groups. Beyond it the team, and then the namespace, is other.
const maxEvictions = 200

// lost counts a pod that was evicted.
func (w *Waits) lost(s sight) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := s.pod
	at := p.EvictedAt
	if at.IsZero() {
		at = s.when()
	}
	counts, changed := w.evicted.Once(tally.Of(p.UID), at, s.old != nil && s.old.Evicted == "", s.first)
	if changed {
		w.note = ""
	}
	if !counts {
		return
	}
	all, key := w.totals.Evicted, Eviction{p.Namespace, p.Team, p.Evicted}
	for _, less := range []Eviction{{p.Namespace, "other", p.Evicted}, {"other", "other", p.Evicted}} {
		if _, ok := all[key]; ok || len(all) < maxEvictions {
			break
		}
		key = less
	}
	all[key]++
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
		if !old.EvictedAt.IsZero() {
			p.EvictedAt = old.EvictedAt
		}
	}
	if had := p.State == scheduler.Stopping || deleted && p.State.Has(); p.Evicted != "" || !had {
		return
	}
	if c.kueue.known() == nil {
		return
	}
	for _, w := range c.kueue.picked {
		if w.Namespace == p.Namespace && p.isOf(&w) {
			p.Evicted, p.EvictedAt = cmp.Or(kueueEvictions[w.Evicted], "other"), w.EvictedAt
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
