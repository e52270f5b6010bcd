package schedulerreceiver

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gpumeter/gpumeter/internal/scheduler/kube/dra"
)

// maxClasses bounds the classes and combinations of classes that have series of their own. Users choose what a claim
// combines.
const maxClasses = 100

// claims records claims of accelerators and their devices.
func (w *words) claims(count, devices map[dra.Group]int64) {
	for g, n := range foldClaims(count) {
		w.mb.RecordSchedulerClaimCountDataPoint(w.ts, n, w.cluster, w.kind, g.State, g.Class, g.Driver)
	}
	for g, n := range foldClaims(devices) {
		w.mb.RecordSchedulerClaimDeviceCountDataPoint(w.ts, n, w.cluster, w.kind, g.State, g.Class, g.Driver, string(g.Unit))
	}
}

// foldClaims combines all but the classes with the most, as other.
func foldClaims(all map[dra.Group]int64) map[dra.Group]int64 {
	type class struct{ class, driver string }
	sums := map[class]int64{}
	for g, n := range all {
		sums[class{g.Class, g.Driver}] += n
	}
	ranked := slices.SortedFunc(maps.Keys(sums), func(a, b class) int {
		return cmp.Or(cmp.Compare(sums[b], sums[a]), cmp.Compare(a.class, b.class), cmp.Compare(a.driver, b.driver))
	})
	kept := map[class]bool{}
	for _, c := range ranked[:min(len(ranked), maxClasses)] {
		kept[c] = true
	}
	out := make(map[dra.Group]int64, len(all))
	for g, n := range all {
		if !kept[class{g.Class, g.Driver}] {
			g.Class, g.Driver = "other", "other"
		}
		out[g] += n
	}
	return out
}
