package rules

import (
	"context"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// uninvited finds workloads that use a device without an allocation: agents export their
// allocation as 0.
func uninvited(ctx context.Context, store query.Store, at time.Time) ([]Finding, error) {
	samples, err := store.Instant(ctx, "max "+by(deviceLabels, workloadLabels)+" ("+fleet.SeriesAllocation+") == 0", at)
	if err != nil {
		return nil, err
	}
	var out []Finding
	for _, s := range samples {
		o, ok := fleet.OwnerOf(s.Labels)
		if !ok || !fleet.IsWorkload(o.Kind) {
			continue
		}
		out = append(out, Finding{
			Rule: NotAllocated, Severity: "WARN", Labels: pick(s.Labels, slices.Concat(deviceLabels, workloadLabels)...),
			Reason: o.Label() + " uses GPU " + s.Labels[fleet.LabelIndex] + " on " + nodeOf(s.Labels) + " without an allocation",
			Action: "Find out who runs the workload, and whether its container is privileged or mounts the device.",
		})
	}
	return out, nil
}
