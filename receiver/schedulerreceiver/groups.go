package schedulerreceiver

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gpumeter/gpumeter/internal/scheduler/kube"
)

// groups records groups of pods and their members, with about limit series for the groups.
func (w *words) groups(list []*kube.Group, limit int) {
	type group struct{ queue, system, state string }
	type member struct {
		group
		state string
	}
	sizes := map[string]int{}
	for _, g := range list {
		sizes[g.Namespace]++
	}
	// Each queue has up to 3 states of each system, usually of one.
	queues := slices.SortedFunc(maps.Keys(sizes), func(a, b string) int { return cmp.Or(cmp.Compare(sizes[b], sizes[a]), cmp.Compare(a, b)) })
	kept := queues[:min(len(queues), limit/3)]
	groups, members := map[group]int64{}, map[member]int64{}
	for _, g := range list {
		key := group{g.Namespace, string(g.System), string(g.State())}
		if !slices.Contains(kept, g.Namespace) {
			key.queue = "other"
		}
		groups[key]++
		for state, n := range g.Members {
			members[member{key, string(state)}] += int64(n)
		}
	}
	for g, n := range groups {
		w.mb.RecordSchedulerGroupCountDataPoint(w.ts, n, w.cluster, w.kind, g.queue, g.system, g.state)
	}
	for m, n := range members {
		w.mb.RecordSchedulerGroupMemberCountDataPoint(w.ts, n, w.cluster, w.kind, m.queue, m.system, m.group.state, m.state)
	}
}

// evictedName is the counter that goes on from process to process.
const evictedName = "scheduler.job.evicted"

// evicted records how many pods were evicted.
func (w *words) evicted(all map[kube.Eviction]int64) {
	for e, n := range all {
		w.mb.RecordSchedulerJobEvictedDataPoint(w.ts, n, w.cluster, w.kind, e.Queue, e.Team, e.Reason)
	}
}
